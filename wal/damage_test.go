package wal_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/wal"
)

// contents is all that a log of TestDamage holds: records by stream, and the state.
type contents struct {
	records map[string][][]byte
	state   map[string]string
	before  map[string]string // the last commit
	last    int               // records of it
}

// damageable makes a log of several segments, whose pages are of all kinds: branches, leaves, large blocks, buckets that
// lie in their parent's page and others.
func damageable(t *testing.T, dir string) contents {
	t.Helper()
	want := contents{records: map[string][][]byte{}, state: map[string]string{}}
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
		want.before, want.last = maps.Clone(want.state), len(b.Entries)
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

// files are the contents of a log's directory by name.
type files map[string][]byte

func (f files) names() []string { return slices.Sorted(maps.Keys(f)) }

// harmLog damages a log in one of the ways in which media and people do.
func harmLog(f files, rnd *rand.Rand) (what string) {
	names := f.names()
	newest := names[len(names)-1]
	any := names[rnd.IntN(len(names))]
	switch kind := rnd.IntN(20); kind {
	case 0:
		i := rnd.IntN(len(names) - 1)
		f[names[i]], f[names[i+1]] = f[names[i+1]], f[names[i]]
		return fmt.Sprintf("%s and %s have changed places", names[i], names[i+1])
	case 1: // without the newest one it would be a log of before
		gone := names[rnd.IntN(len(names)-1)]
		delete(f, gone)
		return gone + " is missing"
	case 2:
		for _, name := range names[:1+rnd.IntN(len(names)-1)] {
			delete(f, name)
		}
		return fmt.Sprintf("all before %s are missing", f.names()[0])
	case 3:
		f[newest] = bytes.Clone(f[any])
		return fmt.Sprintf("%s is a copy of %s", newest, any)
	case 4:
		name := fmt.Sprintf("%08d.seg", len(names)+1)
		f[name] = [][]byte{bytes.Clone(f[any]), make([]byte, 16<<10), {}}[rnd.IntN(3)]
		return fmt.Sprintf("%s with %d bytes is there", name, len(f[name]))
	case 5: // left over, and worth nothing
		name := fmt.Sprintf("%08d.%s", rnd.IntN(9), []string{"tmp", "spare", "bad"}[rnd.IntN(3)])
		f[name] = bytes.Clone(f[any])[:rnd.IntN(len(f[any]))]
		return fmt.Sprintf("%s with %d bytes is there", name, len(f[name]))
	case 6:
		other := names[rnd.IntN(len(names))]
		from, to := rnd.IntN(len(f[other])/page), rnd.IntN(len(f[any])/page)
		a, b := f[other][from*page:][:page], f[any][to*page:][:page]
		for i := range a {
			a[i], b[i] = b[i], a[i]
		}
		return fmt.Sprintf("page %d of %s and page %d of %s have changed places", from, other, to, any)
	case 7: // several at once
		for range 2 + rnd.IntN(20) {
			what, f[newest] = harmFile(f[newest], rnd)
			if len(f[newest]) == 0 {
				break
			}
		}
		return "many times damaged, in the end: " + what
	}
	if rnd.IntN(3) > 0 {
		any = newest
	}
	what, f[any] = harmFile(f[any], rnd)
	return what + " of " + any
}

const page = 4096

// harmFile damages one file.
func harmFile(b []byte, rnd *rand.Rand) (what string, out []byte) {
	at := rnd.IntN(len(b))
	first := at / page * page
	switch rnd.IntN(9) {
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
		copy(b[min(first+from, len(b)):min(first+page, len(b))], b[min(other+from, len(b)):])
		return fmt.Sprintf("page %d has the end of %d, from byte %d", at/page, other/page, from), b
	case 6: // headers and elements of pages
		i := first + rnd.IntN(48)
		if i < len(b) {
			b[i] = byte(rnd.Uint32())
		}
		return fmt.Sprintf("byte %d of page %d", i-first, at/page), b
	case 7:
		for i := range b[first:min(first+page, len(b))] {
			b[first+i] = byte(rnd.Uint32())
		}
		return fmt.Sprint("garbage in page ", at/page), b
	}
	// A pointer to another page.
	i := first + 16 + 16*rnd.IntN(4) + 8
	if i+8 <= len(b) {
		binary.LittleEndian.PutUint64(b[i:], uint64(rnd.IntN(len(b)/page+1)))
	}
	return fmt.Sprintf("pointer at %d of page %d", i-first, at/page), b
}

// TestDamage opens damaged logs, in processes of its own: none may end its process or hold it up, and what is not an error
// must be right.
func TestDamage(t *testing.T) {
	if part := os.Getenv(damagePart); part != "" {
		var from, to int
		_, err := fmt.Sscan(part, &from, &to)
		must(t, err)
		damageCases(t, from, to)
		return
	}
	cases := 200
	if v := os.Getenv("DAMAGE_CASES"); v != "" {
		var err error
		cases, err = strconv.Atoi(v)
		must(t, err)
	}
	workers := runtime.GOMAXPROCS(0)
	tallies := make([]tally, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() { tallies[i].watch(t, cases*i/workers, cases*(i+1)/workers) })
	}
	all.Wait()
	var sum tally
	for _, n := range tallies {
		sum.deaths, sum.hangs, sum.wrong = sum.deaths+n.deaths, sum.hangs+n.hangs, sum.wrong+n.wrong
		sum.refused, sum.unread, sum.unharmed = sum.refused+n.refused, sum.unread+n.unread, sum.unharmed+n.unharmed
	}
	t.Logf("refused at the start %d, found later %d, without effect %d", sum.refused, sum.unread, sum.unharmed)
	counted := sum.deaths + sum.hangs + sum.wrong + sum.refused + sum.unread + sum.unharmed
	reportLine(t, "DAMAGE_RESULT", fmt.Sprintf("damage: cases %d deaths %d hangs %d wrong %d", counted, sum.deaths, sum.hangs, sum.wrong))
	if counted != cases || sum.refused == 0 || sum.unread == 0 || sum.unharmed == 0 {
		t.Errorf("%+v of %d: cases are missing, or too much alike", sum, cases)
	}
}

