package main

import (
	"encoding/binary"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

// naiveBolt makes a transaction of each record, as a first draft of a queue on bbolt does.
func naiveBolt() contender {
	return contender{name: "bbolt Update", how: "one transaction for each record", open: func(dir string) (subject, error) {
		db, err := openBolt(dir)
		if err != nil {
			return nil, err
		}
		return newGate(1, func(p []byte) error { return db.Update(putRecord(p)) }, db.Close), nil
	}}
}

// batchBolt leaves it to bbolt to bring records together: db.Batch with its defaults, up to 10 ms or 1000 calls.
func batchBolt() contender {
	return contender{name: "bbolt Batch", how: "db.Batch with its defaults (10 ms, 1000 calls)", open: func(dir string) (subject, error) {
		db, err := openBolt(dir)
		if err != nil {
			return nil, err
		}
		return batched{db}, nil
	}}
}

type batched struct{ *bbolt.DB }

func (s batched) append(p []byte, _ time.Time) error { return s.Batch(putRecord(p)) }
func (s batched) close() error                       { return s.Close() }

func openBolt(dir string) (*bbolt.DB, error) {
	return bbolt.Open(filepath.Join(dir, "queue.db"), 0o600, nil)
}

func putRecord(p []byte) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		q, err := tx.CreateBucketIfNotExists([]byte("q"))
		if err != nil {
			return err
		}
		n, err := q.NextSequence()
		if err != nil {
			return err
		}
		return q.Put(binary.BigEndian.AppendUint64(nil, n), p)
	}
}
