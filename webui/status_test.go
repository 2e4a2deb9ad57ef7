package webui_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/control"
	"edgegateway/device"
	"edgegateway/pipeline"
	"edgegateway/webui"
)

var update = flag.Bool("update", false, "write the golden files anew")

// busy is a gateway with something in every state.
func busy() control.Status {
	at := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	return control.Status{
		Gateway: "plant-7", Version: "1.2.3", Time: at, Started: at.Add(-50 * time.Hour),
		Problems: []control.Problem{
			{Severity: control.Error, Where: "uplink cloud", Text: "Stream plant has not been delivered for 2 h: no route.", Hint: "Nothing is lost."},
			{Severity: control.Warning, Where: "device pumps", Text: "Part unit 3 has not answered."},
		},
		Devices: []control.Device{
			{
				Name: "boiler", Driver: "modbus", Status: device.Status{State: device.Up, Since: at.Add(-time.Hour)},
				Values: []control.LastValue{
					{Topic: "boiler/unit1/flow/temperature", Value: "74.3", Unit: "°C", Time: at.Add(-time.Second)},
					{Topic: "boiler/unit1/pressure", Value: "1.84", Unit: "bar", Quality: pipeline.Uncertain, Reason: "clamped at the range's end", Time: at.Add(-2 * time.Second)},
				}, Hidden: 7,
			},
			{
				Name: "pumps", Driver: "modbus", Status: device.Status{
					State: device.Degraded, Since: at.Add(-7 * time.Minute), Error: "1 of 2 units does not answer",
					Parts: []device.Part{{Name: "unit 2", State: device.Up}, {Name: "unit 3", State: device.Down, Error: "no reply within 1 s"}},
				},
				Values: []control.LastValue{{Topic: "pumps/3/speed", Unit: "1/min", Quality: pipeline.Bad, Reason: "no reply within 1 s", Time: at}},
			},
			{Name: "spare", Driver: "mqtt", Status: device.Status{State: device.Starting}},
		},
		Streams: []control.Stream{
			{Name: "alarms", Lane: "alarms", Records: 12},
			{Name: "plant", Lane: "default", Records: 1_204_332, Rate: 38.4, Refused: 2, Waiting: 63_900_000, Quota: 64_000_000, Full: true, Backlog: control.Backlog{Records: 1, Bytes: 212, Age: 2 * time.Hour}},
		},
		Uplinks: []control.Uplink{
			{
				Name: "cloud", Driver: "kafka", Stream: "plant", Delivery: "exactly_once", Order: "strict", State: control.Waiting, Since: at, Error: "no route", NextTry: at.Add(4 * time.Second),
				LastAck: at.Add(-2 * time.Hour), Acked: 900, Backlog: control.Backlog{Records: 1, Bytes: 212, Age: 2 * time.Hour}, DeadLetters: 3,
			},
			{Name: "room", Driver: "nats", Stream: "alarms", Delivery: "at_least_once", Order: "key", State: control.Sending, Rate: 0.4},
			{Name: "room", Driver: "nats", Stream: "plant", State: control.Stopped, Error: "the lane has stopped"},
		},
		Flash: control.Flash{Budget: 10e12, Years: 5, Written: 214e9, PerDay: 3.1e9, Lasts: 8 * 8766 * time.Hour},
		Lanes: []control.Lane{
			{Name: "alarms", State: control.LaneStopped, Error: "input/output error", Epoch: 2, MaxBytes: 1 << 20},
			{Name: "default", State: control.LaneOK, Epoch: 1, Bytes: 750 << 20, MaxBytes: 1 << 30, Segments: 47, FullIn: 5 * time.Hour, Dropped: 1, Refused: 4},
		},
	}
}

// TestStatusPageLooksAsItDid compares the page with a golden file, made with -update and looked at by a person.
func TestStatusPageLooksAsItDid(t *testing.T) {
	g, b := ready(t, nil)
	g.set(busy())
	got := read(t, b.get("/"))
	got = tokenField.ReplaceAllString(got, `name="token" value="TOKEN"`)
	got = strings.ReplaceAll(replaceTimes(got), "><", ">\n<") // one tag a line, so that a difference is readable
	golden := filepath.Join("testdata", "status.golden.html")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the page differs from %s (run the test with -update and look at the difference); it is now:\n%s", golden, got)
	}
}

