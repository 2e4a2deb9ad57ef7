package webui

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"edgegateway/control"
)

const (
	maxConns   = 64
	maxViewers = 16 // open event streams
	maxBody    = 16 << 10
	maxHeader  = 16 << 10

	shutdownGrace = time.Second
)

// Options is what Open needs. Every field but Ready is required.
type Options struct {
	Config   Config
	StateDir string // page.json is kept here
	// Status returns the newest picture and Changed a channel that is closed with the next one: those of
	// control.Monitor.
	Status  func() control.Status
	Changed func() <-chan struct{}
	// Ready tells why the gateway is not ready, for /readyz. Nil means that it always is.
	Ready    func() error
	Gatherer prometheus.Gatherer
	Log      *slog.Logger
}

// Server is the page.
type Server struct {
	Options
	listener net.Listener
	assets   assets
	account  *account
	sessions *sessions
	attempts *attempts
	tokens   tokens
	hosts    hosts
	board    *board
	viewers  chan struct{} // holds one token per open event stream
	metrics  http.Handler
	proving  sync.Mutex // held while a password or a code is checked: one at a time, however many ask
}

// Open reads the account from the state directory and binds the port. Run serves; without Run, Close gives the port
// back.
func Open(o Options) (*Server, error) {
	assets, err := loadAssets()
	if err != nil {
		return nil, err
	}
	account, err := openAccount(o.StateDir)
	if err != nil {
		return nil, err
	}
	listener, err := listen(o.Config.Listen)
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "localhost"
	}
	return &Server{
		Options:  o,
		listener: limitConns(listener, maxConns),
		assets:   assets,
		account:  account,
		sessions: newSessions(o.Config.SessionIdle, o.Config.SessionMax),
		attempts: newAttempts(),
		tokens:   newTokens(),
		hosts:    allowHosts(hostname, o.Config.Hosts),
		board:    &board{},
		viewers:  make(chan struct{}, maxViewers),
		metrics: promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{
			ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
		}),
	}, nil
}

// Addr returns the address that the page listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// SetupCode returns the code that opens the set-up page, or "" once a password is set. It is new with each start; the
// caller shows it to who has access to the machine.
func (s *Server) SetupCode() string { return s.account.setupCode() }

// Close gives the port back.
func (s *Server) Close() error { return s.listener.Close() }

// Run serves the page until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends the event streams too
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve page on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err := server.Shutdown(grace)
	if err != nil {
		err = server.Close() // who is slower than the grace loses the connection
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// Handler returns the page without its listener.
func (s *Server) Handler() http.Handler {
	r := chi.NewRouter()
	r.Use(s.guard, middleware.GetHead)

	// Open to everybody who reaches the port.
	r.Get("/assets/{name}", s.adapt(s.asset))
	r.Get("/favicon.ico", s.adapt(s.favicon))
	r.Get("/healthz", s.adapt(s.healthz))
	r.Get("/readyz", s.adapt(s.readyz))
	r.Get("/metrics", s.adapt(s.showMetrics))
	r.Get("/set-up", s.adapt(s.showSetup))
	r.Post("/set-up", s.adapt(s.setUp))
	r.Get("/sign-in", s.adapt(s.showSignIn))
	r.Post("/sign-in", s.adapt(s.signIn))

	// Everything else asks for a session first, also what does not exist.
	r.Get("/", s.adapt(s.signedIn(s.showStatus)))
	r.Get("/events", s.adapt(s.signedIn(s.events)))
	r.Post("/sign-out", s.adapt(s.signedIn(s.signOut)))
	r.NotFound(s.adapt(s.signedIn(notFound)))
	r.MethodNotAllowed(s.adapt(s.signedIn(methodNotAllowed)))
	return r
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeText(w, http.StatusOK, "alive\n")
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	var err error
	if s.Ready != nil {
		err = s.Ready()
	}
	switch {
	case err == nil:
		return writeText(w, http.StatusOK, "ready\n")
	case s.trusted(r): // the reason may name brokers and directories
		return writeText(w, http.StatusServiceUnavailable, "not ready: "+err.Error()+"\n")
	default:
		return writeText(w, http.StatusServiceUnavailable, "not ready\n")
	}
}

func (s *Server) showMetrics(w http.ResponseWriter, r *http.Request) error {
	if !s.Config.MetricsOpen && !s.trusted(r) {
		return &httpError{http.StatusUnauthorized, "Metrics are open to this machine and to who has signed in (metrics_open changes that)."}
	}
	s.metrics.ServeHTTP(w, r)
	return nil
}

// trusted tells whether the request comes from this machine or from somebody who has signed in.
func (s *Server) trusted(r *http.Request) bool {
	addr := clientAddr(r)
	if addr.IsLoopback() {
		return true
	}
	_, ok := s.session(r)
	return ok
}

func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address) //nolint:noctx // binding a port takes no time
	if err != nil {
		if isInUse(err) {
			return nil, fmt.Errorf("page: %s is taken by another program (set page.listen to a free port): %w", address, err)
		}
		return nil, fmt.Errorf("page: cannot listen on %s: %w", address, err)
	}
	return l, nil
}

// limitedListener accepts while there is room; who comes later waits in the kernel's queue.
type limitedListener struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func limitConns(l net.Listener, n int) net.Listener {
	return &limitedListener{Listener: l, room: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &limitedConn{Conn: c, free: sync.OnceFunc(func() { <-l.room })}, nil
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	err := l.Listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

type limitedConn struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
