package wal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"edgegateway/wal"
)

// contents is all that a log of TestDamage holds: records by stream, and the state.
type contents struct {
	records map[string][][]byte
	state   map[string]string
}

// damageable makes a log of several segments, whose pages are of all kinds: branches, leaves, large blocks, buckets that
// lie in their parent's page and others.
func damageable(t *testing.T, dir string) contents {
	t.Helper()
	want := contents{map[string][][]byte{}, map[string]string{}}
	rnd := rand.New(rand.NewPCG(1, 2))
	l := open(t, dir, wal.Options{SegmentBytes: small, NewEpoch: 7})
	for _, s := range []string{"a", "b"} {
		cursor(t, l, "u", s)
	}
	for n := range 120 {
		var b wal.Batch
		for range 1 + rnd.IntN(3) {
			s := []string{"a", "b"}[rnd.IntN(2)]
			d := data(s, n, []int{10, 200, 700, 1400, 9000}[min(rnd.IntN(40)/8, 4)])
			if n%4 == 0 {
				d = bytes.Repeat(d[:10], 1+len(d)/10) // packed, as most telemetry is
			}
			b.Entries = append(b.Entries, wal.Entry{Stream: s, Time: time.Unix(1.7e9, 0), Data: d})
			want.records[s] = append(want.records[s], d)
		}
		key := fmt.Sprint("key ", rnd.IntN(60))
		want.state[key] = fmt.Sprint("value ", n, string(make([]byte, 90)))
		b.State = []wal.Change{{Key: key, Value: []byte(want.state[key])}}
		must(t, put(t, l, b))
	}
	closeLog(t, l)
	if n := len(segments(t, dir)); n < 4 {
		t.Fatalf("%d segments, want at least 4", n)
	}
	return want
}

// harm damages a file in one of the ways in which media and people do.
func harm(b []byte, rnd *rand.Rand) (what string, out []byte) {
	const page = 4096
	at := rnd.IntN(len(b))
	first := at / page * page
	switch rnd.IntN(8) {
	case 0:
		b[at] ^= 1 << rnd.IntN(8)
		return fmt.Sprint("flipped bit in byte ", at), b
	case 1:
		for i := range b[at:min(at+1+rnd.IntN(64), len(b))] {
			b[at+i] = byte(rnd.Uint32())
		}
		return fmt.Sprint("garbage from byte ", at), b
	case 2:
		clear(b[first:min(first+page, len(b))])
		return fmt.Sprint("zeroes in page ", at/page), b
	case 3:
		other := rnd.IntN(len(b)) / page * page
		copy(b[first:min(first+page, len(b))], b[other:])
		return fmt.Sprintf("page %d is a copy of %d", at/page, other/page), b
	case 4:
		return fmt.Sprint("cut at ", at), b[:at]
	case 5: // the header is right, so that only what is in it is wrong
		other, from := rnd.IntN(len(b))/page*page, 16+rnd.IntN(page/2)
		copy(b[first+from:min(first+page, len(b))], b[min(other+from, len(b)):])
		return fmt.Sprintf("page %d has the end of %d, from byte %d", at/page, other/page, from), b
	case 6: // headers and elements of pages
		i := first + rnd.IntN(48)
		if i < len(b) {
			b[i] = byte(rnd.Uint32())
		}
		return fmt.Sprintf("byte %d of page %d", i-first, at/page), b
	}
	// A pointer to another page.
	i := first + 16 + 16*rnd.IntN(4) + 8
	if i+8 <= len(b) {
		binary.LittleEndian.PutUint64(b[i:], uint64(rnd.IntN(len(b)/page)))
	}
	return fmt.Sprintf("pointer at %d of page %d", i-first, at/page), b
}