// replaceTimes takes out what changes with each run or with each asset: ages and hashes.
func replaceTimes(s string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "<time datetime=")
		out.WriteString(before)
		if !ok {
			break
		}
		attributes, rest, _ := strings.Cut(rest, ">")
		_, rest, _ = strings.Cut(rest, "</time>")
		out.WriteString("<time datetime=" + attributes + ">AGE</time>")
		s = rest
	}
	parts := strings.Split(out.String(), "?v=")
	for i := range parts[1:] {
		parts[i+1] = parts[i+1][12:]
	}
	return strings.Join(parts, "?v=HASH")
}

func TestHeadlineTellsAtAGlance(t *testing.T) {
	now := time.Now()
	problem, warning := control.Problem{Severity: control.Error}, control.Problem{Severity: control.Warning}
	for name, tt := range map[string]struct {
		status control.Status
		want   string
	}{
		"before the first picture":    {control.Status{}, "<h1>Starting</h1>"},
		"nothing configured":          {control.Status{Time: now}, "<h1>All is well</h1></div><p>Nothing is configured yet</p>"},
		"one warning":                 {control.Status{Time: now, Problems: []control.Problem{warning}}, "<h1>Working, with 1 warning</h1>"},
		"one problem":                 {control.Status{Time: now, Problems: []control.Problem{problem}}, "<h1>1 problem needs attention</h1>"},
		"two problems":                {control.Status{Time: now, Problems: []control.Problem{problem, problem}}, "<h1>2 problems need attention</h1>"},
		"a problem and two warnings":  {control.Status{Time: now, Problems: []control.Problem{problem, warning, warning}}, "<h1>1 problem and 2 warnings need attention</h1>"},
		"a device and its last facts": {control.Status{Time: now, Devices: []control.Device{{Status: device.Status{State: device.Up}}}, Streams: []control.Stream{{Rate: 9.94}}}, "<p>1 of 1 device up · 9.9 records/s stored · everything confirmed</p>"},
	} {
		t.Run(name, func(t *testing.T) {
			g, b := ready(t, nil)
			g.set(tt.status)
			if body := read(t, b.get("/")); !strings.Contains(body, tt.want) {
				t.Errorf("the page lacks %q:\n%s", tt.want, body)
			}
		})
	}
}

func TestHostileNamesAreText(t *testing.T) {
	const evil = `<b onclick="x">'"&</b><script>alert(1)</script>`
	g, b := ready(t, nil)
	g.set(control.Status{
		Gateway: evil, Version: evil, Time: time.Now(),
		Problems: []control.Problem{{Where: evil, Text: evil, Hint: evil}},
		Devices: []control.Device{{
			Name: evil, Driver: evil, Status: device.Status{State: device.State(evil), Error: evil, Parts: []device.Part{{Name: evil, Error: evil}}},
			Values: []control.LastValue{{Topic: evil + "/" + evil, Value: evil, Unit: evil, Quality: pipeline.Bad, Reason: evil}},
		}},
		Streams: []control.Stream{{Name: evil, Lane: evil}},
		Uplinks: []control.Uplink{{Name: evil, Driver: evil, Stream: evil, State: control.LinkState(evil), Error: evil}},
		Lanes:   []control.Lane{{Name: evil, State: control.LaneState(evil), Error: evil}},
	})
	stream, stop := openStream(t, g, b)
	defer stop()
	pages := map[string]string{"page": read(t, b.get("/")), "sign-in": read(t, g.browser(t).get("/sign-in"))}
	for range 5 {
		_, html := next(t, stream)
		pages["events"] += html
	}
	for name, page := range pages {
		if strings.Contains(page, "<b onclick") || strings.Contains(page, "<script>") {
			t.Errorf("%s lets markup through:\n%s", name, page)
		}
		if !strings.Contains(page, "&lt;b onclick") {
			t.Errorf("%s does not show the name as text", name)
		}
	}
}

