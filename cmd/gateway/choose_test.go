package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgegateway/uplink"
)

func TestAChoiceIsTakenOnce(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gateway.yaml")
	text := `
gateway: {id: gw1, state_dir: ` + dir + `}
devices:
  broker: {driver: mqtt, listen: 127.0.0.1:0, anonymous: {publish: ["#"]}}
streams:
  energy: {from: [broker], uplinks: [cloud]}
uplinks:
  cloud: {driver: redis, address: 127.0.0.1:1}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(args ...string) (int, string) {
		var out bytes.Buffer
		return command(t.Context(), append([]string{"choose", "-c", file}, args...), nil, &out, &out), out.String()
	}
	log := slog.New(slog.DiscardHandler)
	if code, out := call("cloud", "energy", "restart"); code != exitIO || !strings.Contains(out, "has the gateway run") {
		t.Errorf("before the gateway ever ran: exit code %d, %s", code, out)
	}
	c, err := loadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newGateway(c, log); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, want string }{
		{"cloud energy maybe", `unknown choice "maybe" (want resume or restart)`},
		{"clod energy resume", "it goes to cloud"},
		{"cloud power resume", "there is no stream"},
	} {
		if code, out := call(strings.Fields(test.args)...); code == exitOK || !strings.Contains(out, test.want) {
			t.Errorf("choose %s: exit code %d, %s", test.args, code, out)
		}
	}
	if got := takeChoice(dir, "energy", "cloud", log); got != "" {
		t.Errorf("a choice that nobody made: %q", got)
	}
	if code, out := call("cloud", "energy", "restart"); code != exitOK {
		t.Fatalf("exit code %d, %s", code, out)
	}
	if got := takeChoice(dir, "energy", "cloud", log); got != uplink.Restart {
		t.Errorf("took %q, want restart", got)
	}
	if got := takeChoice(dir, "energy", "cloud", log); got != "" {
		t.Errorf("took it twice: %q", got)
	}
}
