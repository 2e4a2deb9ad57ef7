package webui_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"

	"edgegateway/control"
	"edgegateway/webui"
)

const password = "three calm pumps at night"

// source is a status that a test can change.
type source struct {
	mu      sync.Mutex // guards the fields below
	status  control.Status
	changed chan struct{}
}

func (s *source) Status() control.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *source) set(status control.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
	close(s.changed)
	s.changed = make(chan struct{})
}

// gateway is a page under test.
type gateway struct {
	*webui.Server
	*source
	handler http.Handler
	log     *bytes.Buffer
	dir     string
}

func options(t *testing.T, src *source, log *bytes.Buffer) webui.Options {
	registry := prometheus.NewRegistry()
	registry.MustRegister(control.NewCollector(src.Status))
	return webui.Options{
		Config:   webui.Config{Listen: "127.0.0.1:0", Hosts: []string{"gateway.plant.example"}, SessionIdle: time.Minute, SessionMax: time.Hour},
		StateDir: t.TempDir(),
		Status:   src.Status,
		Changed:  src.Changed,
		Gatherer: registry,
		Log:      slog.New(slog.NewTextHandler(log, nil)),
	}
}

func openPage(t *testing.T, change func(*webui.Options)) *gateway {
	t.Helper()
	g := &gateway{source: &source{status: control.Status{Gateway: "plant-7", Time: time.Now()}, changed: make(chan struct{})}, log: &bytes.Buffer{}}
	o := options(t, g.source, g.log)
	if change != nil {
		change(&o)
	}
	g.dir = o.StateDir
	server, err := webui.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	g.Server, g.handler = server, server.Handler()
	return g
}

// browser sends requests to a handler as a browser would: with cookies, from one address.
type browser struct {
	t       *testing.T
	handler http.Handler
	remote  string
	jar     http.CookieJar
}

func (g *gateway) browser(t *testing.T) *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t, g.handler, "192.0.2.10:50000", jar}
}

const host = "192.0.2.1:8080"

// send fills in what a browser sends, unless change takes it away.
func (b *browser) send(method, path, body string, change func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, "http://"+host+path, strings.NewReader(body))
	r.RemoteAddr = b.remote
	r.Header.Set("Accept", "text/html")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+host)
	}
	for _, c := range b.jar.Cookies(r.URL) {
		r.AddCookie(c)
	}
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	resp := w.Result()
	b.jar.SetCookies(r.URL, resp.Cookies())
	return resp
}

func (b *browser) get(path string) *http.Response { return b.send(http.MethodGet, path, "", nil) }

var tokenField = regexp.MustCompile(`name="token" value="([0-9a-f]+)"`)

// post gets the form at from, and posts it with the fields to path.
func (b *browser) post(from, path string, fields url.Values) *http.Response {
	b.t.Helper()
	match := tokenField.FindStringSubmatch(read(b.t, b.get(from)))
	if match == nil {
		b.t.Fatalf("no form at %s", from)
	}
	fields.Set("token", match[1])
	return b.send(http.MethodPost, path, fields.Encode(), nil)
}

func (b *browser) setUp(code, password string) *http.Response {
	b.t.Helper()
	return b.post("/set-up", "/set-up", url.Values{"code": {code}, "password": {password}, "again": {password}})
}

func (b *browser) signIn(password string) *http.Response {
	b.t.Helper()
	return b.post("/sign-in", "/sign-in", url.Values{"password": {password}})
}

