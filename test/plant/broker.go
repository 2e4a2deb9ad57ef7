package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	farStream  = "PLANT"
	farSubject = "plant.>"
)

// startNATS runs a NATS server with JetStream in this process: the far broker of the demonstration.
func startNATS(port int, dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true, SyncAlways: true,
		JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 64 << 20,
	})
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, fmt.Errorf("the NATS server on port %d does not come up: is the port taken?", port)
	}
	return s, nil
}

func connectJetStream(address string) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect("nats://"+address, nats.MaxReconnects(-1))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}

func makeFarStream(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	return js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: farStream, Subjects: []string{farSubject}, MaxBytes: 512 << 20, Discard: jetstream.DiscardOld, Duplicates: 10 * time.Minute,
	})
}

// watch prints what arrives at the far broker.
func watch(ctx context.Context, address string, print func(topic, line string)) error {
	nc, js, err := connectJetStream(address)
	if err != nil {
		return err
	}
	defer nc.Close()
	consumer, err := js.OrderedConsumer(ctx, farStream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(100))
	if err != nil {
		return err
	}
	defer messages.Stop()
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	for {
		m, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		print(m.Subject(), string(m.Data()))
	}
}

// connectMQTT connects to the gateway's local broker, and again whenever the connection is lost.
func connectMQTT(ctx context.Context, address, user, password string) (*autopaho.ConnectionManager, error) {
	return autopaho.NewConnection(ctx, autopaho.ClientConfig{
		ServerUrls:       []*url.URL{{Scheme: "mqtt", Host: address}},
		KeepAlive:        20,
		ConnectUsername:  user,
		ConnectPassword:  []byte(password),
		ReconnectBackoff: autopaho.NewConstantBackoff(time.Second),
		ConnectTimeout:   5 * time.Second,
		ClientConfig:     paho.ClientConfig{ClientID: fmt.Sprintf("%s-%x", user, rand.Uint32())},
	})
}

// publishLine is the plant's MQTT client: a packaging line that reports once a second.
func publishLine(ctx context.Context, c *autopaho.ConnectionManager) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	packed := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		packed += rand.IntN(4)
		payload, err := json.Marshal(map[string]any{"packed": packed, "speed": 42 + rand.IntN(5), "running": true})
		if err != nil {
			return
		}
		publishCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, _ = c.Publish(publishCtx, &paho.Publish{Topic: "line1/state", QoS: 1, Payload: payload}) // the next second tells again
		cancel()
	}
}
