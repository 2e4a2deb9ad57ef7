package main

import (
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
)

// raftWAL stores a slice of entries for each group, as raft does with what it gets to replicate.
func raftWAL() contender {
	return contender{name: "hashicorp/raft-wal", how: "StoreLogs for each group", open: func(dir string) (subject, error) {
		meta := &metadb.BoltMetaDB{} // its own one would stay open after Close
		l, err := raftwal.Open(dir, raftwal.WithLogger(hclog.NewNullLogger()), raftwal.WithMetaStore(meta))
		if err != nil {
			return nil, err
		}
		var last uint64
		commit := func(records [][]byte) error {
			logs := make([]*raft.Log, len(records))
			for i, r := range records {
				last++
				logs[i] = &raft.Log{Index: last, Term: 1, Type: raft.LogCommand, Data: r}
			}
			return l.StoreLogs(logs)
		}
		return newGroup(0, commit, func() error { return errors.Join(l.Close(), meta.Close()) }), nil
	}}
}