func read(t *testing.T, r *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func wantStatus(t *testing.T, r *http.Response, want int) {
	t.Helper()
	if r.StatusCode != want {
		t.Errorf("status %d, want %d; body:\n%s", r.StatusCode, want, read(t, r))
	}
}

// ready returns a gateway with a password and a browser that has signed in. The password's hash is of the cheapest kind:
// the real one takes seconds under the race detector.
func ready(t *testing.T, change func(*webui.Options)) (*gateway, *browser) {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	g := openPage(t, func(o *webui.Options) {
		if change != nil {
			change(o)
		}
		account := fmt.Sprintf(`{"version": 1, "password": %q, "set": "2026-11-20T12:00:00Z"}`, hash)
		if err := os.WriteFile(filepath.Join(o.StateDir, "page.json"), []byte(account), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	b := g.browser(t)
	wantStatus(t, b.signIn(password), http.StatusSeeOther)
	return g, b
}

func TestWithoutSignInNothingIsShown(t *testing.T) {
	methods := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}
	open := map[string]bool{
		"GET /set-up": true, "GET /sign-in": true, "GET /assets/style.css": true, "GET /assets/page.js": true, "GET /favicon.ico": true,
		"GET /healthz": true, "GET /readyz": true,
	}
	paths := []string{
		"/", "/events", "/sign-out", "/set-up", "/sign-in", "/metrics", "/healthz", "/readyz", "/assets/style.css", "/assets/page.js",
		"/assets/none.js", "/assets/", "/assets/../view.go", "/favicon.ico", "/debug/pprof/", "/api/v1/devices", "/page.json", "//", "/%2e%2e/page.json",
	}
	for _, setUp := range []bool{false, true} {
		g, _ := ready(t, nil)
		if !setUp {
			g = openPage(t, nil)
		}
		g.set(control.Status{Gateway: "plant-7", Time: time.Now(), Devices: []control.Device{{Name: "secret-boiler"}}})
		for _, path := range paths {
			for _, method := range methods {
				r := g.browser(t).send(method, path, "", nil)
				body := read(t, r)
				if strings.Contains(body, "secret-boiler") {
					t.Errorf("%s %s shows a device to a stranger", method, path)
				}
				reads := method == "GET" || method == "HEAD"
				switch {
				case r.StatusCode == http.StatusOK && reads && open["GET "+path]:
				case r.StatusCode == http.StatusSeeOther && (reads || path == "/set-up") && strings.HasPrefix(r.Header.Get("Location"), "/s"):
				case r.StatusCode == http.StatusUnauthorized, r.StatusCode == http.StatusForbidden:
				case r.StatusCode == http.StatusNotFound && strings.HasPrefix(path, "/assets/"):
				default:
					t.Errorf("%s %s (set up: %v) = %d, want a redirect or 401", method, path, setUp, r.StatusCode)
				}
				if csp := r.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
					t.Errorf("%s %s: policy %q", method, path, csp)
				}
			}
		}
	}
}

func TestProgramsGet401InsteadOfARedirect(t *testing.T) {
	g, _ := ready(t, nil)
	for _, path := range []string{"/", "/events", "/metrics", "/none"} {
		r := g.browser(t).send("GET", path, "", func(r *http.Request) { r.Header.Set("Accept", "*/*") })
		wantStatus(t, r, http.StatusUnauthorized)
	}
}

func TestSetUpCodeIsUsedOnce(t *testing.T) {
	g := openPage(t, nil)
	code := g.SetupCode()
	if !regexp.MustCompile(`^[A-HJ-NP-Z2-9]{4}-[A-HJ-NP-Z2-9]{4}$`).MatchString(code) {
		t.Errorf("code %q, want two groups of four unambiguous letters", code)
	}
	b := g.browser(t)
	if to := b.get("/").Header.Get("Location"); to != "/set-up" {
		t.Errorf("first visit leads to %q, want /set-up", to)
	}
	for name, tt := range map[string]struct {
		code, password, again string
		status                int
		text                  string
	}{
		"wrong code":               {"AAAA-AAAA", password, password, http.StatusUnauthorized, "not the set-up code"},
		"no code":                  {"", password, password, http.StatusUnauthorized, "not the set-up code"},
		"short password":           {code, "eleven char", "eleven char", http.StatusUnprocessableEntity, "at least 12 characters"},
		"long password":            {code, strings.Repeat("x", 73), strings.Repeat("x", 73), http.StatusUnprocessableEntity, "too long"},
		"two passwords":            {code, password, password + "x", http.StatusUnprocessableEntity, "differ"},
		"wrong code, bad password": {"AAAA-AAAA", "x", "x", http.StatusUnauthorized, "not the set-up code"},
	} {
		r := b.post("/set-up", "/set-up", url.Values{"code": {tt.code}, "password": {tt.password}, "again": {tt.again}})
		wantStatus(t, r, tt.status)
		if body := read(t, r); !strings.Contains(body, tt.text) {
			t.Errorf("%s: answer lacks %q", name, tt.text)
		}
	}
	wantStatus(t, b.setUp(" "+strings.ToLower(strings.ReplaceAll(code, "-", " ")), password), http.StatusSeeOther)
	if got := g.SetupCode(); got != "" {
		t.Errorf("code after set-up = %q, want none", got)
	}
	wantStatus(t, b.get("/"), http.StatusOK)

	stranger := g.browser(t)
	token := tokenField.FindStringSubmatch(read(t, stranger.get("/sign-in")))[1]
	r := stranger.send("POST", "/set-up", url.Values{"token": {token}, "code": {code}, "password": {"another long password"}, "again": {"another long password"}}.Encode(), nil)
	if r.StatusCode == http.StatusOK || len(r.Cookies()) > 0 {
		t.Errorf("second set-up with the same code = %d with cookies %v", r.StatusCode, r.Cookies())
	}
	wantStatus(t, stranger.signIn("another long password"), http.StatusUnauthorized)
	wantStatus(t, stranger.signIn(password), http.StatusSeeOther)
}

func TestAccountOutlivesARestart(t *testing.T) {
	g := openPage(t, nil)
	b := g.browser(t)
	wantStatus(t, b.setUp(g.SetupCode(), password), http.StatusSeeOther)
	info, err := os.Stat(filepath.Join(g.dir, "page.json"))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("page.json has mode %o, want 600", mode)
	}
	data, err := os.ReadFile(filepath.Join(g.dir, "page.json"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte(password)) {
		t.Error("page.json holds the password itself")
	}
	entries, err := os.ReadDir(g.dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("state directory holds %v (%v), want page.json only", entries, err)
	}

	again := openPage(t, func(o *webui.Options) { o.StateDir = g.dir })
	if code := again.SetupCode(); code != "" {
		t.Errorf("code after a restart = %q, want none", code)
	}
	b.handler = again.handler
	if to := b.get("/").Header.Get("Location"); to != "/sign-in" {
		t.Errorf("a session of the earlier life leads to %q, want /sign-in", to)
	}
	wantStatus(t, b.signIn(password), http.StatusSeeOther)
	wantStatus(t, b.get("/"), http.StatusOK)
}

func TestEachStartHasItsOwnCode(t *testing.T) {
	if a, b := openPage(t, nil).SetupCode(), openPage(t, nil).SetupCode(); a == b {
		t.Errorf("two starts have the same code %q", a)
	}
}

func TestDamagedAccountIsAnErrorAndNoReset(t *testing.T) {
	hash := `"password":"$2a$10$abcdefghijklmnopqrstuuOkmgn3hPVHAn3ipYUiHqSdxmwL9qKNa"`
	for name, content := range map[string]string{
		"empty":             "",
		"cut off":           `{"version":1,` + hash,
		"not JSON":          "\x00\x00\x00\x00",
		"without password":  `{"version":1}`,
		"unknown key":       `{"version":1,` + hash + `,"admin":true}`,
		"of a later format": `{"version":2,` + hash + `}`,
		"with more behind":  `{"version":1,` + hash + `} {}`,
	} {
		t.Run(name, func(t *testing.T) {
			src := &source{changed: make(chan struct{})}
			o := options(t, src, &bytes.Buffer{})
			file := filepath.Join(o.StateDir, "page.json")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			server, err := webui.Open(o)
			if err == nil {
				_ = server.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), file+" is damaged") || !strings.Contains(err.Error(), "remove it") {
				t.Errorf("error %q does not say what is damaged and what to do", err)
			}
			if got, _ := os.ReadFile(file); string(got) != content {
				t.Error("the damaged file was changed")
			}
		})
	}
}

func TestTakenPortIsSaidClearly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	o := options(t, &source{changed: make(chan struct{})}, &bytes.Buffer{})
	o.Config.Listen = l.Addr().String()
	_, err = webui.Open(o)
	if err == nil || !strings.Contains(err.Error(), "is taken by another program") {
		t.Errorf("Open = %v, want an error that says that the port is taken", err)
	}
}

