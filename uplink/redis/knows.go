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
	reply, err := s.scripts.known.Run(ctx, s.client, s.keys(), s.as).StringSlice()
	if err != nil {
		return false, s.explain(err)
	}
	if len(reply) == 2 && reply[0] != "" {
		return false, s.explain(refused(reply[0]))
	}
	if len(reply) == 2 {
		text, _, _ := strings.Cut(reply[1], "@")
		if at, ok := parseCursor(text); ok {
			return at.Epoch == id.Epoch && at.Seq >= id.Seq, nil
		}
	}
	return false, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
}
