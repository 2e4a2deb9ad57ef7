package e2e_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ledger is what a client wrote down: by number of the message.
type ledger struct {
	client string
	qos    int
	sent   map[int]int // how often it may have been sent
	acked  map[int]bool
}

func newLedger(client string, qos int) *ledger {
	return &ledger{client: client, qos: qos, sent: map[int]int{}, acked: map[int]bool{}}
}

// parse reads what client.py has written.
func (l *ledger) parse(text string) error {
	for line := range strings.Lines(text) {
		kind, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		switch {
		case err == nil && kind == "s":
			l.sent[n]++
		case err == nil && kind == "a":
			l.acked[n] = true
		default:
			return fmt.Errorf("ledger of %s: line %q", l.client, line)
		}
	}
	return nil
}

// disturbance is a kill of the gateway or an outage of Kafka: what may make Kafka get something twice.
type disturbance struct {
	what        string
	from, until time.Time
}

// evidence is all that the oracle judges by.
type evidence struct {
	ledgers      []*ledger
	brokers      map[string][]entry // kafka, nats, redis
	disturbances []disturbance
	records      uint64 // that the gateway says it has stored
	roundTrip    time.Duration
}

// verdict is what the oracle finds.
type verdict struct {
	acknowledged, lost, resent int
	doubled                    map[string]int // by broker, entries with a record id that was there before
	readings                   map[string]int // by quality
	faults                     []string
}

// line is the figure of make e2e.
func (v *verdict) line(kills int) string {
	return fmt.Sprintf("e2e: kills %d acknowledged %d lost %d doubled kafka %d nats %d redis %d",
		kills, v.acknowledged, v.lost, v.doubled["kafka"], v.doubled["nats"], v.doubled["redis"])
}

func (v *verdict) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

// judge compares what the clients wrote down with what the brokers hold. It knows nothing of the gateway but the format of
// record ids and of the payload.
func judge(e evidence) *verdict {
	v := &verdict{doubled: map[string]int{}, readings: map[string]int{}}
	lost := map[string]bool{} // a message that is missing in two brokers is one message
	var first map[uint64]string
	for _, name := range slices.Sorted(maps.Keys(e.brokers)) {
		once := v.sequence(name, e.brokers[name], e)
		payloads := make(map[uint64]string, len(once))
		for _, x := range once {
			payloads[x.Seq] = x.raw
		}
		if first == nil {
			first = payloads
		} else if !maps.Equal(first, payloads) {
			v.fault("%s holds other payloads than %s", name, slices.Min(slices.Collect(maps.Keys(e.brokers))))
		}
		for _, l := range e.ledgers {
			v.client(name, l, once, lost)
		}
		if name == "redis" { // the payloads are the same everywhere
			v.modbus(once, e.roundTrip)
		}
	}
	for _, l := range e.ledgers {
		v.acknowledged += len(l.acked)
	}
	v.lost = len(lost)
	return v
}

// sequence checks that a broker holds the records 1, 2, 3, … of one epoch, and returns each of them once, in sequence.
func (v *verdict) sequence(name string, entries []entry, e evidence) []entry {
	once := make([]entry, 0, len(entries))
	seen := make(map[string]bool, len(entries))
	for i := range entries {
		x := &entries[i]
		if want := fmt.Sprintf("%s/%s/%d/%d", gatewayID, streamName, x.Epoch, x.Seq); x.ID != want || x.outside != want {
			v.fault("%s: record id %q inside and %q outside (want %q)", name, x.ID, x.outside, want)
		}
		if x.Epoch != entries[0].Epoch {
			v.fault("%s: epoch %d after epoch %d", name, x.Epoch, entries[0].Epoch)
		}
		if i > 0 && x.Seq <= entries[i-1].Seq {
			v.rewind(name, &entries[i-1], x, e.disturbances)
		} else if i > 0 && x.Seq != entries[i-1].Seq+1 {
			v.fault("%s: record %d follows record %d", name, x.Seq, entries[i-1].Seq)
		}
		if seen[x.ID] {
			v.doubled[name]++
			continue
		}
		seen[x.ID] = true
		once = append(once, *x)
	}
	slices.SortStableFunc(once, func(a, b entry) int { return cmp.Compare(a.Seq, b.Seq) })
	for i := range once {
		if once[i].Seq != uint64(i)+1 {
			v.fault("%s: record %d is missing", name, i+1)
			break
		}
	}
	if uint64(len(once)) != e.records {
		v.fault("%s holds %d records, the gateway has stored %d", name, len(once), e.records)
	}
	return once
}

