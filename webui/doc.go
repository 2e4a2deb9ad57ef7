// Package webui serves the gateway's page: first-run set-up, sign-in and one status page that keeps itself up to date.
//
//	request ─▶ guard ──────────────────▶ session ─▶ handler ─▶ page
//	           Host, Origin, CSRF,       sign-in              │
//	           limits, headers           or 303/401           └─ an error goes to the one adapter, which answers and logs
//
//	control.Status ─▶ view ─▶ board, renders each section once a picture ─▶ events, one SSE stream per viewer, sends what changed
//
// The HTML is written in Go (frame.go, forms_page.go, status_page.go; docs/adr/0009 says why). The page only reads.
// Everything it needs is embedded: no build step, no CDN, no request to anybody else.
package webui
