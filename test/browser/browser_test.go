package browser_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const patience = time.Minute // many tests may share the machine

// tab is one tab of a browser of its own, and what went wrong in it.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex // guards the field below
	troubles []string
}

// openTab starts a browser with a fresh profile. At the end of the test everything that the page did wrong fails it: a
// message in the console, a violation of the content policy, a request to anybody but the gateway.
func openTab(t *testing.T, base string) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("/usr/bin/chromium"),
		chromedp.NoSandbox, // the tests may run as root
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.UserDataDir(t.TempDir()),
	)
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(stop)
	ctx, stopTab := chromedp.NewContext(allocator, chromedp.WithErrorf(t.Logf))
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("close the browser: %v", err)
		}
		stopTab()
	})
	b := &tab{t: t, ctx: ctx, base: base}
	if err := chromedp.Listen(ctx, b.note); err != nil {
		t.Fatalf("start the browser (test/setup.sh apt installs it): %v", err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *tab) note(event any) {
	var trouble string
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		trouble = fmt.Sprintf("console %s: %+v", e.Type, e.Args)
	case *runtime.EventExceptionThrown:
		trouble = fmt.Sprintf("exception: %+v", e.ExceptionDetails)
	case *log.EventEntryAdded:
		// The browser reports the refusals that this test provokes on purpose.
		if e.Entry.Source == log.EntrySourceNetwork && strings.HasPrefix(e.Entry.Text, "Failed to load resource: the server responded with a status of 4") &&
			(strings.HasSuffix(e.Entry.URL, "/set-up") || strings.HasSuffix(e.Entry.URL, "/sign-in")) {
			return
		}
		trouble = fmt.Sprintf("log %s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" && "http://"+u.Host != b.base {
			trouble = "request to " + e.Request.URL
		}
	}
	if trouble != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.troubles = append(b.troubles, trouble)
	}
}

// wantNoTrouble reports what the page did wrong since the last call.
func (b *tab) wantNoTrouble() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, trouble := range b.troubles {
		b.t.Errorf("the browser complains: %s", trouble)
	}
	b.troubles = nil
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

// enter fills in the form, sends it and waits for the next page.
func (b *tab) enter(fields map[string]string) {
	b.t.Helper()
	// Who is faster than the browser takes the focus away from the field that asks for it, and the browser complains.
	b.until("the focus where the page wants it", `!document.querySelector("[autofocus]") || document.activeElement.autofocus`)
	for name, text := range fields {
		b.do(chromedp.SetValue(chromedp.CSS("#"+name), text))
	}
	b.until("a mark on the old page", "window.old = true")
	b.do(chromedp.Click(chromedp.CSS("form button")))
	b.until("the next page", `!window.old && document.readyState === "complete"`)
}

// until waits for a JavaScript expression to become true.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			body, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
			b.t.Fatalf("the page never came to: %s (last error: %v); it shows:\n%s", what, err, body)
		case <-time.After(50 * time.Millisecond): // in between, the page may be loading
		}
	}
}

// shows waits for a text on the page.
func (b *tab) shows(text string) {
	b.t.Helper()
	b.until(text, fmt.Sprintf("document.body.innerText.includes(%q)", text))
}

func (b *tab) text(selector string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.TextContent(chromedp.CSS(selector)))
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}

// look sets the window's width and the colour scheme, checks that nothing is cut off or scrolls sideways, and takes a
// picture. It returns the picture's path.
func (b *tab) look(name string, width int64, scheme string) string {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		b.t.Fatal(err)
	}
	height := map[int64]int64{390: 844}[width]
	if height == 0 {
		height = 800
	}
	b.do(chromedp.EmulateViewport(width, height))
	overflow, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]string](`
		[...document.querySelectorAll("body *")]
			.filter(e => !e.closest(".away") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
			.map(e => e.outerHTML.slice(0, 120))
			.concat(document.documentElement.scrollWidth > document.documentElement.clientWidth ? ["the page itself"] : [])`))
	if err != nil {
		b.t.Fatal(err)
	}
	if len(overflow) > 0 {
		b.t.Errorf("%s at %d px reaches beyond the window: %q", name, width, overflow)
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	file := filepath.Join(b.t.ArtifactDir(), fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
	if err := os.WriteFile(file, png, 0o600); err != nil {
		b.t.Fatal(err)
	}
	return file
}

// lookAll looks at both widths in both schemes.
func (b *tab) lookAll(name string) {
	b.t.Helper()
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(name, width, scheme)
		}
	}
}
