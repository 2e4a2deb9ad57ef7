package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

//go:embed known.lua
var knownText string

var _ uplink.Knower = (*session)(nil)

// Knows implements uplink.Knower: the cursor beside the key says what the script takes for repeats. That of a hash takes none for one.
func (s *session) Knows(ctx context.Context, id pipeline.RecordID) (bool, error) {
	if s.as == asLatest {
		return false, nil
	}
	cmd := newCommand(s.scripts.known, s.keys(), 1)
	cmd.args = append(cmd.args, s.as)
	cmd.spellOut() // it is short, and a server that does not know it would have to be asked twice
	reply, err := s.run(ctx, cmd)
	if err == nil && reply[1] != "" {
		err = refused(reply[1].(string))
	}
	if err != nil {
		return false, s.explain(err)
	}
	text, _, _ := strings.Cut(reply[2].(string), "@")
	if at, ok := parseCursor(text); ok {
		return at.Epoch == id.Epoch && at.Seq >= id.Seq, nil
	}
	return false, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
}