// TestGuessingIsSlowedDown runs in a bubble, where the tries take no time.
func TestGuessingIsSlowedDown(t *testing.T) { synctest.Test(t, guessingIsSlowedDown) }

func guessingIsSlowedDown(t *testing.T) {
	g, _ := ready(t, nil)
	b := g.browser(t)
	refused, limited := 0, 0
	for range 20 {
		switch r := b.signIn("not the password"); r.StatusCode {
		case http.StatusUnauthorized:
			refused++
		case http.StatusTooManyRequests:
			limited++
			if r.Header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		default:
			t.Errorf("status %d", r.StatusCode)
		}
	}
	if refused != 5 || limited != 15 {
		t.Errorf("20 wrong tries at once: %d refused, %d limited; want 5 and 15", refused, limited)
	}
	wantStatus(t, b.signIn(password), http.StatusTooManyRequests)
	// A form that is not to be had any more is no way to have the tries forgotten.
	token := tokenField.FindStringSubmatch(read(t, b.get("/sign-in")))[1]
	b.send("POST", "/set-up", "token="+token, nil)
	wantStatus(t, b.signIn(password), http.StatusTooManyRequests)
	other := g.browser(t)
	other.remote = "192.0.2.77:1"
	wantStatus(t, other.signIn(password), http.StatusSeeOther)

	time.Sleep(time.Second)
	wantStatus(t, b.signIn("not the password"), http.StatusUnauthorized)
	time.Sleep(time.Second)
	wantStatus(t, b.signIn(password), http.StatusTooManyRequests) // the second wait is longer
	time.Sleep(time.Second)
	wantStatus(t, b.signIn(password), http.StatusSeeOther)

	if lines := strings.Count(g.log.String(), "wrong entr"); lines != 2 {
		t.Errorf("%d lines in the log about wrong tries, want 2 (the first, and the slowing down):\n%s", lines, g.log)
	}
	if strings.Contains(g.log.String(), "not the password") || strings.Contains(g.log.String(), password) {
		t.Error("the log shows a password")
	}
}

