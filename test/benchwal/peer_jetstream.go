package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// jetStream publishes to a server in the same process, without a network between. It commits each message by itself; 64
// may be on their way, so that it never waits for the next one.
func jetStream() contender {
	return contender{name: "JetStream", how: "file store, sync_interval: always, client in the same process", open: openJetStream}
}

func openJetStream(dir string) (subject, error) {
	s, err := server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: filepath.Join(dir, "store"), SyncAlways: true, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, err
	}
	s.Start()
	stop := func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(10 * time.Second) {
		stop()
		return nil, errors.New("the NATS server does not come up")
	}
	fail := func(err error) (subject, error) { stop(); return nil, fmt.Errorf("jetstream: %w", err) }
	conn, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return fail(err)
	}
	js, err := conn.JetStream(nats.MaxWait(30 * time.Second))
	if err != nil {
		return fail(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "Q", Subjects: []string{"q"}, Storage: nats.FileStorage}); err != nil {
		return fail(err)
	}
	one := func(p []byte) error {
		_, err := js.Publish("q", p)
		return err
	}
	return newGate(64, one, func() error { conn.Close(); stop(); return nil }), nil
}
