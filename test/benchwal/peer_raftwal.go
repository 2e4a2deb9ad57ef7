package main

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
)

// raftWAL stores a slice of entries for each group, as raft does with what it gets to replicate.
func raftWAL() contender {
	return contender{name: "hashicorp/raft-wal", how: "StoreLogs for each group", open: func(dir string) (subject, error) {
		l, err := raftwal.Open(dir, raftwal.WithLogger(hclog.NewNullLogger()))
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
		return newGroup(0, commit, l.Close), nil
	}}
}
