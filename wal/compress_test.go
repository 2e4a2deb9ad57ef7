package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"go.etcd.io/bbolt"

	"edgegateway/wal"
)

var codecs = []wal.Codec{wal.CodecS2, wal.CodecZstd, wal.CodecNone}

// telemetryBatch has records of two streams, in turns.
func telemetryBatch(from, to int) wal.Batch {
	var b wal.Batch
	for n := from; n <= to; n++ {
		b.Entries = append(b.Entries, wal.Entry{
			Stream: []string{"even", "odd"}[n%2], Time: time.Unix(1.7e9, int64(n)*1e6), Data: telemetry(n),
		})
	}
	return b
}

// expectTelemetry reads what telemetryBatch put in of one stream.
func expectTelemetry(t *testing.T, c *wal.Cursor, from, to int) []wal.Record {
	t.Helper()
	var out []wal.Record
	for n := from; n <= to; {
		for _, r := range read(t, c, (to-n)/2+1) {
			if !bytes.Equal(r.Data, telemetry(n)) || !r.Time.Equal(time.Unix(1.7e9, int64(n)*1e6)) {
				t.Fatalf("record %d of %v is %q, want %q", r.Seq, r.Time, r.Data, telemetry(n))
			}
			n += 2
			out = append(out, r)
		}
	}
	return out
}

func TestEachCodecGivesBackWhatWasPutIn(t *testing.T) {
	bytes := map[wal.Codec]int64{}
	for _, codec := range codecs {
		t.Run(string(codec), func(t *testing.T) {
			dir := t.TempDir()
			o := wal.Options{Codec: codec, SegmentBytes: small}
			l := open(t, dir, o)
			cursor(t, l, "u", "even")
			last := 0
			for n := 1; last < 20_000; n = n%700 + 37 { // blocks of all sizes, of more than 256 KiB in one commit too
				must(t, put(t, l, telemetryBatch(last+1, last+n)))
				last += n
			}
			must(t, put(t, l, telemetryBatch(last+1, last+2000)))
			last += 2000
			bytes[codec] = l.Stats().Bytes
			closeLog(t, l)
			l = open(t, dir, o)
			c := cursor(t, l, "u", "even")
			for n := 2; n+1000 < last; n += 1000 {
				recs := expectTelemetry(t, c, n, n+998)
				// Every third one is confirmed at first, so that there are runs of outcomes beyond the cursor.
				for i, r := range recs {
					if i%3 == 0 {
						c.Done(r)
					}
				}
				c.Rewind()
				for _, r := range read(t, c, len(recs)) {
					if (r.Seq-recs[0].Seq)%3 == 0 && r.Seq < recs[0].Seq+uint64(len(recs)) {
						t.Fatalf("record %d came again after its outcome", r.Seq)
					}
				}
				c.Done(recs...)
				c.Rewind()
			}
			if segs := l.Stats().Segments; codec == wal.CodecNone && segs < 10 {
				t.Errorf("%d segments: too few to show anything", segs)
			}
		})
	}
	if s2, zstd, none := bytes[wal.CodecS2], bytes[wal.CodecZstd], bytes[wal.CodecNone]; 2*s2 > none || zstd > s2 {
		t.Errorf("bytes on the disk: s2 %d, zstd %d, none %d", s2, zstd, none)
	}
}

func TestALogMayHoldBlocksOfAllCodecs(t *testing.T) {
	dir := t.TempDir()
	first := 1
	for _, codec := range []wal.Codec{wal.CodecNone, wal.CodecZstd, wal.CodecS2, wal.CodecZstd, wal.CodecNone, ""} {
		l := open(t, dir, wal.Options{Codec: codec})
		c := cursor(t, l, "u", "odd")
		must(t, put(t, l, telemetryBatch(first, first+499)))
		first += 500
		expectTelemetry(t, c, 1, first-1)
		closeLog(t, l)
		// And once more where none of it is in memory.
		l = open(t, dir, wal.Options{Codec: codec})
		expectTelemetry(t, cursor(t, l, "u", "odd"), 1, first-1)
		closeLog(t, l)
	}
	if _, err := wal.Open(t.TempDir(), wal.Options{Codec: "gzip"}); err == nil {
		t.Error("an unknown codec was taken")
	}
}

