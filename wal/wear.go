package wal

// flashPage is what flash memory programs at once. A page that is not full is padded.
const flashPage = 16 << 10

// flashBytes returns what a commit of so many bytes costs the flash memory. A commit is flushed twice, its pages and then
// the meta page, and each flush pads what came since the one before to whole pages of the memory. That is a model and no
// measurement: cards with a large cache need less, and what the file system writes besides (its journal) comes on top.
func flashBytes(written int64) uint64 {
	pages := func(n int64) uint64 { return uint64(max(0, n)+flashPage-1) / flashPage * flashPage }
	return pages(written-pageSize) + pages(pageSize)
}

// heldOnDiskLocked returns the bytes on disk from the first record on that a cursor has yet to pass. It grows as the lane
// fills, whatever fills it, and unlike the size of the files it does not go up and down with the segments.
func (l *Log) heldOnDiskLocked() int64 {
	from, any := l.ctl.last, false
	for i := range l.ctl.cursors {
		p := &l.ctl.cursors[i]
		if p.seq < l.ctl.tails[l.st.cursors[p.id].stream].seq {
			from, any = min(from, p.pos), true
		}
	}
	if !any {
		return 0
	}
	i := segmentOf(l.segs, from+1)
	s, last := l.segs[i], l.ctl.last
	if i+1 < len(l.segs) {
		last = l.segs[i+1].base - 1
	}
	var n int64
	if from = max(from, s.base-1); last >= s.base {
		n = int64(float64(s.bytes-s.empty) * float64(last-min(from, last)) / float64(last-s.base+1))
	}
	for _, s := range l.segs[i+1:] {
		n += s.bytes
	}
	return n
}
