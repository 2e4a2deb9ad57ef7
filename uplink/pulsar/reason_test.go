package pulsar

import (
	"context"
	"errors"
	"testing"

	"edgegateway/uplink"
)

// The library tells all who use a topic that it has ended, in any order, and few of them why.
func TestTheReasonThatSaysWhyCounts(t *testing.T) {
	closed, why := errors.New("connection closed"), errors.New("server error: AuthorizationError: no")
	other := uplink.Config(errors.New("another reason"))
	for _, c := range []struct {
		name  string
		fails []error
		said  refusal
		want  error // nil for that the connection was closed
	}{
		{"nothing is known", []error{nil, closed}, "", nil},
		{"the reason comes last", []error{nil, closed, context.Canceled, why}, "", why},
		{"the reason comes first", []error{why, nil, closed, other}, "", why},
		{"what was explained already", []error{&explained{errors.New("in plain words"), closed}, other}, "", other},
		{"a broker that has said so before", []error{closed, other}, "TopicTerminatedError: x", refusal("TopicTerminatedError: x")},
		{"a session that is closed then", []error{nil, errClosed}, "", nil},
		{"a session that is closed", []error{errClosed, why}, "", errClosed},
	} {
		ended := false
		l := &link{address: "p:6650", topic: "t", cursor: "t-cursor", said: c.said, cancel: func() { ended = true }}
		for _, err := range c.fails {
			l.fail(err)
		}
		if !ended {
			t.Errorf("%s: the link goes on", c.name)
		}
		got := l.reason()
		if c.want == nil && (errors.Is(got, errClosed) || !l.vague) || c.want != nil && !errors.Is(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
