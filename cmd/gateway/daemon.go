package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/control"
	"edgegateway/device"
	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
	"edgegateway/webui"
)

// gateway is the running daemon. Its parts are made by newGateway and started in run, in the order in which a message meets
// them from right to left, so that nothing is taken that has nowhere to go.
type gateway struct {
	config   *Config
	log      *slog.Logger
	started  time.Time
	epochs   *epochFile
	pipeline *pipeline.Pipeline
	lanes    []*laneRun
	devices  []*deviceRun
	links    []*linkRun
	again    []*linkRun                 // send the dead letters of links again; each runs once it is needed
	limits   map[string]*uplink.Limiter // by uplink; nil ones bound nothing
	monitor  *control.Monitor

	page atomic.Pointer[webui.Server]

	lettersMu sync.Mutex // one command at a time works on the dead letters
	pauses    *pauseFile
	secrets   *credentials
}

// deviceRun is one device: running, or the reason why it does not.
type deviceRun struct {
	name   string
	driver string
	device.Driver
	env device.Env

	mu      sync.Mutex // guards the rest
	running device.Device
	err     error
	since   time.Time
	panics  uint64
}

// linkRun is one uplink of one stream.
type linkRun struct {
	uplink, driver, stream string
	route                  string // the stream whose dead letters it sends again; empty for all others
	uplink.Driver
	lane    *laneRun
	log     *slog.Logger
	promise uplink.Promise
	claims  uplink.Claims  // outlives the log, which may be opened again
	figures uplink.Figures // likewise

	mu     sync.Mutex // guards the two below; nil until the lane is open
	cursor *wal.Cursor
	runner carrier
}

func newGateway(c *Config, log *slog.Logger) (*gateway, error) {
	for _, dir := range []string{"lanes", "choices", "quota"} {
		if err := os.MkdirAll(filepath.Join(c.Gateway.StateDir, dir), 0o750); err != nil {
			log.Error("state folder cannot be made, nothing is stored", "err", err)
		}
	}
	epochs, err := openEpochs(c.Gateway.StateDir)
	if err != nil {
		return nil, err
	}
	g := &gateway{config: c, log: log, started: time.Now(), epochs: epochs, pauses: openPauses(c.Gateway.StateDir, log)}
	g.limiters()
	var streams []pipeline.Stream
	laneNames := slices.Sorted(maps.Keys(c.Lanes))
	for _, name := range laneNames {
		g.lanes = append(g.lanes, &laneRun{
			name: name, dir: filepath.Join(c.Gateway.StateDir, "lanes", name), config: c.Lanes[name], log: log.With("lane", name),
			quotas: map[string]int64{}, gaps: map[string]bool{},
		})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Streams)) {
		s := c.Streams[name]
		stream := pipeline.Stream{Name: name, Lane: s.Lane, Steps: s.Processors}
		for _, from := range s.From {
			sel, err := pipeline.ParseSelector(from)
			if err != nil {
				return nil, err
			}
			stream.From = append(stream.From, sel)
		}
		streams = append(streams, stream)
		lane := g.lane(s.Lane)
		if s.Quota > 0 {
			lane.quotas[name] = int64(s.Quota)
		}
		lane.gaps[name] = s.GapRecords
		for _, u := range s.Uplinks {
			k := &linkRun{
				uplink: u, driver: c.Uplinks[u].Driver, stream: name, Driver: c.Uplinks[u].Settings.(uplink.Driver),
				lane: g.lane(s.Lane), log: log.With("uplink", u, "stream", name), promise: s.promise(),
			}
			g.links = append(g.links, k)
			again := againStream(name, u)
			g.again = append(g.again, &linkRun{
				uplink: u, driver: k.driver, stream: again, route: name, Driver: k.Driver,
				lane: k.lane, log: log.With("uplink", u, "stream", again), promise: k.promise,
			})
		}
	}
	if g.pipeline, err = pipeline.New(streams, laneNames, defaultLane); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Devices)) {
		component := c.Devices[name]
		g.devices = append(g.devices, &deviceRun{
			name: name, driver: component.Driver, Driver: component.Settings.(device.Driver), since: g.started,
			env: device.Env{Name: name, Log: log.With("device", name), Sink: g.pipeline.Source(name)},
		})
	}
	g.secrets = newCredentials(c.Uplinks, log, g.reconnect)
	g.monitor = control.NewMonitor(g.gather)
	return g, nil
}

func (g *gateway) lane(name string) *laneRun {
	i := slices.IndexFunc(g.lanes, func(l *laneRun) bool { return l.name == name })
	return g.lanes[i]
}

