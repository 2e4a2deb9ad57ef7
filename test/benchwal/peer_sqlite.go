package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"

	_ "modernc.org/sqlite" // registers the driver
)

// sqliteWAL makes a transaction of each group, with a row for each record.
func sqliteWAL() contender {
	return contender{name: "SQLite", how: "WAL, synchronous=FULL, a row for each record, a transaction for each group", open: openSQLite}
}

func openSQLite(dir string) (subject, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "queue.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	ctx := context.Background()
	fail := func(err error) (subject, error) { return nil, errors.Join(err, db.Close()) }
	if _, err := db.ExecContext(ctx, "CREATE TABLE q (n INTEGER PRIMARY KEY, data BLOB NOT NULL)"); err != nil {
		return fail(err)
	}
	insert, err := db.PrepareContext(ctx, "INSERT INTO q (data) VALUES (?)")
	if err != nil {
		return fail(err)
	}
	commit := func(records [][]byte) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		row := tx.StmtContext(ctx, insert)
		for _, r := range records {
			if _, err := row.ExecContext(ctx, r); err != nil {
				return errors.Join(err, tx.Rollback())
			}
		}
		return tx.Commit()
	}
	return newGroup(0, commit, func() error { return errors.Join(insert.Close(), db.Close()) }), nil
}
