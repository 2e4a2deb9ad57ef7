// Package webui serves the gateway's page: first-run set-up, sign-in and one status page that keeps itself up to date.
//
//	request ─▶ guard ──────────────────▶ session ─▶ handler ─▶ template
//	           Host, Origin, CSRF,       sign-in              │
//	           limits, headers           or 303/401           └─ an error goes to the one adapter, which answers and logs
//
//	control.Status ─▶ board, renders each fragment once a picture ─▶ events, one SSE stream per viewer, sends what changed
//
// The page only reads. Everything it needs is embedded: no build step, no CDN, no request to anybody else.
package webui