// damagePart names, in the environment, the cases that this process goes through.
const damagePart = "WAL_DAMAGE_PART"

// hangAfter is how long a case may take.
const hangAfter = 5 * time.Second

// tally counts how cases ended.
type tally struct{ deaths, hangs, wrong, refused, unread, unharmed int }

// watch has a process go through the cases from..to, and another one through the rest where one dies or hangs.
func (n *tally) watch(t *testing.T, from, to int) {
	for from < to {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDamage$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", damagePart, from, to))
		var stderr lockedBuffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Error(err)
			return
		}
		var hung atomic.Bool
		what := "its first steps"
		dog := time.AfterFunc(time.Minute, func() { hung.Store(true); _ = cmd.Process.Kill() })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			verdict, text, _ := strings.Cut(lines.Text(), " ")
			switch verdict {
			case "CASE":
				what = text
				dog.Reset(hangAfter)
				continue
			case "refused":
				n.refused++
			case "unread":
				n.unread++
			case "unharmed":
				n.unharmed++
			case "wrong":
				n.wrong++
				t.Errorf("%s: %s", what, text)
			default:
				continue
			}
			from++
			dog.Reset(time.Minute)
		}
		dog.Stop()
		err = cmd.Wait()
		switch {
		case from >= to:
			return
		case hung.Load():
			n.hangs++
			t.Errorf("%s took more than %v", what, hangAfter)
		default:
			n.deaths++
			t.Errorf("%s ended the process: %v\n%s", what, err, stderr.String())
		}
		from++
	}
}

// damageCases goes through cases and says how each ended.
func damageCases(t *testing.T, from, to int) {
	dir := t.TempDir()
	want := damageable(t, dir)
	whole := files{}
	for _, f := range segments(t, dir) {
		b, err := os.ReadFile(f)
		must(t, err)
		whole[filepath.Base(f)] = b
	}
	for n := from; n < to; n++ {
		rnd := rand.New(rand.NewPCG(3, uint64(n)))
		harmed := files{}
		for name, b := range whole {
			harmed[name] = bytes.Clone(b)
		}
		what := harmLog(harmed, rnd)
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			must(t, os.Remove(filepath.Join(dir, e.Name())))
		}
		for name, b := range harmed {
			must(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
		}
		fmt.Printf("CASE %d, %s\n", n, what)
		opened, err := lookAt(t, dir, want)
		switch {
		case err == nil:
			fmt.Println("unharmed")
		case !errors.Is(err, wal.ErrDamaged) && !errors.Is(err, wal.ErrVersion):
			fmt.Println("wrong", strings.ReplaceAll(err.Error(), "\n", "; "))
		case opened:
			fmt.Println("unread")
		default:
			fmt.Println("refused")
		}
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
	ends, begins := map[string]int{}, map[string]int{}
	lost := 0
	stats := l.Stats()
	for _, s := range stats.Streams {
		ends[s.Name] = int(s.Records)
		lost += len(want.records[s.Name]) - int(s.Records)
	}
	sound := lost == 0 && maps.Equal(state, want.state) || lost == want.last && maps.Equal(state, want.before)
	if !sound || l.Epoch() != 7 {
		return true, fmt.Errorf("%d records fewer, %d keys, epoch %d, and no error", lost, len(state), l.Epoch())
	}
	for _, r := range stats.Ranges { // the oldest segments were missing, and that was counted
		if r.First != 1 || r.Why != wal.DroppedMissing {
			return true, fmt.Errorf("range %+v of a log that has dropped nothing", r)
		}
		begins[r.Stream] = int(r.Last)
	}
	for _, s := range []string{"a", "b"} {
		c, err := l.Cursor("u", s, wal.Oldest)
		if err != nil {
			return true, err
		}
		for n := begins[s]; n < ends[s]; {
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
