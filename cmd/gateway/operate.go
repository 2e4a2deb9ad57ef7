package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"edgegateway/uplink"
	"edgegateway/wal"
)

// pauseFile remembers which uplinks an operator has paused, one name in a line, so that they stay paused over a restart.
type pauseFile struct {
	path string

	mu    sync.Mutex // guards names
	names []string   // sorted
}

// openPauses reads the file. One that cannot be read must not keep the gateway from storing: nothing is paused then.
func openPauses(stateDir string, log *slog.Logger) *pauseFile {
	p := &pauseFile{path: filepath.Join(stateDir, "paused")}
	text, err := os.ReadFile(p.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Error("which uplinks are paused cannot be read, none is", "err", err)
	}
	p.names = strings.Fields(string(text))
	slices.Sort(p.names)
	return p
}

func (p *pauseFile) has(uplinkName string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, found := slices.BinarySearch(p.names, uplinkName)
	return found
}

// set makes it durable that an uplink is paused, or is not.
func (p *pauseFile) set(uplinkName string, paused bool) (changed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := slices.Clone(p.names)
	switch i, found := slices.BinarySearch(names, uplinkName); {
	case found == paused:
		return false, nil
	case paused:
		names = slices.Insert(names, i, uplinkName)
	default:
		names = slices.Delete(names, i, i+1)
	}
	text := strings.Join(names, "\n") + "\n"
	if len(names) == 0 {
		text = ""
	}
	if err := writeDurably(p.path, []byte(text)); err != nil {
		return false, err
	}
	p.names = names
	return true, nil
}

// pauseAnswer is the answer to pause and resume.
type pauseAnswer struct {
	Changed bool `json:"changed"`
}

// isThere says that the config has no such uplink, or no such stream that goes to it. Empty is any.
func (g *gateway) isThere(uplinkName, stream string) error {
	if _, ok := g.config.Uplinks[uplinkName]; uplinkName != "" && !ok {
		return fmt.Errorf("there is no uplink %q (%s), and no dead letter of one", uplinkName, have(g.config.Uplinks))
	}
	if _, ok := g.config.Streams[baseStream(stream)]; stream != "" && !ok {
		return fmt.Errorf("there is no stream %q (%s), and no dead letter of one", stream, have(g.config.Streams))
	}
	return nil
}

// pause holds the records of an uplink back, or lets them go again. It is remembered before it is done.
func (g *gateway) pause(uplinkName string, paused bool) (pauseAnswer, error) {
	if _, ok := g.config.Uplinks[uplinkName]; !ok {
		return pauseAnswer{}, fmt.Errorf("there is no uplink %q (%s)", uplinkName, have(g.config.Uplinks))
	}
	changed, err := g.pauses.set(uplinkName, paused)
	if err != nil {
		return pauseAnswer{}, err
	}
	for _, k := range g.allLinks() {
		r := k.runs()
		switch {
		case k.uplink != uplinkName || r == nil:
		case paused:
			r.Pause()
		default:
			r.Resume()
		}
	}
	return pauseAnswer{changed}, nil
}

// reconnect has the uplink's sessions begin anew, with what they sign in with now.
func (g *gateway) reconnect(uplinkName string) {
	for _, k := range g.allLinks() {
		if r := k.runs(); r != nil && k.uplink == uplinkName {
			r.Reconnect()
		}
	}
}

// releaseRequest is what release is asked for; without Yes it only tells what would be given up.
type releaseRequest struct {
	Stream string `json:"stream,omitempty"` // empty for all streams that the uplink is gone from
	Yes    bool   `json:"yes,omitempty"`
}

// releasedCursor is one place in the log that is given up.
type releasedCursor struct {
	Stream  string `json:"stream"`
	Lane    string `json:"lane"`
	Records uint64 `json:"records"` // that were kept for it
	Bytes   uint64 `json:"bytes"`
	Letters uint64 `json:"letters"` // dead letters, which stay until they are purged
}

