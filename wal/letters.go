package wal

// Purge takes dead letters out of the log and returns how many there were of those named, once that is durable. It also works
// on a full disk.
func (l *Log) Purge(numbers []uint64) (int, error) {
	purged := 0
	err := l.change(func(t *txn) { purged = t.purge(numbers) })
	if err != nil {
		return 0, err
	}
	return purged, nil
}

// purge takes dead letters out with this commit and returns how many of them there were.
func (t *txn) purge(numbers []uint64) int {
	n := 0
	for _, number := range numbers {
		key := numberedKey(keyLetter, number)
		if _, there := t.l.st.raw[key]; !there || t.purged[number] {
			continue
		}
		if t.purged == nil {
			t.purged = map[uint64]bool{}
		}
		t.purged[number] = true
		t.set(key, nil)
		n++
	}
	return n
}
