package webui

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	g "maragu.dev/gomponents"

	"edgegateway/control"
)

const (
	heartbeat    = 5 * time.Second
	viewerStalls = 10 * time.Second // a viewer that takes nothing for so long is cut off
)

func (s *Server) showStatus(w http.ResponseWriter, r *http.Request) error {
	now, status := time.Now(), s.Status()
	v := newView(status, now)
	id, _ := s.session(r)
	return writePage(w, http.StatusOK, statusPage(frame{s.assets, v.Summary.Tab, status.Gateway}, v, s.tokens.of(id)))
}

// fragment is a part of the page that is replaced as a whole.
type fragment struct {
	id   string // of the element
	html []byte
}

// section is a fragment before it is rendered.
type section struct {
	id      string
	content g.Node
}

// board renders a picture into fragments once, however many look at it.
type board struct {
	mu        sync.Mutex // guards the fields below
	picture   <-chan struct{}
	fragments []fragment
}

// render returns the fragments of the status; picture tells whether it is still the same one.
func (b *board) render(picture <-chan struct{}, status func() control.Status) ([]fragment, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.picture == picture && b.fragments != nil {
		return b.fragments, nil
	}
	v := newView(status(), time.Time{})
	sections := []section{
		{"summary", summarySection(v.Summary)},
		{"problems", problemsSection(v.Problems)},
		{"uplinks", uplinksSection(v.Uplinks)},
		{"streams", streamsSection(v.Streams, v.Unrouted)},
		{"lanes", lanesSection(v.Lanes, v.Flash)},
	}
	for _, d := range v.Devices {
		sections = append(sections, section{d.ID, deviceSection(d)})
	}
	fragments := make([]fragment, 0, len(sections))
	for _, s := range sections {
		var html bytes.Buffer
		if err := s.content.Render(&html); err != nil {
			return nil, fmt.Errorf("render %s: %w", s.id, err)
		}
		fragments = append(fragments, fragment{s.id, html.Bytes()})
	}
	b.picture, b.fragments = picture, fragments
	return fragments, nil
}

// events is one viewer's stream: what has changed since the last picture, and a heartbeat with the gateway's clock.
//
//	event: fragment          event: clock                event: signed-out
//	data: ELEMENT-ID         data: MILLISECONDS          data:
//	data: HTML …
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	select {
	case s.viewers <- struct{}{}:
		defer func() { <-s.viewers }()
	default:
		w.Header().Set("Retry-After", "30")
		return &httpError{http.StatusServiceUnavailable, "Too many open pages."}
	}
	out := &eventStream{w: w, rc: http.NewResponseController(w), sent: map[string][]byte{}}
	if err := out.rc.SetReadDeadline(time.Time{}); err != nil { // the request has been read; the answer has no end
		return fmt.Errorf("open event stream: %w", err)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)

	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		changed := s.Changed()
		fragments, err := s.board.render(changed, s.Status)
		if err != nil {
			s.Log.Error("page event stream failed", "err", err)
			return nil
		}
		out.fragments(fragments)
		if out.flush() != nil {
			return nil // the viewer has gone
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-changed:
		case <-beat.C:
			out.clock(time.Now())
		}
		if _, ok := s.session(r); !ok { // an open page counts as use, up to session_max
			out.event("signed-out", nil)
			_ = out.flush() // the stream ends either way
			return nil
		}
	}
}

// eventStream writes server-sent events.
type eventStream struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	sent map[string][]byte // by element id; the bytes are shared with the board
	buf  bytes.Buffer
}

// fragments adds those that differ from what was sent last, and the time they are of.
func (e *eventStream) fragments(list []fragment) {
	first := len(e.sent) == 0
	for _, f := range list {
		if !bytes.Equal(e.sent[f.id], f.html) {
			e.sent[f.id] = f.html
			e.event("fragment", append([]byte(f.id+"\n"), f.html...))
		}
	}
	if first {
		e.clock(time.Now())
	}
}

func (e *eventStream) clock(now time.Time) {
	e.event("clock", strconv.AppendInt(nil, now.UnixMilli(), 10))
}

func (e *eventStream) event(name string, data []byte) {
	e.buf.WriteString("event: " + name + "\n")
	for line := range strings.Lines(strings.ReplaceAll(string(data), "\r", " ")) {
		e.buf.WriteString("data: " + strings.TrimSuffix(line, "\n") + "\n")
	}
	if len(data) == 0 {
		e.buf.WriteString("data:\n")
	}
	e.buf.WriteByte('\n')
}

func (e *eventStream) flush() error {
	if e.buf.Len() == 0 {
		return nil
	}
	if err := e.rc.SetWriteDeadline(time.Now().Add(viewerStalls)); err != nil {
		return err
	}
	if _, err := e.buf.WriteTo(e.w); err != nil {
		return err
	}
	return e.rc.Flush()
}