func TestWhatGetsNoSmallerIsStoredAsItIs(t *testing.T) {
	for _, codec := range codecs {
		long := string(bytes.Repeat([]byte("again and "), 100))
		for _, test := range []struct {
			name string
			data string
			want bool // compressed
		}{
			{"noise of 10 kB", string(data("s", 1, 10_000)), false},
			{"the largest record, of noise", string(data("s", 1, wal.MaxRecord)), false},
			{"too short to try", long[:150], false},
			{"1 kB that repeats itself", long, codec != wal.CodecNone},
			{"noise with a tail of a twentieth that repeats itself", string(data("s", 1, 19_000)) + long, false},
			{"noise with a tail of a tenth that repeats itself", string(data("s", 1, 9_000)) + long, codec != wal.CodecNone},
			{"the largest record, that repeats itself", string(bytes.Repeat([]byte("0123456789abcdef"), wal.MaxRecord/16)), codec != wal.CodecNone},
		} {
			raw := wal.EncodedBlock(codec, test.data)
			if packed := raw[1] != 0; packed != test.want {
				t.Errorf("%s, %s: compressed %t, want %t (%d of %d bytes)", codec, test.name, packed, test.want, len(raw), len(test.data))
			}
			if n, err := wal.DecodeBlock(raw, false); n != 1 || err != nil {
				t.Errorf("%s, %s: %d records, %v", codec, test.name, n, err)
			}
		}
	}
}

func TestABlockOfVersion1IsRead(t *testing.T) {
	old := wal.FirstBlock(wal.EncodedBlock(wal.CodecNone, "one", "", "three"))
	if n, err := wal.DecodeBlock(old, false); n != 3 || err != nil {
		t.Errorf("%d records, %v, want 3", n, err)
	}
	// It had no codec, whatever its second byte says.
	old[1] = 1
	if n, err := wal.DecodeBlock(old, true); !errors.Is(err, wal.ErrDamaged) {
		t.Errorf("a packed block of version 1: %d records, %v, want ErrDamaged", n, err)
	}
}

func TestABombIsRefusedAndTakesNoMemory(t *testing.T) {
	const huge = 64 << 20
	zeroes := make([]byte, huge)
	enc, err := zstd.NewWriter(nil, zstd.WithWindowSize(8<<20))
	must(t, err)
	streamed, err := zstd.NewWriter(nil)
	must(t, err)
	var noSize bytes.Buffer // a frame that does not say how long its content is
	streamed.Reset(&noSize)
	_, err = streamed.Write(zeroes)
	must(t, errors.Join(err, streamed.Close()))
	packedS2, packedZstd := s2.Encode(nil, zeroes), enc.EncodeAll(zeroes, nil)
	twice := enc.EncodeAll(zeroes[:200<<10], enc.EncodeAll(zeroes[:200<<10], nil)) // two frames
	for _, test := range []struct {
		name  string
		block []byte
	}{
		{"s2 that says what it is", wal.PackedBlock(1, packedS2, huge)},
		{"s2 that says it is small", wal.PackedBlock(1, packedS2, 1000)},
		{"s2 that says it is 0", wal.PackedBlock(1, packedS2, 0)},
		{"s2 whose length is the largest number", wal.PackedBlock(1, packedS2, 1<<32-1)},
		{"s2 with a length beyond 32 bits", wal.PackedBlock(1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0}, 1<<32-1)},
		{"s2 that ends too early", wal.PackedBlock(1, s2.Encode(nil, data("s", 1, 10_000))[:5000], 10_000)},
		{"zstd that says what it is", wal.PackedBlock(2, packedZstd, huge)},
		{"zstd that says it is small", wal.PackedBlock(2, packedZstd, 200_000)},
		{"zstd without a length", wal.PackedBlock(2, noSize.Bytes(), 200_000)},
		{"two frames of zstd", wal.PackedBlock(2, twice, 200<<10)},
		{"fewer bytes than it says", wal.PackedBlock(2, enc.EncodeAll(zeroes[:1000], nil), 2000)},
		{"a codec that there is not", wal.PackedBlock(3, packedZstd, 1000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			n, err := wal.DecodeBlock(test.block, false)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, wal.ErrDamaged) {
				t.Errorf("%d records, %v, want ErrDamaged", n, err)
			}
			// One block, and what the decompressor needs for itself.
			if took := after.TotalAlloc - before.TotalAlloc; took > 2<<20 {
				t.Errorf("it took %d bytes", took)
			}
		})
	}
}