// releaseAnswer lists what is given up, or would be.
type releaseAnswer struct {
	Cursors []releasedCursor `json:"cursors"`
}

// release gives up the places in the log of an uplink that is not in the config any more.
func (g *gateway) release(uplinkName string, q *releaseRequest) (releaseAnswer, error) {
	answer := releaseAnswer{Cursors: []releasedCursor{}}
	configured := false
	for _, l := range g.lanes {
		log, _ := l.opened()
		if log == nil {
			return answer, fmt.Errorf("lane %s is not open, so what it keeps for the uplink is not known", l.name)
		}
		for _, c := range log.Cursors() {
			owner, _, _ := wal.ParseSplit(c.Uplink)
			switch {
			case owner != uplinkName, q.Stream != "" && q.Stream != c.Stream && q.Stream != baseStream(c.Stream):
				continue
			case g.isConfigured(c.Uplink, c.Stream):
				configured = true
				continue
			}
			answer.Cursors = append(answer.Cursors, releasedCursor{
				Stream: c.Stream, Lane: l.name, Records: c.Lag.Records, Bytes: c.Lag.Bytes, Letters: l.deadLetters(c.Uplink, c.Stream),
			})
			if !q.Yes {
				continue
			}
			if err := log.Release(c.Uplink, c.Stream); err != nil {
				return answer, err
			}
			// What an operator was asked about it is settled too.
			for _, left := range []string{"", ".ahead"} {
				_ = os.Remove(choicePath(g.config.Gateway.StateDir, c.Stream, uplinkName) + left) // nearly always there is none
			}
			g.log.Warn("uplink released, its records are given up", "uplink", c.Uplink, "stream", c.Stream, "records", c.Lag.Records)
		}
	}
	switch {
	case len(answer.Cursors) > 0:
		return answer, nil
	case configured:
		return answer, fmt.Errorf("uplink %s is still in the config (take it out of the streams first, and start the gateway with that)", uplinkName)
	}
	return answer, fmt.Errorf("no log keeps anything for an uplink %s%s that is not in the config (see edge-gateway inspect)", uplinkName, ofStream(q.Stream))
}

func ofStream(stream string) string {
	if stream == "" {
		return ""
	}
	return " of stream " + stream
}

// removedCursors returns the places in the log that belong to no uplink of the config any more.
func (g *gateway) removedCursors(log *wal.Log) []wal.CursorInfo {
	return slices.DeleteFunc(log.Cursors(), func(c wal.CursorInfo) bool { return g.isConfigured(c.Uplink, c.Stream) })
}

// choose leaves an operator's choice for a far cursor and has the uplink try again at once. Where nothing is to be chosen it is refused:
// it would wait, and be followed the next time that there is.
func (g *gateway) choose(uplinkName, stream string, choice uplink.Choice) error {
	if err := checkChoice(g.config, uplinkName, stream, choice); err != nil {
		return err
	}
	for _, k := range g.allLinks() {
		r := k.runs()
		if r == nil || k.uplink != uplinkName || k.stream != stream {
			continue
		}
		switch choices := r.Status().Choices; {
		case len(choices) == 0:
			return fmt.Errorf("uplink %s of stream %s does not ask for a choice, so there is nothing to choose (its status says when it does)", uplinkName, stream)
		case !slices.Contains(choices, choice):
			return fmt.Errorf("uplink %s of stream %s cannot %s: %s (want %s)", uplinkName, stream, choice, r.Status().Error, joined(choices))
		}
		if err := leaveChoice(g.config, uplinkName, stream, choice); err != nil {
			return err
		}
		r.Reconnect()
		return nil
	}
	return fmt.Errorf("uplink %s of stream %s does not run now: its lane is not open", uplinkName, stream)
}

// joined lists choices as a person would.
func joined(choices []uplink.Choice) string {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = string(c)
	}
	return strings.Join(words, " or ")
}