// TestManyAddressesAreSlowedDownTogether runs in a bubble, where the tries take no time.
func TestManyAddressesAreSlowedDownTogether(t *testing.T) {
	synctest.Test(t, manyAddressesAreSlowedDownTogether)
}

func manyAddressesAreSlowedDownTogether(t *testing.T) {
	g := openPage(t, nil)
	limited := 0
	for i := range 60 {
		b := g.browser(t)
		b.remote = net.JoinHostPort(net.IPv4(198, 51, 100, byte(i)).String(), "1")
		if b.setUp("AAAA-AAAA", password).StatusCode == http.StatusTooManyRequests {
			limited++
		}
	}
	if limited != 30 {
		t.Errorf("60 tries from 60 addresses at once: %d limited, want 30", limited)
	}
}

// TestOneIPv6NetworkIsOneAddress runs in a bubble, where the tries take no time.
func TestOneIPv6NetworkIsOneAddress(t *testing.T) { synctest.Test(t, oneIPv6NetworkIsOneAddress) }

func oneIPv6NetworkIsOneAddress(t *testing.T) {
	g := openPage(t, nil)
	limited := 0
	for i := range 12 {
		b := g.browser(t)
		b.remote = net.JoinHostPort("2001:db8::"+string("0123456789abcdef"[i]), "1")
		if b.setUp("AAAA-AAAA", password).StatusCode == http.StatusTooManyRequests {
			limited++
		}
	}
	if limited != 7 {
		t.Errorf("12 tries from one network at once: %d limited, want 7", limited)
	}
}

