package main

import (
	"path/filepath"

	"github.com/tidwall/wal"
)

// tidwallWAL writes a batch and syncs for each group.
func tidwallWAL() contender {
	return contender{name: "tidwall/wal", how: "WriteBatch for each group", open: func(dir string) (subject, error) {
		l, err := wal.Open(filepath.Join(dir, "log"), nil)
		if err != nil {
			return nil, err
		}
		var last uint64
		var b wal.Batch
		commit := func(records [][]byte) error {
			b.Clear()
			for _, r := range records {
				last++
				b.Write(last, r)
			}
			return l.WriteBatch(&b)
		}
		return newGroup(0, commit, l.Close), nil
	}}
}
