package pulsar_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
	"edgegateway/wal"
)

// limit gives a topic a limit of its own, and waits until it holds.
func limit(t *testing.T, topic string, bytes int) {
	t.Helper()
	b := broker()
	_ = b.Admin(http.MethodPut, "persistent/public/default/"+topic, nil) // it may be there
	must(t, b.Admin(http.MethodPost, "persistent/public/default/"+topic+"/maxMessageSize", bytes))
	applied := func() (limit int) {
		_ = b.Admin(http.MethodGet, "persistent/public/default/"+topic+"/maxMessageSize", nil, &limit) // it answers nothing before
		return limit
	}
	for deadline := time.Now().Add(patient); applied() != bytes; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the topic does not get its limit")
		}
	}
	time.Sleep(time.Second) // the policy takes effect by way of a topic of the broker's own
}

// A topic's own limit counts what is left after compression: what it took of one batch says nothing of the next one. Without the admin API
// nobody tells the driver of it.
func TestATopicThatTakesLessThanABatchGetsSmallerOnes(t *testing.T) {
	for _, of := range []struct {
		delivery    uplink.Delivery
		pack        int
		compression string
		admin       bool
	}{
		{uplink.AtLeastOnce, 1, "", false},
		{uplink.EffectivelyOnce, 1, "", false},
		{uplink.EffectivelyOnce, 20, "zstd", false},
		{uplink.EffectivelyOnce, 1, "none", true},
		{uplink.ExactlyOnce, 1, "zlib", false},
		{uplink.ExactlyOnce, 20, "snappy", false},
		{uplink.ExactlyOnce, 1, "none", true},
	} {
		topic := fmt.Sprintf("narrow-%s-%d-%s", strings.ReplaceAll(string(of.delivery), "_", ""), of.pack, of.compression)
		limit(t, topic, 20_000)
		c := at(broker().Addr, topic)
		c.Pack, c.Compression = of.pack, of.compression
		if of.admin {
			c.Admin = "http://" + broker().Web
			must(t, broker().Admin(http.MethodPut, "persistent/public/default/"+topic+"/subscription/reader", nil))
		}
		log := uplinktest.NewLog()
		small := func(n int) {
			for range n {
				log.Append(pipeline.Message{Topic: "boiler/1/text", Value: pipeline.String(strings.Repeat("x", 15_000))})
			}
		}
		small(60) // these are nothing, compressed
		for range 20 {
			log.Append(noise(15_000)) // and these are nearly what the topic takes
			small(20)
		}
		g := run(t, promised{c, of.delivery}, log, "")
		g.settle()
		g.stop()
		if n := len(log.Letters()); n > 0 {
			t.Errorf("%s: %d dead letters, want none: each record fits", topic, n)
		}
		if of.delivery == uplink.AtLeastOnce {
			wantAtLeast(t, topic, upTo(log.Len()))
			continue
		}
		holds(t, topic, upTo(log.Len())...)
		if n := log.Again(); of.admin && n > 0 {
			t.Errorf("%s: %d records were sent again, although the admin API says what the topic takes", topic, n)
		}
	}
}

// everywhere wants each record of a log once: in the topic or as a dead letter, and what is in the topic in order. With at_least_once
// it wants each.
func everywhere(t *testing.T, topic string, log *uplinktest.Log, delivery uplink.Delivery) {
	t.Helper()
	once := delivery != uplink.AtLeastOnce
	seen := map[string]string{}
	last := 0
	for _, s := range read(t, broker().Addr, topic) {
		if seen[s.ID] != "" && once {
			t.Errorf("%s: record %s is there twice", topic, s.ID)
		}
		seen[s.ID] = "stored"
		var seq int
		if _, err := fmt.Sscanf(s.ID, "gw1/line/7/%d", &seq); err != nil || seq <= last && once {
			t.Errorf("%s: record %s stands behind %d", topic, s.ID, last)
		}
		last = seq
	}
	for _, letter := range log.Letters() {
		id := fmt.Sprintf("gw1/line/7/%d", letter.Seq)
		if seen[id] != "" && once {
			t.Errorf("%s: record %s is a dead letter, and %s as well", topic, id, seen[id])
		}
		seen[id] = "a dead letter"
	}
	lost := 0
	for seq := 1; seq <= log.Len(); seq++ {
		if id := fmt.Sprintf("gw1/line/7/%d", seq); seen[id] == "" {
			if lost++; lost < 5 {
				t.Errorf("%s: record %s is neither in the topic nor a dead letter", topic, id)
			}
		}
	}
	t.Logf("%s: %d records, %d dead letters, %d lost", topic, log.Len(), len(log.Letters()), lost)
}

