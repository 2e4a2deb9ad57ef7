package wal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"

	"edgegateway/wal"
)

// TestVerifyAndExportOfALogThatIsWrittenTo: neither may find anything wrong, give out a record twice, or leave one out.
func TestVerifyAndExportOfALogThatIsWrittenTo(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small})
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 10, 300)))
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	writers.Go(func() {
		for n := 11; ctx.Err() == nil; n++ {
			if err := put(t, l, batch("s", n, n, []int{40, 300, 5000}[n%3])); err != nil {
				t.Error(err)
				return
			}
		}
	})
	writers.Go(func() { // segments come and go
		for {
			recs, err := c.Read(ctx, 20, 0)
			if err != nil {
				return
			}
			c.Done(recs...)
		}
	})
	given := 0
	for range 30 {
		r, err := wal.Verify(dir, nil)
		must(t, err)
		if r.Err() != nil || len(r.Segments) == 0 {
			t.Fatalf("Verify: %+v", r)
		}
		var last uint64
		n := 0
		must(t, wal.Export(dir, wal.Selection{Stream: "s"}, func(e wal.Exported) error {
			size := []int{40, 300, 5000}[e.Seq%3]
			if e.Seq <= 10 {
				size = 300
			}
			if last != 0 && e.Seq <= last || !bytes.Equal(e.Data, data("s", int(e.Seq), size)) {
				return fmt.Errorf("record %d after %d", e.Seq, last)
			}
			last = e.Seq
			n++
			return nil
		}))
		given += n
	}
	if given == 0 {
		t.Error("nothing was given out") // once it may be so: all was delivered and freed
	}
}

// TestExportGivesOutARange of one stream, and says what is wrong with the request or the log.
func TestExportGivesOutARange(t *testing.T) {
	dir := t.TempDir()
	damageable(t, dir)
	var got []uint64
	take := func(e wal.Exported) error {
		got = append(got, e.Seq)
		if e.Epoch != 7 || e.Stream != "b" {
			t.Errorf("record %+v", e)
		}
		return nil
	}
	must(t, wal.Export(dir, wal.Selection{Stream: "b", From: 3, To: 40}, take))
	if len(got) != 38 || got[0] != 3 || got[37] != 40 {
		t.Errorf("got %v, want 3 to 40", got)
	}
	if err := wal.Export(dir, wal.Selection{Stream: "c"}, take); err == nil || !strings.Contains(err.Error(), `there is no stream "c"`) {
		t.Errorf("Export of a stream that is not there returned %v", err)
	}
	stop := errors.New("enough")
	if err := wal.Export(dir, wal.Selection{Stream: "b"}, func(wal.Exported) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Export returned %v, want the receiver's error", err)
	}
	f := segments(t, dir)[2]
	b, err := os.ReadFile(f)
	must(t, err)
	clear(b[8192:])
	must(t, os.WriteFile(f, b, 0o600))
	got = nil
	if err := wal.Export(dir, wal.Selection{Stream: "b"}, take); !errors.Is(err, wal.ErrDamaged) || len(got) < 60 {
		t.Errorf("Export of a damaged log gave out %d records and returned %v", len(got), err)
	}
}

// TestVerifyFull: Open refuses what only a look at every block can find, and Verify says where it is.
func TestVerifyFull(t *testing.T) {
	dir := t.TempDir()
	damageable(t, dir)
	l := open(t, dir, wal.Options{SegmentBytes: small, Verify: wal.VerifyFull})
	closeLog(t, l)
	f := segments(t, dir)[1]
	blocks, err := wal.RawBlocks(f)
	must(t, err)
	b, err := os.ReadFile(f)
	must(t, err)
	b[bytes.Index(b, blocks[len(blocks)/2].Raw)+40] ^= 1
	must(t, os.WriteFile(f, b, 0o600))

	before := contentsOf(t, dir)
	var told, total int64
	r, err := wal.Verify(dir, func(done, of int64) {
		if done < told {
			t.Errorf("progress goes back from %d to %d", told, done)
		}
		told, total = done, of
	})
	must(t, err)
	if !errors.Is(r.Err(), wal.ErrDamaged) || len(r.Segments[1].Problems) == 0 || r.Segments[1].Problems[0].First == 0 {
		t.Errorf("Verify: %v %+v", r.Err(), r.Segments[1])
	}
	if told != total || total == 0 {
		t.Errorf("progress ended at %d of %d", told, total)
	}
	if _, err := wal.Open(dir, wal.Options{Verify: wal.VerifyFull}); !errors.Is(err, wal.ErrDamaged) {
		t.Errorf("Open with verify full returned %v, want ErrDamaged", err)
	}
	if !maps.Equal(before, contentsOf(t, dir)) {
		t.Error("the directory was changed")
	}
	l = open(t, dir, wal.Options{SegmentBytes: small}) // the newest one is sound
	closeLog(t, l)
	if _, err := wal.Open(dir, wal.Options{Verify: "some"}); err == nil {
		t.Error("an unknown mode was taken")
	}
}

