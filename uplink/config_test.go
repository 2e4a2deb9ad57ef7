package uplink_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgegateway/uplink"
)

func TestTemplatesKnowTheirPlaceholders(t *testing.T) {
	env := uplink.Env{Gateway: "gw1", Stream: "line", Uplink: "cloud"}
	if got, want := uplink.Expand("a.{gateway}.{stream}.{uplink}", env), "a.gw1.line.cloud"; got != want {
		t.Errorf("Expand = %q, want %q", got, want)
	}
	for template, want := range map[string]string{
		"edge.{gateway}.{stream}": "",
		"plain":                   "",
		"edge.{device}":           "unknown placeholder {device}",
		"edge.{gateway":           "a { without a }",
		"edge.gateway}":           "a } without a {",
		"{{gateway}}":             "a { without a }",
	} {
		problems := uplink.CheckTemplate("topic", template)
		switch {
		case want == "" && len(problems) > 0:
			t.Errorf("CheckTemplate(%q) = %v, want none", template, problems)
		case want != "" && (len(problems) != 1 || problems[0].Path != "topic" ||
			!strings.Contains(problems[0].Text, want) || !strings.Contains(problems[0].Text, "{gateway}, {stream} or {uplink}")):
			t.Errorf("CheckTemplate(%q) = %v, want one with %q and the known ones", template, problems, want)
		}
	}
}

func TestTLSSettingsSayWhatIsMissing(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		tls  uplink.TLS
		want string
	}{
		{"a certificate without its key", uplink.TLS{Enabled: true, CertFile: "c"}, "belong together"},
		{"a section that is filled in but off", uplink.TLS{CAFile: "c"}, "enabled: true"},
	} {
		problems := uplink.CheckTLS(&row.tls)
		if len(problems) != 1 || !strings.HasPrefix(problems[0].Path, "tls.") || !strings.Contains(problems[0].Text, row.want) {
			t.Errorf("%s: CheckTLS = %v, want %q", row.name, problems, row.want)
		}
	}
	if c, err := (&uplink.TLS{}).Client(); c != nil || err != nil {
		t.Errorf("Client of a section that is off = %v, %v, want nil, nil", c, err)
	}
	for _, file := range []string{empty, empty + ".missing"} {
		if _, err := (&uplink.TLS{Enabled: true, CAFile: file}).Client(); !uplink.IsConfig(err) {
			t.Errorf("Client with ca_file %s: %v, want an error for a person", file, err)
		}
	}
}

func TestExplainSpeaksPlainlyAndKeepsTheCause(t *testing.T) {
	for _, row := range []struct {
		err    error
		want   string
		config bool
	}{
		{syscall.ECONNREFUSED, "refuses the connection", false},
		{syscall.ENETUNREACH, "cannot be reached", false},
		{os.ErrDeadlineExceeded, "does not answer in time", false},
		{syscall.EPIPE, "closed the connection", false},
		{&net.DNSError{Name: "broker.plant", IsNotFound: true}, "the name broker.plant is not known", false},
		{errors.New("something else"), "something else", false},
		{uplink.Config(errors.New("already plain")), "already plain", true},
	} {
		got := uplink.Explain("broker:1", fmt.Errorf("dial: %w", row.err))
		if !strings.Contains(got.Error(), row.want) || !errors.Is(got, row.err) || uplink.IsConfig(got) != row.config {
			t.Errorf("Explain(%v) = %v (config %v), want %q (config %v)", row.err, got, uplink.IsConfig(got), row.want, row.config)
		}
	}
}

func TestPaceGrowsOnAQuickLineAndShrinksOnASlowOne(t *testing.T) {
	const limit = 900_000
	var p uplink.Pace
	first := p.Bytes(limit)
	for range 10 {
		p.Took(p.Bytes(limit), 10*time.Millisecond)
	}
	if first != 16<<10 || p.Bytes(limit) != limit {
		t.Errorf("from %d to %d, want 16384 to %d", first, p.Bytes(limit), limit)
	}
	for range 20 {
		p.Took(p.Bytes(limit), 3*time.Second)
	}
	if got := p.Bytes(limit); got != first {
		t.Errorf("%d on a slow line, want %d", got, first)
	}
	p.Took(100, time.Millisecond)
	if got := p.Bytes(limit); got != first {
		t.Errorf("%d after a chunk that proves nothing, want %d", got, first)
	}
}