func TestStreamSendsWhatHasChangedAndNothingElse(t *testing.T) {
	g, b := ready(t, nil)
	s := busy()
	g.set(s)
	stream, stop := openStream(t, g, b)
	defer stop()
	var ids []string
	for range 8 {
		id, _ := next(t, stream)
		ids = append(ids, id)
	}
	if got, want := fmt.Sprint(ids), "[summary problems uplinks streams lanes device-0 device-1 device-2]"; got != want {
		t.Fatalf("first fragments %s, want %s", got, want)
	}
	g.set(s) // a picture without a change
	values := append([]control.LastValue(nil), s.Devices[0].Values...)
	values[0].Value = "75.9"
	s.Devices = append([]control.Device(nil), s.Devices...)
	s.Devices[0].Values = values
	g.set(s)
	id, html := next(t, stream)
	if id != "device-0" || !strings.Contains(html, "<b>75.9</b>") {
		t.Errorf("after a new value came fragment %s: %s", id, html)
	}
	if strings.Contains(html, " s</time>") {
		t.Errorf("a live fragment carries an age, so it would be sent each second: %s", html)
	}
	s.Problems = nil
	g.set(s)
	if id, html = next(t, stream); id != "summary" || !strings.Contains(html, "All is well") {
		t.Errorf("after the problems were gone came fragment %s: %s", id, html)
	}
	if id, html = next(t, stream); id != "problems" || html != "" {
		t.Errorf("after the problems were gone came fragment %s: %q, want empty problems", id, html)
	}
}

func TestStreamEndsWithTheSession(t *testing.T) {
	g, b := ready(t, nil)
	stream, stop := openStream(t, g, b)
	defer stop()
	wantStatus(t, b.post("/", "/sign-out", url.Values{}), http.StatusSeeOther)
	g.set(busy())
	for range 30 {
		if !stream.Scan() {
			break
		}
		if stream.Text() == "event: signed-out" {
			return
		}
	}
	t.Error("the stream did not say that the session has ended")
}

func TestStreamsAreLimited(t *testing.T) {
	g, b := ready(t, nil)
	for range 16 {
		_, stop := openStream(t, g, b)
		defer stop()
	}
	wantStatus(t, b.send("GET", "/events", "", nil), http.StatusServiceUnavailable)
}

func TestSessionsEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		visits  int
		between time.Duration
		want    int
	}{
		"kept by use":                 {50, 50 * time.Second, http.StatusOK},
		"ended by disuse":             {1, 61 * time.Second, http.StatusSeeOther},
		"ended by age in spite of it": {73, 50 * time.Second, http.StatusSeeOther},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, b := ready(t, nil)
				defer func() { _ = g.Close() }()
				for range tt.visits {
					time.Sleep(tt.between)
					b.get("/")
				}
				wantStatus(t, b.get("/"), tt.want)
			})
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := webui.Config{Listen: "0.0.0.0:8080", Hosts: []string{"gateway.plant.example"}, SessionIdle: time.Minute, SessionMax: time.Hour}
	if p := good.Check(); len(p) > 0 {
		t.Errorf("good config: %v", p)
	}
	bad := webui.Config{Listen: "8080", Hosts: []string{"ok", "http://x/"}, SessionIdle: time.Hour, SessionMax: time.Minute}
	var paths []string
	for _, p := range bad.Check() {
		paths = append(paths, p.Path)
	}
	if got, want := fmt.Sprint(paths), "[listen hosts[1] session_max]"; got != want {
		t.Errorf("problems at %s, want %s", got, want)
	}
}

func TestAssetsAreSmall(t *testing.T) {
	entries, err := os.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 60_000 {
		t.Errorf("the assets have %d bytes, want at most 60,000", total)
	}
}

// openStream opens the event stream over a real connection and returns its lines.
func openStream(t *testing.T, g *gateway, b *browser) (lines *bufio.Scanner, stop func()) {
	t.Helper()
	server := httptest.NewServer(g.handler)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	r, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range b.jar.Cookies(&url.URL{Scheme: "http", Host: host, Path: "/"}) {
		r.AddCookie(c)
	}
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("events: %d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	return bufio.NewScanner(resp.Body), func() {
		cancel()
		_ = resp.Body.Close()
		server.Close()
	}
}

// next returns the next fragment of the stream.
func next(t *testing.T, lines *bufio.Scanner) (id, html string) {
	t.Helper()
	var event string
	var data []string
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line != "":
			name, value, _ := strings.Cut(line, ":")
			value = strings.TrimPrefix(value, " ")
			if name == "event" {
				event = value
			} else {
				data = append(data, value)
			}
		case event == "fragment":
			return data[0], strings.Join(data[1:], "\n")
		default:
			event, data = "", nil
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return "", ""
}