// TestDamage opens damaged logs in this process: none may end it, and what is not an error must be right.
func TestDamage(t *testing.T) {
	cases := 1500
	if v := os.Getenv("DAMAGE_CASES"); v != "" {
		var err error
		cases, err = strconv.Atoi(v)
		must(t, err)
	}
	dir := t.TempDir()
	want := damageable(t, dir)
	files := segments(t, dir)
	whole := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		must(t, err)
		whole[f] = b
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	refused, unread, unharmed, wrong, hangs := 0, 0, 0, 0, 0
	for n := range cases {
		target := files[len(files)-1]
		if n%3 == 0 {
			target = files[rnd.IntN(len(files))]
		}
		what, harmed := harm(bytes.Clone(whole[target]), rnd)
		must(t, os.WriteFile(target, harmed, 0o600))
		began := time.Now()
		opened, err := lookAt(t, dir, want)
		switch {
		case err == nil:
			unharmed++
		case !errors.Is(err, wal.ErrDamaged) && !errors.Is(err, wal.ErrVersion):
			wrong++
			t.Errorf("case %d, %s of %s: %v", n, what, target, err)
		case opened:
			unread++
		default:
			refused++
		}
		if d := time.Since(began); d > 5*time.Second {
			hangs++
			t.Errorf("case %d, %s of %s took %v", n, what, target, d)
		}
		for _, f := range segments(t, dir) {
			if whole[f] == nil {
				must(t, os.Remove(f))
			}
		}
		must(t, os.WriteFile(target, whole[target], 0o600))
		must(t, os.WriteFile(files[len(files)-1], whole[files[len(files)-1]], 0o600))
	}
	t.Logf("refused at the start %d, found later %d, without effect %d", refused, unread, unharmed)
	line := fmt.Sprintf("damage: cases %d deaths 0 hangs %d wrong %d", cases, hangs, wrong)
	t.Log(line)
	if file := os.Getenv("DAMAGE_RESULT"); file != "" {
		must(t, os.WriteFile(file, []byte(line+"\n"), 0o600))
	}
	if refused == 0 || unread == 0 || unharmed == 0 {
		t.Errorf("refused %d, unread %d, unharmed %d: the damages are too much alike", refused, unread, unharmed)
	}
}

// lookAt reads all of a log, also when something was not there, and writes to it. It returns an error of the log's, or
// of its own when it got what was never written.
func lookAt(t *testing.T, dir string, want contents) (opened bool, err error) {
	t.Helper()
	l, err := wal.Open(dir, wal.Unflushed(wal.Options{SegmentBytes: small, NewEpoch: 9}))
	if err != nil {
		return false, err
	}
	defer func() {
		if e := l.Close(); err == nil {
			err = e
		}
	}()
	state := map[string]string{}
	l.State("", func(k string, v []byte) bool { state[k] = string(v); return true })
	// The last commit may be lost with its meta page; the one before it is whole then.
	ends := map[string]int{}
	lost := 0
	for _, s := range l.Stats().Streams {
		ends[s.Name] = int(s.Records)
		lost += len(want.records[s.Name]) - int(s.Records)
	}
	if lost > 3 || lost < 0 || lost == 0 && !maps.Equal(state, want.state) || l.Epoch() != 7 {
		return true, fmt.Errorf("%d records fewer, %d keys, epoch %d, and no error", lost, len(state), l.Epoch())
	}
	for _, s := range []string{"a", "b"} {
		c, err := l.Cursor("u", s, wal.Oldest)
		if err != nil {
			return true, err
		}
		for n := 0; n < ends[s]; {
			recs, err := wal.TakeNow(c)
			if err == nil && len(recs) == 0 {
				err = fmt.Errorf("stream %s ends at %d of %d, and no error", s, n, ends[s])
			}
			if err != nil {
				return true, err
			}
			for _, r := range recs {
				if r.Seq != uint64(n+1) || !bytes.Equal(r.Data, want.records[s][n]) {
					return true, fmt.Errorf("record %d of %s has other contents, and no error", r.Seq, s)
				}
				n++
			}
		}
	}
	if lost > 0 {
		return true, nil
	}
	// The state is written again, so that pages of all kinds are freed and used.
	b := wal.Batch{Entries: []wal.Entry{{Stream: "a", Time: time.Unix(1.7e9, 0), Data: data("a", 999, 9000)}}}
	for k, v := range want.state {
		b.State = append(b.State, wal.Change{Key: k, Value: []byte(v)})
	}
	if err := put(t, l, b); err != nil {
		return true, err
	}
	c, err := l.Cursor("check", "a", wal.Newest)
	if err == nil && c.Lag().Records != 0 {
		err = errors.New("a new cursor at the end has a lag")
	}
	return true, err
}
