package webui

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
)

// hosts are the names under which the page may be reached. A name that a stranger's DNS points at this machine is none
// of them, so that a web page on the Internet cannot read ours through the visitor's browser.
type hosts map[string]bool

func allowHosts(hostname string, more []string) hosts {
	short, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	h := hosts{"localhost": true, strings.ToLower(hostname): true, short: true, short + ".local": true}
	for _, name := range more {
		h[strings.ToLower(strings.TrimSuffix(name, "."))] = true
	}
	return h
}

func (h hosts) allow(hostport string) bool {
	host := hostport
	if name, _, err := net.SplitHostPort(hostport); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return h[host]
}

const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// guard stands before every handler: headers for the browser, limits, Host, Origin and cross-site requests.
func (s *Server) guard(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		// Not no-referrer: with it, browsers hide the origin of our own forms from us.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), usb=()")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)

		var refused *httpError
		switch {
		case !s.hosts.allow(r.Host):
			refused = &httpError{http.StatusMisdirectedRequest, "This gateway does not answer under that name. Use its IP address, or add the name to page.hosts in the configuration."}
		case !sameOrigin(r):
			refused = &httpError{http.StatusForbidden, "This request comes from another web page."}
		case crossOrigin.Check(r) != nil:
			refused = &httpError{http.StatusForbidden, "This request comes from another web page."}
		}
		if refused != nil {
			s.adapt(func(http.ResponseWriter, *http.Request) error { return refused })(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin goes beyond http.CrossOriginProtection, which lets reading methods pass.
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// signedIn lets only requests with a session pass. People go to the sign-in; programs get 401.
func (s *Server) signedIn(next handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, ok := s.session(r); ok {
			return next(w, r)
		}
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if reads && strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, s.entrance(), http.StatusSeeOther)
			return nil
		}
		return &httpError{http.StatusUnauthorized, "Sign in first."}
	}
}

// entrance is the page for who has no session.
func (s *Server) entrance() string {
	if s.account.isSetUp() {
		return "/sign-in"
	}
	return "/set-up"
}

// clientAddr returns the address of the connection. Headers of proxies are not believed: anybody can send them.
func clientAddr(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.IPv4Unspecified()
	}
	return ap.Addr().Unmap().WithZone("")
}

func isInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