// TestUplinksDrainCompressedSegmentsAtOnce reads the same sealed segments by several cursors, as uplinks do, while the log
// is written.
func TestUplinksDrainCompressedSegmentsAtOnce(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small, Codec: wal.CodecZstd}
	l := open(t, dir, o)
	for n := range 4 {
		cursor(t, l, fmt.Sprint("u", n), "even")
	}
	for n := range 40 {
		must(t, put(t, l, telemetryBatch(n*500+1, n*500+500)))
	}
	closeLog(t, l)
	l = open(t, dir, o)
	done := make(chan bool)
	for n := range 4 {
		c := cursor(t, l, fmt.Sprint("u", n), "even")
		go func() {
			defer func() { done <- true }()
			for n := 2; n < 20_000; n += 1000 {
				c.Done(expectTelemetry(t, c, n, n+998)...)
			}
		}()
	}
	must(t, put(t, l, telemetryBatch(20_001, 20_500)))
	for range 4 {
		within(t, done)
	}
	eventually(t, "what was read is freed", func() bool { return l.Stats().Segments <= 2 })
}

// TestDataIsTheCallersAgainAfterTheCallback appends small records, which the log writes once more when their page is full.
func TestDataIsTheCallersAgainAfterTheCallback(t *testing.T) {
	for _, codec := range codecs {
		dir := t.TempDir()
		l := open(t, dir, wal.Options{Codec: codec})
		for n := 1; n <= 100; n++ {
			b := batch("s", n, n, 300)
			must(t, put(t, l, b))
			clear(b.Entries[0].Data)
		}
		closeLog(t, l)
		expect(t, cursor(t, open(t, dir, wal.Options{}), "u", "s"), "s", 1, 100, 300)
	}
}

// TestASealedSegmentOfVersion1IsReadByItsPages has what the first layout had: one bucket of all blocks, so that there are
// branch pages, with small blocks in it and large ones in buckets of their own.
func TestASealedSegmentOfVersion1IsReadByItsPages(t *testing.T) {
	for _, blocks := range []int{1, 3, 200, 20_000} {
		path := filepath.Join(t.TempDir(), "00000001.seg")
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: 4096, NoFreelistSync: true, NoSync: true})
		must(t, err)
		pos := uint64(1)
		must(t, db.Update(func(tx *bbolt.Tx) error {
			q, err := tx.CreateBucket([]byte("q"))
			for i := 0; i < blocks && err == nil; i++ {
				size := 50
				if i%50 == 1 {
					size = 20_000
				}
				key, raw := wal.BlockAt(pos, 1+i%3, string(make([]byte, size)))
				if pos += uint64(1 + i%3); len(raw) <= 1500 {
					err = q.Put(key, raw)
					continue
				}
				var own *bbolt.Bucket
				if own, err = q.CreateBucket(key); err == nil {
					err = own.Put([]byte("b"), raw)
				}
			}
			return err
		}))
		must(t, db.Close())
		if err := wal.SealedBlocks(path, pos-1); err != nil {
			t.Errorf("%d blocks: %v", blocks, err)
		}
		if err := wal.SealedBlocks(path, pos); !errors.Is(err, wal.ErrDamaged) {
			t.Errorf("%d blocks, one position more: %v, want ErrDamaged", blocks, err)
		}
	}
}