// mixed appends records of many sizes: what compresses well, what does not, and some that the lowered limit refuses.
func mixed(log *uplinktest.Log, n int) {
	for range n {
		switch rand.IntN(40) {
		case 0:
			log.Append(noise(1 + rand.IntN(30_000)))
		case 1:
			log.Append(pipeline.Message{Topic: "boiler/1/text", Value: pipeline.String(strings.Repeat("x", rand.IntN(60_000)))})
		case 2:
			log.Append(noise(1 + rand.IntN(4_000)))
		default:
			log.Append(pipeline.Message{Topic: "boiler/1", Value: pipeline.Int(int64(log.Len()))})
		}
	}
}

// The broker refuses one message and would store what is in flight behind it; then it takes the refused one, sent again, for a repeat.
func TestALimitThatIsLoweredWhileRecordsFlowLosesNothing(t *testing.T) {
	for _, of := range []struct {
		delivery    uplink.Delivery
		pack        int
		compression string
	}{
		{uplink.AtLeastOnce, 1, ""},
		{uplink.EffectivelyOnce, 1, ""},
		{uplink.EffectivelyOnce, 20, "none"},
		{uplink.ExactlyOnce, 1, "zstd"},
		{uplink.ExactlyOnce, 20, ""},
	} {
		topic := fmt.Sprintf("lowered-%s-%d", strings.ReplaceAll(string(of.delivery), "_", ""), of.pack)
		limit(t, topic, 200_000)
		c := at(broker().Addr, topic)
		c.Pack, c.Compression = of.pack, of.compression
		log := uplinktest.NewLog()
		g := run(t, promised{c, of.delivery}, log, "")
		mixed(log, 3000)
		g.settle()
		over := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
				if log.Len()-log.Settled() < 5000 {
					mixed(log, 200)
				}
			}
		})
		for _, low := range []int{15_000, 15_000, 3000} { // the last one is lower than anybody would expect
			limit(t, topic, low)
			limit(t, topic, 200_000)
			g.stop()
			c := at(broker().Addr, topic) // a new life, and what came behind the last dead letter has not reached the disk
			c.Pack, c.Compression = of.pack, of.compression
			must(t, log.Back(behindLetters(log)))
			g = run(t, promised{c, of.delivery}, log, "")
		}
		close(over)
		writer.Wait()
		g.settle()
		g.stop()
		everywhere(t, topic, log, of.delivery)
	}
}

// behindLetters returns where a cursor may stand after a crash: its last steps are lost, but none before a dead letter, which is on stable
// storage together with it.
func behindLetters(log *uplinktest.Log) uint64 {
	at := max(0, log.Settled()-3000)
	for _, letter := range log.Letters() {
		at = max(at, int(letter.Seq))
	}
	return uint64(at)
}

// crashing is a log whose first dead letter never reaches the disk, nor does anything after it.
type crashing struct {
	*uplinktest.Log
	once    sync.Once
	refused chan struct{}
}

func (l *crashing) Refuse(rec wal.Record, why wal.Refusal) {
	l.Log.Refuse(rec, why)
	l.once.Do(func() { close(l.refused) })
}

func (l *crashing) Sync(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// What the broker has behind a refused record must not say that the record is there, or nobody ever hears of it: the limit may be another
// one by the time that the gateway is up again.
func TestAKillBetweenARefusalAndItsDeadLetterLosesNothing(t *testing.T) {
	for _, delivery := range []uplink.Delivery{uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		for _, lowered := range []bool{true, false} { // by the time that it is up again
			topic := fmt.Sprintf("killed-%s-%v", strings.ReplaceAll(string(delivery), "_", ""), lowered)
			limit(t, topic, 140_000)
			log := &crashing{Log: uplinktest.NewLog(), refused: make(chan struct{})}
			g := runOver(t, promised{at(broker().Addr, topic), delivery}, log, log.Log, "")
			g.append(500)
			log.Append(noise(170_000)) // 501
			g.append(500)
			select {
			case <-log.refused:
			case <-time.After(patient):
				t.Fatalf("%s: no record is refused; %+v", topic, g.Status())
			}
			time.Sleep(500 * time.Millisecond) // for what goes on behind it, if anything does
			g.stop()
			if !lowered {
				limit(t, topic, 250_000)
			}
			again := uplinktest.NewLog() // the same records, and no outcome has reached the disk
			must(t, log.Back(0))
			all, err := log.Read(t.Context(), log.Len(), 1<<30)
			must(t, err)
			for _, rec := range all {
				again.AppendData(rec.Data)
			}
			g = run(t, promised{at(broker().Addr, topic), delivery}, again, "")
			g.settle()
			g.stop()
			everywhere(t, topic, again, delivery)
			if n := len(again.Letters()); n == 0 == lowered {
				t.Errorf("%s: %d dead letters", topic, n)
			}
		}
	}
}
