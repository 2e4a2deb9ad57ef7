package wal_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgegateway/wal"
)

func FuzzBlock(f *testing.F) {
	long := strings.Repeat("the same again and ", 30)
	for _, codec := range codecs {
		f.Add(wal.EncodedBlock(codec, "one", "two", "three"), false)
		f.Add(wal.EncodedBlock(codec, "one", long, "three"), false)
		f.Add(wal.EncodedBlock(codec, long, long, "three"), true)
	}
	f.Add(wal.FirstBlock(wal.EncodedBlock(wal.CodecNone, "one", "two", "three")), false)
	f.Add([]byte{0xB1}, false)
	f.Add([]byte{0xB2}, false)
	f.Fuzz(func(t *testing.T, raw []byte, sum bool) {
		n, err := wal.DecodeBlock(raw, sum)
		if most := max(len(raw), wal.MaxRecord+64); n > most {
			t.Errorf("%d records in %d bytes (%v)", n, len(raw), err)
		}
	})
}

func TestBlockHoldsWhatWasPutIn(t *testing.T) {
	noise := make([]byte, 70_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	for _, codec := range codecs {
		t.Run(string(codec), func(t *testing.T) {
			raw := wal.EncodedBlock(codec, "", "x", "", "yy", string(noise)+strings.Repeat("and again ", 5000))
			if n, err := wal.DecodeBlock(raw, false); n != 5 || err != nil {
				t.Fatalf("%d records, %v, want 5", n, err)
			}
			for i := range raw {
				if i > 100 && i < len(raw)-100 && i%97 != 0 {
					continue
				}
				bad := bytes.Clone(raw)
				bad[i] ^= 0x10
				if _, err := wal.DecodeBlock(bad, false); !errors.Is(err, wal.ErrDamaged) {
					t.Errorf("a flipped bit at %d: %v", i, err)
				}
				if _, err := wal.DecodeBlock(raw[:i], false); !errors.Is(err, wal.ErrDamaged) {
					t.Errorf("a block cut at %d: %v", i, err)
				}
			}
		})
	}
}

func FuzzState(f *testing.F) {
	for kind, b := range wal.Samples() {
		f.Add(kind, b)
	}
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		again, err := wal.DecodeState(kind, b)
		if err != nil || again == nil {
			return
		}
		// What is decoded and encoded once is canonical: it decodes, and encodes to itself.
		if third, err := wal.DecodeState(kind, again); err != nil || !bytes.Equal(third, again) {
			t.Errorf("%q: %x became %x, %v", kind, again, third, err)
		}
	})
}

// FuzzPages gives damaged bbolt files to what reads them by their pages.
func FuzzPages(f *testing.F) {
	dir := f.TempDir()
	l, err := wal.Open(dir, wal.Options{})
	must(f, err)
	c := cursor(f, l, "u", "s")
	must(f, put(f, l, batch("s", 1, 3, 50)))
	for n := 4; n <= 8; n++ { // so that there is a branch page
		must(f, put(f, l, batch("s", n, n, 1200)))
	}
	must(f, put(f, l, batch("s", 9, 9, 6000))) // and a page of more than 4096 bytes
	c.Close()
	must(f, l.Close())
	whole, err := os.ReadFile(segments(f, dir)[0])
	must(f, err)
	whole = whole[:16<<12]
	must(f, os.WriteFile(segments(f, dir)[0], whole, 0o600))
	must(f, wal.CheckPages(segments(f, dir)[0]))
	f.Add(uint16(3*4096+10), []byte{1, 2})
	f.Add(uint16(4096+40), []byte{})
	f.Fuzz(func(t *testing.T, at uint16, patch []byte) {
		b := bytes.Clone(whole)
		copy(b[at:], patch)
		path := filepath.Join(t.TempDir(), "x.seg")
		must(t, os.WriteFile(path, b, 0o600))
		_ = wal.CheckPages(path)
	})
}
