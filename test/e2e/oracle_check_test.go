package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// goodEvidence has two clients with three messages each, and three readings, in all brokers.
func goodEvidence() evidence {
	began := time.UnixMilli(1_800_000_000_000).UTC()
	var entries []entry
	add := func(source, topic, value string) {
		seq := uint64(len(entries) + 1)
		id := fmt.Sprintf("%s/%s/7/%d", gatewayID, streamName, seq)
		entries = append(entries, entry{
			ID: id, outside: id, Epoch: 7, Seq: seq, Source: source, Topic: topic, Value: []byte(value), Quality: "good",
			Time: began, appended: began.Add(time.Duration(seq) * time.Minute), raw: value,
		})
	}
	ledgers := []*ledger{newLedger("p1", 1), newLedger("p2", 2)}
	for n := 1; n <= 3; n++ {
		for _, l := range ledgers {
			add("broker", "line/"+l.client, fmt.Sprintf(`{"c":%q,"n":%d}`, l.client, n))
			l.sent[n], l.acked[n] = 1, true
		}
	}
	add("plant", "plant/one/clock", fmt.Sprint(began.UnixMilli()))
	add("plant", "plant/one/complement", fmt.Sprint(^uint64(began.UnixMilli())))
	add("plant", "plant/one/counter", "17")
	return evidence{
		ledgers: ledgers, records: 9, roundTrip: time.Second,
		brokers: map[string][]entry{"kafka": slices.Clone(entries), "nats": slices.Clone(entries), "redis": slices.Clone(entries)},
	}
}

func TestOracleFinds(t *testing.T) {
	everywhere := func(e *evidence, change func([]entry) []entry) {
		for name, entries := range e.brokers {
			e.brokers[name] = change(entries)
		}
	}
	repeat := func(e *evidence, broker string) { // the last two once more
		x := e.brokers[broker]
		again := slices.Clone(x[len(x)-2:])
		for i := range again {
			again[i].appended = x[len(x)-1].appended.Add(time.Hour)
		}
		e.brokers[broker] = append(x, again...)
	}
	// set gives the i-th entry another value everywhere.
	set := func(e *evidence, i int, value string) {
		everywhere(e, func(x []entry) []entry { x[i].Value, x[i].raw = []byte(value), value; return x })
	}
	for _, c := range []struct {
		name   string
		change func(*evidence)
		line   string // what the figure ends with
		fault  string // part of the one fault that it finds; "" for none
	}{
		{"nothing in good order", func(*evidence) {}, "acknowledged 6 lost 0 doubled kafka 0 nats 0 redis 0", ""},
		{
			"a message that no broker has", func(e *evidence) { e.ledgers[0].acked[4] = true },
			"acknowledged 7 lost 1 doubled kafka 0 nats 0 redis 0", "",
		},
		{
			"a message that one broker lacks", func(e *evidence) { e.brokers["nats"] = slices.Delete(e.brokers["nats"], 2, 3) },
			"lost 1 doubled kafka 0 nats 0 redis 0", "record 4 follows record 2",
		},
		{
			"a record doubled in redis", func(e *evidence) { repeat(e, "redis") },
			"lost 0 doubled kafka 0 nats 0 redis 2", "redis: record 8 follows record 9",
		},
		{
			"a record doubled in nats", func(e *evidence) { repeat(e, "nats") },
			"lost 0 doubled kafka 0 nats 2 redis 0", "nats: record 8 follows record 9",
		},
		{
			"records doubled in kafka out of the blue", func(e *evidence) { repeat(e, "kafka") },
			"lost 0 doubled kafka 2 nats 0 redis 0", "nothing was disturbed",
		},
		{"no fault in records doubled in kafka at a kill", func(e *evidence) {
			repeat(e, "kafka")
			at := e.brokers["kafka"][8].appended.Add(time.Minute)
			e.disturbances = []disturbance{{"kill", at, at}}
		}, "lost 0 doubled kafka 2 nats 0 redis 0", ""},
		{"two messages of a client in the wrong order", func(e *evidence) {
			set(e, 0, `{"c":"p1","n":2}`)
			set(e, 2, `{"c":"p1","n":1}`)
		}, "lost 0 doubled kafka 0 nats 0 redis 0", "message 1 of p1 stands behind message 2"},
		{
			"a QoS 2 message that is there twice", func(e *evidence) { set(e, 3, `{"c":"p2","n":1}`); e.ledgers[1].sent[1] = 2 },
			"lost 1 doubled kafka 0 nats 0 redis 0", "is there 2 times",
		},
		{
			"a QoS 1 message that was sent once and is there twice", func(e *evidence) { set(e, 2, `{"c":"p1","n":1}`) },
			"lost 1 doubled kafka 0 nats 0 redis 0", "is there 2 times and was sent 1 times",
		},
		{"no fault in a QoS 1 message that was sent again", func(e *evidence) {
			set(e, 2, `{"c":"p1","n":1}`)
			e.ledgers[0].sent[1] = 2
			delete(e.ledgers[0].acked, 2)
		}, "acknowledged 5 lost 0 doubled kafka 0 nats 0 redis 0", ""},
		{"a record at the end that no broker has", func(e *evidence) { e.records++ }, "", "the gateway has stored 10"},
		{"another payload in one broker", func(e *evidence) { e.brokers["redis"][0].raw = "{}" }, "", "other payloads"},
		{"an old value with a new time", func(e *evidence) {
			everywhere(e, func(x []entry) []entry { x[6].Time = x[6].Time.Add(time.Minute); return x })
		}, "", "off its time"},
		{"a value where there should be none", func(e *evidence) {
			everywhere(e, func(x []entry) []entry { x[8].Quality = "bad"; return x })
		}, "", "is bad with the value 17"},
		{"a new epoch", func(e *evidence) {
			everywhere(e, func(x []entry) []entry {
				x[8].Epoch, x[8].ID, x[8].outside = 8, "e2e/main/8/9", "e2e/main/8/9"
				return x
			})
		}, "", "epoch 8 after epoch 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := goodEvidence()
			c.change(&e)
			v := judge(e)
			if line := v.line(0); !strings.HasSuffix(line, c.line) {
				t.Errorf("figure is %q, want it to end with %q", line, c.line)
			}
			all := strings.Join(v.faults, "\n")
			if (c.fault == "") != (all == "") || !strings.Contains(all, c.fault) {
				t.Errorf("faults are %q, want one with %q", v.faults, c.fault)
			}
		})
	}
}