// run works until ctx ends. It returns an error only when a lane's directory belongs to another process: two gateways on one
// state folder are a mistake that no waiting mends. Everything else that fails is tried again while the rest works.
func (g *gateway) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Stopping goes from left to right: first the sources, then the uplinks, which may still get outcomes, then the log.
	linkCtx, stopLinks := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLinks()
	endCtx, stopRest := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRest()

	var sources, links, rest sync.WaitGroup
	rest.Go(func() { g.servePage(endCtx) })
	rest.Go(func() { g.secrets.watch(endCtx) })
	for _, l := range g.lanes {
		l.doubts(time.Now()) // said before the first commit
		// A lane that opens at once is there before the first device; one that does not must not hold up the others.
		var a *attached
		if err := l.open(g.epochs); err == nil {
			a = g.attach(linkCtx, l)
		} else if errors.Is(err, wal.ErrLocked) {
			stop(fmt.Errorf("lane %s: %w", l.name, err))
			break
		}
		links.Go(func() {
			if err := g.keepLane(ctx, linkCtx, l, a); err != nil {
				stop(err)
			}
		})
	}
	if ctx.Err() == nil {
		for _, d := range g.devices {
			sources.Go(func() { d.run(ctx) })
		}
		rest.Go(func() {
			if err := g.monitor.Run(endCtx); err != nil {
				g.log.Error("monitor ended", "err", err)
			}
		})
		rest.Go(func() { g.watchdog(endCtx) })
		rest.Go(func() { g.serveSocket(endCtx) })
		g.log.Info("gateway started", "gateway", g.config.Gateway.ID, "version", version(), "devices", len(g.devices), "streams", len(g.config.Streams))
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	}
	<-ctx.Done()
	cause := context.Cause(ctx)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	sources.Wait()
	stopLinks()
	links.Wait()
	for _, l := range g.limits {
		l.Close()
	}
	stopRest()
	rest.Wait()
	for _, l := range g.lanes {
		if log, _ := l.opened(); log != nil {
			if err := log.Close(); err != nil {
				g.log.Error("lane closed with an error", "lane", l.name, "err", err)
			}
		}
	}
	if errors.Is(cause, context.Canceled) {
		g.log.Info("gateway stopped")
		return nil
	}
	return cause
}

// run opens the device and runs it, again and again until ctx ends: a port that is taken now may be free in a minute, and a
// panic in one device must not end the others.
func (d *deviceRun) run(ctx context.Context) {
	pause := time.Second
	for ctx.Err() == nil {
		began := time.Now()
		err := d.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		d.mu.Lock()
		repeated := d.err != nil && d.err.Error() == err.Error()
		d.running, d.err, d.since = nil, err, began
		d.mu.Unlock()
		if !repeated {
			d.env.Log.Error("device does not run, will try again", "err", err)
		}
		if time.Since(began) > time.Minute {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 30*time.Second)
	}
}

func (d *deviceRun) runOnce(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			d.mu.Lock()
			d.panics++
			d.mu.Unlock()
			err = fmt.Errorf("internal error: %v", p)
			d.env.Log.Error("device panicked", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	running, err := d.Open(d.env)
	if err != nil {
		return err
	}
	d.mu.Lock()
	failed := d.err != nil
	d.running, d.err = running, nil
	d.mu.Unlock()
	if failed {
		d.env.Log.Info("device runs again")
	}
	if err := running.Run(ctx); err != nil {
		return err
	}
	return errors.New("ended by itself")
}

// servePage opens the page and serves it until ctx ends. Data flows whether or not there is a page.
func (g *gateway) servePage(ctx context.Context) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(control.NewCollector(g.monitor.Status))
	said := ""
	for {
		server, err := webui.Open(webui.Options{
			Config: g.config.Page, StateDir: g.config.Gateway.StateDir, Status: g.monitor.Status, Changed: g.monitor.Changed,
			Ready: g.ready, Gatherer: registry, Log: g.log.With("part", "page"),
		})
		if err == nil {
			g.page.Store(server)
			if code := server.SetupCode(); code != "" {
				g.log.Info("page waits for its first visitor", "url", "http://"+server.Addr().String(), "setup_code", code)
			} else {
				g.log.Info("page is served", "url", "http://"+server.Addr().String())
			}
			if err = server.Run(ctx); err == nil {
				return
			}
		}
		if said != err.Error() {
			said = err.Error()
			g.log.Error("page is not served, will try again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
	}
}

// ready says why the gateway cannot take and store messages now; nil if it can.
func (g *gateway) ready() error {
	for _, l := range g.lanes {
		log, err := l.opened()
		if log != nil {
			err = log.Err()
		}
		if err != nil {
			return fmt.Errorf("lane %s: %w", l.name, err)
		}
		if log == nil {
			return fmt.Errorf("lane %s is not open yet", l.name)
		}
	}
	return nil
}

// watchdog tells systemd that the gateway lives for as long as it really does: a picture of all parts is taken each second,
// which needs every part's lock, so a part that hangs ends the pictures and with them the pings.
func (g *gateway) watchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval <= 0 {
		return
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if age := time.Since(g.monitor.Status().Time); age < interval/2 {
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		} else {
			g.log.Error("a part of the gateway hangs", "for", age)
		}
	}
}
