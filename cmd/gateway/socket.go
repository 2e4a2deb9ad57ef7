package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"edgegateway/uplink"
)

// The running gateway takes commands at a unix socket in its state folder, as HTTP with JSON. Who may open the socket, that
// is root and the group of the gateway's user, may give them.

const (
	socketName    = "control.sock"
	socketRequest = 64 << 10         // bytes of a request
	socketReply   = 32 << 20         // bytes of a reply: every lane may have a megabyte of dead letters, as JSON
	socketTimeout = 30 * time.Second // of a request, with all that it waits for
	socketGoodbye = 2 * time.Second  // for what is asked while the gateway stops
)

// serveSocket serves the control socket until ctx ends. Data flows whether or not there is one.
func (g *gateway) serveSocket(ctx context.Context) {
	path := filepath.Join(g.config.Gateway.StateDir, socketName)
	l, err := listenSocket(ctx, path)
	if err != nil {
		g.log.Error("control socket cannot be served, commands do not reach the gateway", "err", err)
		return
	}
	server := &http.Server{
		Handler: g.socketHandler(), ReadTimeout: socketTimeout, WriteTimeout: 2 * socketTimeout, IdleTimeout: socketTimeout, MaxHeaderBytes: 8 << 10,
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), socketGoodbye)
		defer cancel()
		_ = errors.Join(server.Shutdown(last), server.Close()) // what does not end now ends with the logs
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		g.log.Error("control socket ended", "err", err)
	}
	if !stop() {
		<-stopped
	}
}

// listenSocket makes the socket. One that a killed gateway has left is replaced, that of a running gateway is not.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > len(syscall.RawSockaddrUnix{}.Path)-1 {
		return nil, fmt.Errorf("%s: the path is too long for a socket (want at most %d bytes; see state_dir)", path, len(syscall.RawSockaddrUnix{}.Path)-1)
	}
	var d net.Dialer
	switch conn, err := d.DialContext(ctx, "unix", path); {
	case err == nil:
		return nil, errors.Join(fmt.Errorf("%s: another gateway serves it", path), conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	var c net.ListenConfig
	l, err := c.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// socketHandler is the table of what the socket takes.
func (g *gateway) socketHandler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), socketTimeout)
			defer cancel()
			r = r.WithContext(ctx)
			r.Body = http.MaxBytesReader(w, r.Body, socketRequest)
			value, err := answer(r)
			if err != nil {
				w.WriteHeader(http.StatusUnprocessableEntity)
				value = socketError{err.Error()}
			}
			_ = json.NewEncoder(w).Encode(value) // the command has gone away
		})
	}
	handle("GET /v1/status", func(*http.Request) (any, error) { return g.statusInfo(), nil })
	handle("GET /v1/deadletters", func(r *http.Request) (any, error) {
		list := g.listLetters(r.FormValue("uplink"), r.FormValue("stream"))
		if len(list.Letters) > 0 {
			return list, nil
		}
		return list, g.isThere(r.FormValue("uplink"), r.FormValue("stream"))
	})
	handle("GET /v1/deadletter", func(r *http.Request) (any, error) { return g.showLetter(r.FormValue("id")) })
	handle("POST /v1/deadletters/resend", func(r *http.Request) (any, error) {
		var c letterChoice
		if err := readBody(r, &c); err != nil {
			return nil, err
		}
		return g.resendLetters(r.Context(), &c)
	})
	handle("POST /v1/deadletters/purge", func(r *http.Request) (any, error) {
		var c letterChoice
		if err := readBody(r, &c); err != nil {
			return nil, err
		}
		return g.purgeLetters(r.Context(), &c)
	})
	handle("POST /v1/uplinks/{uplink}/pause", func(r *http.Request) (any, error) { return g.pause(r.PathValue("uplink"), true) })
	handle("POST /v1/uplinks/{uplink}/resume", func(r *http.Request) (any, error) { return g.pause(r.PathValue("uplink"), false) })
	handle("POST /v1/uplinks/{uplink}/release", func(r *http.Request) (any, error) {
		var q releaseRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return g.release(r.PathValue("uplink"), &q)
	})
	handle("POST /v1/uplinks/{uplink}/choose", func(r *http.Request) (any, error) {
		var q chooseRequest
		if err := readBody(r, &q); err != nil {
			return nil, err
		}
		return done{}, g.choose(r.PathValue("uplink"), q.Stream, uplink.Choice(q.Choice))
	})
	return mux
}

// done is the answer to what has none of its own.
type done struct{}

// socketError is the answer to what could not be done.
type socketError struct {
	Error string `json:"error"`
}

func readBody(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("the request cannot be read: %w (is the command of the same version as the gateway?)", err)
	}
	return nil
}

// errNotRunning says that there is no gateway to give a command to.
var errNotRunning = errors.New("the gateway does not run")

// askGateway gives the gateway that runs on a state folder a command and reads its answer. Its error is errNotRunning, wrapped,
// where there is none.
func askGateway(ctx context.Context, stateDir, method, path string, request, answer any) error {
	socket := filepath.Join(stateDir, socketName)
	client := http.Client{Timeout: 2 * socketTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://gateway"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nobody answers at %s", errNotRunning, socket)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s may be opened by root and the gateway's group only (want sudo, or membership of the group edge-gateway)", socket)
	case err != nil:
		return fmt.Errorf("ask the gateway: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // it was read, or is of no use
	text, err := io.ReadAll(io.LimitReader(response.Body, socketReply))
	if err != nil {
		return fmt.Errorf("read the gateway's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var refused socketError
		if err := json.Unmarshal(text, &refused); err != nil || refused.Error == "" {
			return fmt.Errorf("the gateway does not know this command: %s (is it of an older version?)", response.Status)
		}
		return errors.New(refused.Error)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the gateway's answer cannot be read: %w", err)
	}
	return nil
}