func TestFormsNeedTheirToken(t *testing.T) {
	g, b := ready(t, nil)
	fields := func(token string) string { return url.Values{"token": {token}, "password": {password}}.Encode() }
	stranger := g.browser(t)
	own := tokenField.FindStringSubmatch(read(t, stranger.get("/sign-in")))[1]
	foreign := tokenField.FindStringSubmatch(read(t, g.browser(t).get("/sign-in")))[1]
	wantStatus(t, stranger.send("POST", "/sign-in", fields(""), nil), http.StatusForbidden)
	wantStatus(t, stranger.send("POST", "/sign-in", fields(foreign), nil), http.StatusForbidden)
	wantStatus(t, g.browser(t).send("POST", "/sign-in", fields(own), nil), http.StatusForbidden)
	wantStatus(t, stranger.send("POST", "/sign-in?token="+own, fields(""), nil), http.StatusForbidden)
	wantStatus(t, stranger.send("POST", "/sign-in", fields(own), nil), http.StatusSeeOther)

	wantStatus(t, b.send("POST", "/sign-out", fields(own), nil), http.StatusForbidden)
	wantStatus(t, b.get("/"), http.StatusOK)
	wantStatus(t, b.send("GET", "/sign-out", "", nil), http.StatusMethodNotAllowed)
	wantStatus(t, b.post("/", "/sign-out", url.Values{}), http.StatusSeeOther)
	wantStatus(t, b.get("/"), http.StatusSeeOther)
}

func TestOtherNamesAndOtherSitesAreRefused(t *testing.T) {
	g, b := ready(t, nil)
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	short, _, _ := strings.Cut(hostname, ".")
	for name, want := range map[string]int{
		"192.0.2.1": 200, "192.0.2.1:8080": 200, "[2001:db8::1]:8080": 200, "[::1]": 200, "localhost:8080": 200, "LOCALHOST": 200,
		hostname: 200, short + ".local:8080": 200, "gateway.plant.example": 200, "Gateway.Plant.Example.:8080": 200,
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "192.0.2.1.evil.example": 421, "": 421,
		"gateway.plant.example.evil.example": 421, "1.2.3": 421,
	} {
		for _, path := range []string{"/healthz", "/sign-in", "/assets/page.js"} {
			r := g.browser(t).send("GET", path, "", func(r *http.Request) { r.Host = name })
			if r.StatusCode != want {
				t.Errorf("GET %s with Host %q = %d, want %d", path, name, r.StatusCode, want)
			}
		}
	}
	for name, change := range map[string]func(*http.Request){
		"another origin":       func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"another port":         func(r *http.Request) { r.Header.Set("Origin", "http://192.0.2.1:9") },
		"a sandboxed frame":    func(r *http.Request) { r.Header.Set("Origin", "null") },
		"a cross-site request": func(r *http.Request) { r.Header.Del("Origin"); r.Header.Set("Sec-Fetch-Site", "cross-site") },
	} {
		token := tokenField.FindStringSubmatch(read(t, b.get("/")))[1]
		r := b.send("POST", "/sign-out", "token="+token, change)
		if r.StatusCode != http.StatusForbidden {
			t.Errorf("sign-out by %s = %d, want 403", name, r.StatusCode)
		}
	}
	r := b.send("GET", "/events", "", func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") })
	wantStatus(t, r, http.StatusForbidden)
	wantStatus(t, b.get("/"), http.StatusOK)
}

func TestCookiesAreKeptFromScriptsAndOtherSites(t *testing.T) {
	g, b := ready(t, nil)
	check := func(r *http.Response, secure bool) {
		t.Helper()
		if len(r.Cookies()) == 0 {
			t.Error("no cookie")
		}
		for _, c := range r.Cookies() {
			if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Secure != secure || c.Domain != "" {
				t.Errorf("cookie %v: want HttpOnly, SameSite=Strict, Path=/, Secure=%v", c, secure)
			}
			if c.MaxAge >= 0 && len(c.Value) != 64 {
				t.Errorf("cookie %s has %d characters, want 64 (256 bits)", c.Name, len(c.Value))
			}
		}
	}
	check(g.browser(t).get("/sign-in"), false)
	u := &url.URL{Scheme: "http", Host: host, Path: "/"}
	before := session(b.jar.Cookies(u))

	// A new sign-in gets a new id and ends the session that the browser had.
	other := g.browser(t)
	other.jar.SetCookies(u, []*http.Cookie{{Name: "edge_session", Value: strings.Repeat("a", 64)}})
	r := other.signIn(password)
	check(r, false)
	if got := session(r.Cookies()); got == strings.Repeat("a", 64) || got == before || got == "" {
		t.Errorf("session id after sign-in = %q, want a new one", got)
	}

	tls := httptest.NewTLSServer(g.handler)
	defer tls.Close()
	overTLS, err := tls.Client().Get(tls.URL + "/sign-in")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = overTLS.Body.Close() }()
	check(overTLS, true)
}