// TestReadingBeyondTheEndOfACutFile: what a map has of it is a fault of the process where nobody stands before it.
func TestReadingBeyondTheEndOfACutFile(t *testing.T) {
	for _, test := range []struct {
		name    string
		segment int64
	}{{"sealed", 256 << 10}, {"active", 32 << 20}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, wal.Options{SegmentBytes: test.segment, Codec: wal.CodecNone})
			c := cursor(t, l, "u", "s")
			for n := 1; n <= 400; n += 10 {
				must(t, put(t, l, batch("s", n, n+9, 9000)))
			}
			expect(t, c, "s", 1, 5, 9000)
			must(t, os.Truncate(segments(t, dir)[0], 3*4096))
			var err error
			for last := uint64(5); err == nil && last < 400; {
				var recs []wal.Record
				if recs, err = wal.TakeNow(c); len(recs) > 0 {
					last = recs[len(recs)-1].Seq
				}
			}
			if !errors.Is(err, wal.ErrDamaged) {
				t.Errorf("Read returned %v, want ErrDamaged", err)
			}
			err = put(t, l, batch("other", 1, 1, 10))
			if test.name == "sealed" {
				must(t, err) // the rest of the log lives
				return
			}
			// Whether the commit meets the cut depends on where the pages lie that it changes.
			if err != nil && !errors.Is(err, wal.ErrStopped) {
				t.Errorf("Append returned %v, want nothing or ErrStopped", err)
			}
			_ = l.Close() // which must not wait for ever
			if _, err := wal.Open(dir, wal.Options{}); !errors.Is(err, wal.ErrDamaged) {
				t.Errorf("Open returned %v, want ErrDamaged", err)
			}
		})
	}
}

// TestOpenFromMedium: nothing of the files is left in the kernel's memory when they are read.
func TestOpenFromMedium(t *testing.T) {
	dir := t.TempDir()
	want := damageable(t, dir)
	for _, f := range segments(t, dir) {
		b, err := os.ReadFile(f)
		must(t, err)
		before, after, err := wal.DropPages(f)
		must(t, err)
		if before == 0 || after != 0 && !wal.InMemory(f) {
			t.Errorf("%d pages were resident of %d bytes, %d are after they were dropped", before, len(b), after)
		}
		// Mapped pages cannot be dropped: they are compared with the medium.
		must(t, wal.DropMapped(f))
	}
	l := open(t, dir, wal.Options{SegmentBytes: small, FromMedium: true, Verify: wal.VerifyFull})
	for _, s := range []string{"a", "b"} {
		c := cursor(t, l, "u", s)
		for n := 0; n < len(want.records[s]); {
			recs, err := wal.TakeNow(c)
			must(t, err)
			for _, r := range recs {
				if !bytes.Equal(r.Data, want.records[s][n]) {
					t.Fatalf("record %d of %s has other contents", r.Seq, s)
				}
				n++
			}
		}
	}
	files := segments(t, dir)
	if err := wal.CompareDirect(files[0], files[1]); err != nil && !errors.Is(err, wal.ErrDamaged) || err == nil && !wal.InMemory(files[0]) {
		t.Errorf("another file on the medium was taken for the same: %v", err)
	}
}
