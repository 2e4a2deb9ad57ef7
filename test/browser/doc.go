// Package browser goes through the gateway's page with a real browser: first-run set-up, wrong entries, a value that
// moves, two widths, light and dark. It is a module of its own, so that the gateway does not depend on what drives the
// browser.
//
//	plant (invented, moves) ──▶ control.Monitor ──▶ webui ──▶ Chromium
//
// With UPDATE_SCREENSHOTS=1 the test renews docs/page-1280.png and docs/page-390.png.
package browser