func session(cookies []*http.Cookie) string {
	for _, c := range cookies {
		if c.Name == "edge_session" {
			return c.Value
		}
	}
	return ""
}

func TestMetricsAreForThisMachineAndWhoHasSignedIn(t *testing.T) {
	g, b := ready(t, nil)
	scrape := func(b *browser, remote string) int {
		b.remote = remote
		return b.get("/metrics").StatusCode
	}
	if got := scrape(b, "192.0.2.10:1"); got != http.StatusOK {
		t.Errorf("signed in: %d, want 200", got)
	}
	for remote, want := range map[string]int{"192.0.2.10:1": 401, "127.0.0.1:1": 200, "[::1]:1": 200, "[::ffff:127.0.0.1]:1": 200, "[2001:db8::1]:1": 401} {
		if got := scrape(g.browser(t), remote); got != want {
			t.Errorf("from %s: %d, want %d", remote, got, want)
		}
	}
	forged := g.browser(t).send("GET", "/metrics", "", func(r *http.Request) { r.Header.Set("X-Forwarded-For", "127.0.0.1") })
	wantStatus(t, forged, http.StatusUnauthorized)

	open := openPage(t, func(o *webui.Options) { o.Config.MetricsOpen = true })
	r := open.browser(t).get("/metrics")
	wantStatus(t, r, http.StatusOK)
	if body := read(t, r); !strings.Contains(body, "edge_gateway_build_info") {
		t.Errorf("metrics lack edge_gateway_build_info:\n%s", body)
	}
}

func TestReadyzTellsStrangersNoReason(t *testing.T) {
	broken := io.ErrUnexpectedEOF
	g, b := ready(t, func(o *webui.Options) { o.Ready = func() error { return broken } })
	if r := g.browser(t).get("/readyz"); r.StatusCode != 503 || strings.Contains(read(t, r), broken.Error()) {
		t.Errorf("stranger: %d, want 503 without the reason", r.StatusCode)
	}
	if r := b.get("/readyz"); r.StatusCode != 503 || !strings.Contains(read(t, r), broken.Error()) {
		t.Errorf("signed in: %d, want 503 with the reason", r.StatusCode)
	}
	wantStatus(t, g.browser(t).get("/healthz"), http.StatusOK)
}

func TestLargeFormIsRefused(t *testing.T) {
	g := openPage(t, nil)
	r := g.browser(t).send("POST", "/set-up", "code="+strings.Repeat("x", 1<<20), nil)
	wantStatus(t, r, http.StatusRequestEntityTooLarge)
}

func TestRunStopsWithOpenStreams(t *testing.T) {
	g, b := ready(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+g.Addr().String()+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(&http.Cookie{Name: "edge_session", Value: session(b.jar.Cookies(&url.URL{Scheme: "http", Host: host, Path: "/"}))})
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	wantStatus(t, resp, http.StatusOK)
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run did not return")
	}
}