// rewind judges a step back in a broker's order. Kafka may show one for each kill of the gateway and each outage of its own,
// and only there.
func (v *verdict) rewind(name string, before, x *entry, disturbances []disturbance) {
	const slack = time.Second // a request may be in the broker's socket still when its sender is killed
	if name != "kafka" {
		v.fault("%s: record %d follows record %d", name, x.Seq, before.Seq)
		return
	}
	for _, d := range disturbances {
		if !d.until.Before(before.appended.Add(-slack)) && !d.from.After(x.appended) {
			return
		}
	}
	v.fault("kafka: record %d follows record %d between %s and %s, and nothing was disturbed then",
		x.Seq, before.Seq, before.appended.Format(time.StampMilli), x.appended.Format(time.StampMilli))
}

// client checks one client's messages in one broker.
func (v *verdict) client(broker string, l *ledger, once []entry, lost map[string]bool) {
	copies := map[int]int{}
	highest := 0
	for i := range once {
		x := &once[i]
		if x.Topic != "line/"+l.client {
			continue
		}
		var payload struct {
			Client string `json:"c"`
			Number int    `json:"n"`
		}
		if err := json.Unmarshal(x.Value, &payload); err != nil || payload.Client != l.client {
			v.fault("%s: record %d has the value %.100q, which %s never sent", broker, x.Seq, x.Value, l.client)
			continue
		}
		n := payload.Number
		if copies[n]++; copies[n] == 1 {
			if n < highest {
				v.fault("%s: message %d of %s stands behind message %d", broker, n, l.client, highest)
			}
			highest = max(highest, n)
		}
	}
	for n, count := range copies {
		switch {
		case l.qos == 2 && count > 1:
			v.fault("%s: message %d of %s was sent with QoS 2 and is there %d times", broker, n, l.client, count)
		case count > l.sent[n]:
			v.fault("%s: message %d of %s is there %d times and was sent %d times", broker, n, l.client, count, l.sent[n])
		case broker == "redis":
			v.resent += count - 1
		}
	}
	for n := range l.acked {
		if copies[n] == 0 {
			lost[l.client+"/"+strconv.Itoa(n)] = true
		}
	}
}

// modbus checks the readings of slave.py: the clock register tells when it was read, its complement that both were read in
// one piece, the counter that no reading is an old one with a new time.
func (v *verdict) modbus(once []entry, roundTrip time.Duration) {
	clocks := map[string]uint64{} // by unit and time
	newest := map[string]time.Time{}
	counters := map[string]uint64{}
	for i := range once {
		x := &once[i]
		if x.Source != "plant" {
			continue
		}
		v.readings[x.Quality]++
		if x.Time.Before(newest[x.Topic]) {
			v.fault("reading %d of %s is older than the one before it", x.Seq, x.Topic)
		}
		newest[x.Topic] = x.Time
		if x.Quality != "good" {
			if string(x.Value) != "null" || x.Reason == "" {
				v.fault("reading %d of %s is %s with the value %s and the reason %q", x.Seq, x.Topic, x.Quality, x.Value, x.Reason)
			}
			continue
		}
		n, err := strconv.ParseUint(string(x.Value), 10, 64)
		if err != nil {
			v.fault("reading %d of %s has the value %s", x.Seq, x.Topic, x.Value)
			continue
		}
		unit, point := x.Topic[:strings.LastIndexByte(x.Topic, '/')], x.Topic[strings.LastIndexByte(x.Topic, '/')+1:]
		at := unit + x.Time.String()
		switch point {
		case "clock":
			clocks[at] = n
			if off := x.Time.Sub(time.UnixMilli(int64(n))).Abs(); off > roundTrip {
				v.fault("reading %d of %s is %v off its time", x.Seq, x.Topic, off)
			}
		case "complement":
			if clock, ok := clocks[at]; ok && n != ^clock {
				v.fault("reading %d of %s does not belong to its clock", x.Seq, x.Topic)
			}
		case "counter":
			if n <= counters[unit] {
				v.fault("reading %d of %s has the value %d after %d", x.Seq, x.Topic, n, counters[unit])
			}
			counters[unit] = n
		}
	}
}
