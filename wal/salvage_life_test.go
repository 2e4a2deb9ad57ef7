package wal_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"edgegateway/wal"
)

// TestSalvageLeavesTheFormerLifeOfAFileAlone: a file that was another segment before still holds blocks of it. They were
// delivered, and must not come back, whatever of the file is damaged.
func TestSalvageLeavesTheFormerLifeOfAFileAlone(t *testing.T) {
	for _, at := range []string{"oldest", "middle", "newest"} {
		for _, harmed := range []string{"the meta pages", "the roots"} {
			t.Run(fmt.Sprintf("%s of the %s segment", harmed, at), func(t *testing.T) {
				dir := t.TempDir()
				o := wal.Options{SegmentBytes: small, Codec: wal.CodecNone}
				large := o
				large.SegmentBytes = 4 * small
				l := open(t, dir, large)
				cursor(t, l, "u", "s")
				former := filepath.Join(t.TempDir(), "former")
				write := func(from, to int) {
					for n := from; n <= to; n++ {
						must(t, put(t, l, batch("s", n, n, 900)))
					}
				}
				write(1, 230)
				closeLog(t, l)
				b, err := os.ReadFile(segments(t, dir)[0])
				must(t, err)
				must(t, os.WriteFile(former, b, 0o600))
				l = open(t, dir, o)
				c := cursor(t, l, "u", "s")
				write(231, 400)
				c.Done(expect(t, c, "s", 1, 300, 900)...)
				closeLog(t, l)
				l = open(t, dir, o)
				write(401, 500)
				closeLog(t, l)

				files := segments(t, dir)
				if len(files) < 4 {
					t.Fatalf("%d segments", len(files))
				}
				target := map[string]string{"oldest": files[0], "middle": files[len(files)/2], "newest": files[len(files)-1]}[at]
				must(t, wal.Reuse(target, former))
				v, err := wal.Verify(dir, nil)
				if err != nil || v.Err() != nil {
					t.Fatalf("the scene is not what it should be: %v %v", err, v.Err())
				}
				b, err = os.ReadFile(target)
				must(t, err)
				left := 0
				for n := range 200 {
					if bytes.Contains(b, data("s", n+1, 900)) {
						left++
					}
				}
				if left < 20 {
					t.Fatalf("only %d records of the former life are left", left)
				}
				clear(b[:8192])
				if harmed == "the roots" {
					for page := 2; page*4096 < len(b); page++ {
						// Leaves whose first key is "c" are roots.
						if p := b[page*4096:]; p[8] == 2 && p[10] >= 3 && bytes.Contains(p[:256], []byte("chqs")) || bytes.Contains(p[:4096], []byte("h\x02")) {
							clear(p[:4096])
						}
					}
				}
				must(t, os.WriteFile(target, b, 0o600))
				r, err := wal.Salvage(dir, wal.SalvageOptions{Options: o}, nil)
				must(t, err)
				if len(r.Damaged) != 1 {
					t.Errorf("replaced %v", r.Damaged)
				}
				v, err = wal.Verify(dir, nil)
				if err != nil || v.Err() != nil {
					t.Errorf("after the salvage: %v %v", err, v.Err())
				}
				if err := wal.Export(dir, wal.Selection{Stream: "s"}, func(e wal.Exported) error {
					if e.Seq <= 200 {
						return fmt.Errorf("record %d has come back", e.Seq)
					}
					if !bytes.Equal(e.Data, data("s", int(e.Seq), 900)) {
						return fmt.Errorf("record %d has other contents", e.Seq)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				l = open(t, dir, o)
				c = cursor(t, l, "u", "s")
				got := map[uint64]bool{}
				for {
					recs, err := wal.TakeNow(c)
					must(t, err)
					if len(recs) == 0 {
						break
					}
					for _, rec := range recs {
						if rec.Seq <= 300 && at != "newest" {
							t.Errorf("record %d is read again", rec.Seq)
						}
						got[rec.Seq] = true
					}
					c.Done(recs...)
				}
				for _, g := range l.Stats().Ranges {
					for seq := g.First; seq <= min(g.Last, 500); seq++ {
						if got[seq] {
							t.Errorf("record %d is there and counted as lost", seq)
						}
						got[seq] = true
					}
				}
				for seq := uint64(301); seq <= 500; seq++ {
					if !got[seq] {
						t.Errorf("record %d is neither there nor counted", seq)
					}
				}
				t.Logf("%d recovered, lost %v", r.Recovered, r.Lost)
			})
		}
	}
}
