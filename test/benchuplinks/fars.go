package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/pulsar"
	"edgegateway/uplink/redis"
)

// far is a broker, our driver for it, and how one sends to it without us.
type far struct {
	name    string
	times   int // how much larger a backlog it takes than the others, for it is so much faster: what is done once at the start is to weigh little
	start   func(rig.TB) *rig.Server
	driver  func(addr, place string) uplink.Driver
	prepare func(ctx context.Context, addr, place string, mode uplink.Delivery) error
	forget  func(ctx context.Context, addr, place string) error
	bare    func(ctx context.Context, addr, place string, records []bare) error
}

// subject is a far side in one delivery.
type subject struct {
	far  far
	mode uplink.Delivery
	addr string
}

func (s subject) name() string { return s.far.name + "-" + string(s.mode) }

func (s subject) promise() uplink.Promise {
	return uplink.Promise{Delivery: s.mode, Order: uplink.OrderStrict}
}

func fars() []far {
	return []far{
		{
			"nats", 1,
			func(tb rig.TB) *rig.Server { return rig.NATS(tb, rig.NATSOptions{}) },
			func(addr, place string) uplink.Driver {
				return &nats.Config{Servers: []string{addr}, Subject: "b." + place + ".{gateway}.{stream}"}
			},
			natsPrepare, natsForget, natsBare,
		},
		{
			"redis", 1,
			func(tb rig.TB) *rig.Server { return rig.Redis(tb, "--appendfsync", "everysec") },
			func(addr, place string) uplink.Driver { return &redis.Config{Address: addr, As: "stream", Key: place} },
			func(context.Context, string, string, uplink.Delivery) error { return nil },
			redisForget, redisBare,
		},
		{
			"kafka", 5,
			func(tb rig.TB) *rig.Server { return rig.Kafka(tb) },
			func(addr, place string) uplink.Driver {
				return &kafka.Config{Brokers: []string{addr}, Topic: place, CursorTopic: place + "-cursors", ClientID: "edge", Compression: "snappy"}
			},
			kafkaPrepare, kafkaForget, kafkaBare,
		},
		{
			"pulsar", 1,
			func(tb rig.TB) *rig.Server { return rig.Pulsar(tb).Server },
			func(addr, place string) uplink.Driver {
				return &pulsar.Config{Servers: []string{addr}, Topic: place + "-{gateway}-{stream}"}
			},
			func(context.Context, string, string, uplink.Delivery) error { return nil }, // a topic comes with its first message
			func(context.Context, string, string) error { return nil },                  // and stays: the broker has room
			pulsarBare,
		},
	}
}

func js(addr string) (*client.Conn, jetstream.JetStream, error) {
	nc, err := client.Connect(addr)
	if err != nil {
		return nil, nil, err
	}
	j, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096))
	return nc, j, err
}

func natsPrepare(ctx context.Context, addr, place string, mode uplink.Delivery) error {
	nc, j, err := js(addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	cfg := jetstream.StreamConfig{Name: place, Subjects: []string{"b." + place + ".>"}}
	cfg.AllowAtomicPublish, cfg.AllowRollup = mode == uplink.ExactlyOnce, mode == uplink.ExactlyOnce
	_, err = j.CreateStream(ctx, cfg)
	return err
}

func natsForget(ctx context.Context, addr, place string) error {
	nc, j, err := js(addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	return j.DeleteStream(ctx, place)
}

// natsBare publishes with a window of messages that are not confirmed yet.
func natsBare(ctx context.Context, addr, place string, records []bare) error {
	nc, j, err := js(addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	for _, r := range records {
		m := &client.Msg{Subject: "b." + place + ".bench.line", Data: r.json, Header: client.Header{"Gw-Topic": {r.topic}}}
		if _, err := j.PublishMsgAsync(m, jetstream.WithMsgID(r.id), jetstream.WithStallWait(10*time.Second)); err != nil {
			return err
		}
	}
	select {
	case <-j.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func redisForget(ctx context.Context, addr, place string) error {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	defer func() { _ = c.Close() }() // it has done its work
	return c.Del(ctx, place).Err()
}

// redisBare adds entries in pipelines of 500.
func redisBare(ctx context.Context, addr, place string, records []bare) error {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	defer func() { _ = c.Close() }() // it has done its work
	for n := 0; n < len(records); n += 500 {
		_, err := c.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for i, r := range records[n:min(n+500, len(records))] {
				p.XAdd(ctx, &goredis.XAddArgs{
					Stream: place, ID: strconv.Itoa(epoch) + "-" + strconv.Itoa(n+i+1), Values: []any{"id", r.id, "topic", r.topic, "payload", r.json},
				})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func kafkaPrepare(ctx context.Context, addr, place string, _ uplink.Delivery) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer c.Close()
	compact := "compact"
	admin := kadm.NewClient(c)
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, place); err != nil {
		return err
	}
	if _, err := admin.CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": &compact}, place+"-cursors"); err != nil {
		return err
	}
	for range 500 { // the broker answers before it knows of the topic itself
		if topics, err := admin.ListTopics(ctx, place); err == nil && topics.Has(place) && topics.Error() == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the topic %s does not come", place)
}

func kafkaForget(ctx context.Context, addr, place string) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = kadm.NewClient(c).DeleteTopics(ctx, place, place+"-cursors")
	return err
}

// kafkaBare produces as the client does by itself: idempotent, as many batches in flight as it likes.
func kafkaBare(ctx context.Context, addr, place string, records []bare) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(place), kgo.ProducerBatchCompression(kgo.SnappyCompression()),
		kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer c.Close()
	var failed error
	for i, r := range records {
		header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
		c.Produce(ctx, &kgo.Record{Key: []byte(r.key), Value: r.json, Headers: []kgo.RecordHeader{
			header("gw-id", gateway), header("gw-stream", stream), header("gw-epoch", strconv.Itoa(epoch)), header("gw-seq", strconv.Itoa(i+1)),
			header("record-id", r.id), header("content-type", "application/json"), header("quality", "good"),
		}}, func(_ *kgo.Record, err error) { failed = errors.Join(failed, err) }) // promises are called one at a time
	}
	return errors.Join(c.Flush(ctx), failed)
}

// pulsarBare sends as the client does by itself: in batches, as many on their way as its queue holds.
func pulsarBare(ctx context.Context, addr, place string, records []bare) error {
	c, err := pulsarclient.NewClient(pulsarclient.ClientOptions{URL: "pulsar://" + addr, Logger: pulsarlog.DefaultNopLogger()})
	if err != nil {
		return err
	}
	defer c.Close()
	producer, err := c.CreateProducer(pulsarclient.ProducerOptions{Topic: place + "-bare"})
	if err != nil {
		return err
	}
	defer producer.Close()
	var failed error
	for _, r := range records {
		m := &pulsarclient.ProducerMessage{Payload: r.json, Key: r.key, Properties: map[string]string{"gw-id": r.id}}
		producer.SendAsync(ctx, m, func(_ pulsarclient.MessageID, _ *pulsarclient.ProducerMessage, err error) {
			failed = errors.Join(failed, err) // called one at a time
		})
	}
	return errors.Join(producer.FlushWithCtx(ctx), failed)
}
