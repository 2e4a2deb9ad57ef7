package browser_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/control"
	"edgegateway/webui"
)

const password = "three calm pumps at night"

// serve starts the page over the plant on a free port.
func serve(t *testing.T, p *plant) (base string, page *webui.Server) {
	t.Helper()
	monitor := control.NewMonitor(p.gather)
	registry := prometheus.NewRegistry()
	registry.MustRegister(control.NewCollector(monitor.Status))
	page, err := webui.Open(webui.Options{
		Config:   webui.Config{Listen: "127.0.0.1:0", SessionIdle: time.Hour, SessionMax: 2 * time.Hour},
		StateDir: t.TempDir(),
		Status:   monitor.Status,
		Changed:  monitor.Changed,
		Gatherer: registry,
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- monitor.Run(ctx) }()
	go func() { ended <- page.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
		}
	})
	return "http://" + page.Addr().String(), page
}

func TestFromFirstRunToAMovingValue(t *testing.T) {
	p := newPlant()
	base, page := serve(t, p)
	b := openTab(t, base)

	b.open("/")
	b.shows("Set up this gateway")
	b.lookAll("set-up")
	b.enter(map[string]string{"code": "WRNG-CODE", "password": password, "again": password})
	b.shows("That is not the set-up code.")
	b.enter(map[string]string{"code": page.SetupCode(), "password": password, "again": password + "!"})
	b.shows("The two passwords differ.")
	b.enter(map[string]string{"code": strings.ToLower(page.SetupCode()), "password": password, "again": password})
	b.shows("All is well")
	if code := page.SetupCode(); code != "" {
		t.Errorf("set-up code after set-up = %q, want none", code)
	}

	const flow = "#device-0 tbody tr:nth-child(2) .value b"
	first := b.text(flow)
	b.until("a flow temperature other than "+first, `document.querySelector("`+flow+`").textContent !== "`+first+`"`)
	b.until("a rate near 38 records a second", `/\b3[6-9] records\/s stored/.test(document.body.innerText)`)
	b.lookAll("all-well")

	p.takeDown(true)
	b.shows("1 problem and 1 warning need attention")
	b.shows("connection timed out")
	b.until("a title that tells of the problem", `document.title.startsWith("1 problem")`)
	b.lookAll("uplink-down")
	if os.Getenv("UPDATE_SCREENSHOTS") == "1" {
		for width, name := range map[int64]string{1280: "page-1280.png", 390: "page-390.png"} {
			png, err := os.ReadFile(b.look("docs", width, "light"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile("../../docs/"+name, png, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.takeDown(false)
	b.shows("All is well")

	b.enter(nil) // the only form is the one that signs out
	b.shows("Forgotten the password?")
	b.wantNoTrouble()
}

func TestWhoGuessesHasToWait(t *testing.T) {
	base, page := serve(t, newPlant())
	b := openTab(t, base)
	b.open("/")
	b.enter(map[string]string{"code": page.SetupCode(), "password": password, "again": password})
	b.shows("All is well")
	b.enter(nil)
	b.shows("Forgotten the password?")
	b.enter(map[string]string{"password": "not the password"})
	b.shows("That is not the password.")
	b.lookAll("wrong-password")
	for range 20 { // how many it takes depends on how fast the browser is
		b.enter(map[string]string{"password": "not the password"})
		if strings.Contains(b.text(".refusal"), "Too many wrong tries.") {
			break
		}
	}
	b.shows("Too many wrong tries.")
	b.lookAll("too-many-tries")
	b.wantNoTrouble()
}

func TestPageSaysThatItIsCutOff(t *testing.T) {
	base, page := serve(t, newPlant())
	b := openTab(t, base)
	b.open("/")
	b.enter(map[string]string{"code": page.SetupCode(), "password": password, "again": password})
	b.shows("All is well")
	// The clock of the page stands in for a gateway that has gone silent.
	b.until("a page that takes a late clock for silence", `(() => { heard = Date.now() - 60000; tick(); return !document.getElementById("stale").hidden })()`)
	b.look("cut-off", 1280, "light")
	b.until("a page that has heard again", `document.getElementById("stale").hidden`)
	b.wantNoTrouble()
}
