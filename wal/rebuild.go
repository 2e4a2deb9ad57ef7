package wal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// salvageName is the file that lists how a salvage ends. From the moment it has its name the salvaged log is the log, and
// whoever opens the directory next finishes what it lists; before, the salvage has not happened.
const salvageName = "SALVAGE"

// keptSalvages is how many salvages' damaged files are kept.
const keptSalvages = 3

// rebuild writes the new segments beside the old ones and exchanges them.
func (s *salvage) rebuild() error {
	carry := segmentPlan{
		header: header{uuid: s.uuid, epoch: s.epoch, number: s.high + 1, base: s.lastPos + 1, created: nanos(s.now)}, last: s.lastPos,
	}
	for _, t := range s.ctl.tails {
		carry.tails = append(carry.tails, t.seq)
	}
	carry.header.first = carry.tails
	plan := salvageList{}
	plans := append(slices.Clip(s.plans), carry)
	taken := s.stamp()
	for _, f := range s.files {
		if s.sound[f.number] == f && f.number != 0 {
			continue
		}
		bad := strings.TrimSuffix(f.name, ".seg") + "-" + taken + ".bad"
		plan.aside = append(plan.aside, [2]string{f.name, bad})
		s.r.Damaged, s.r.Kept = append(s.r.Damaged, f.name), append(s.r.Kept, bad)
	}
	for _, p := range plans {
		name := segmentName(p.header.number)
		tmp := strings.TrimSuffix(name, ".seg") + ".tmp"
		if err := s.write(filepath.Join(s.dir, tmp), &p); err != nil {
			return s.undo(plan, err)
		}
		plan.names = append(plan.names, [2]string{tmp, name})
	}
	if err := plan.save(s.dir, &s.o); err != nil {
		return s.undo(plan, err)
	}
	if err := finishSalvage(s.dir, &s.o); err != nil {
		return err
	}
	return s.forget()
}

// undo removes what was built, and leaves the log as it was.
func (s *salvage) undo(plan salvageList, cause error) error {
	for _, n := range plan.names {
		_ = s.o.files.remove(filepath.Join(s.dir, n[0])) // otherwise the next Open does
	}
	if noRoom(cause) {
		cause = &noSpaceError{cause}
	}
	return cause
}

// stamp is what tells the files of one salvage from those of another.
func (s *salvage) stamp() string {
	for t := s.now.UTC(); ; t = t.Add(1e6) {
		name := t.Format("20060102T150405.000")
		if found, _ := filepath.Glob(filepath.Join(s.dir, "*-"+name+".bad")); len(found) == 0 {
			return name
		}
	}
}

// write builds one new segment and makes it durable.
func (s *salvage) write(tmp string, p *segmentPlan) (err error) {
	o := s.o
	for _, f := range s.files {
		o.SegmentBytes = max(o.SegmentBytes, min(f.size, 256<<20))
	}
	c := s.controlAt(p)
	db, file, _, err := buildSegment(tmp, &o, p.header, c, s.st.raw)
	if err != nil {
		_ = s.o.files.remove(tmp)
		return fmt.Errorf("write segment: %w", err)
	}
	pack := packer{codec: o.Codec}
	seg := segment{path: tmp, number: p.header.number, db: db, handle: file, active: true}
	defer func() {
		if err = errors.Join(err, seg.close()); err != nil {
			_ = s.o.files.remove(tmp)
		}
	}()
	return s.fill(&segmentWriter{s: s, seg: &seg, pack: &pack, c: &c, at: p.newest}, p)
}

// controlAt is the control record of a replaced segment: as of the salvage, but for what lies beyond its end. A cursor in
// there is not ahead of the true one.
func (s *salvage) controlAt(p *segmentPlan) control {
	c := s.ctl
	c.last, c.newest, c.stateSum = p.last, p.newest, s.st.sum
	c.tails = slices.Clone(s.ctl.tails)
	for i := range c.tails {
		if i < len(p.tails) {
			c.tails[i].seq = p.tails[i]
		}
	}
	c.cursors = slices.Clone(s.ctl.cursors)
	for i := range c.cursors {
		q := &c.cursors[i]
		if end := c.tails[s.st.cursors[q.id].stream].seq; q.seq > end {
			q.seq, q.runs = end, nil
		}
		q.pos = min(q.pos, c.last)
	}
	return c
}

// segmentWriter writes the blocks of one new segment.
type segmentWriter struct {
	s       *salvage
	seg     *segment
	pack    *packer
	c       *control
	y       layout
	at      int64   // time of fillers
	first   uint64  // position of the first entry below
	waiting []entry // that become one block
	bytes   int
}

// fill writes what a plan has, and fillers for what is missing between it. Small blocks become large ones.
func (s *salvage) fill(w *segmentWriter, p *segmentPlan) error {
	next := p.header.base
	for i := range p.pieces {
		piece := &p.pieces[i]
		if piece.first > next || piece.filler {
			if err := w.gap(next, piece.first-1); err != nil {
				return err
			}
		}
		next = piece.last + 1
		if piece.filler {
			if err := w.gap(piece.first, piece.last); err != nil {
				return err
			}
			continue
		}
		b, err := piece.read(&s.u)
		if err != nil {
			return err
		}
		list, err := b.entries()
		if err != nil {
			return err
		}
		if err := w.add(piece.first, list); err != nil {
			return err
		}
	}
	return w.gap(next, p.last)
}

func (w *segmentWriter) add(first uint64, list []entry) error {
	size := 0
	for i := range list {
		size += len(list[i].data) + recordOverhead
	}
	if len(w.waiting) > 0 && (w.bytes+size > maxBlock || !continues(w.waiting, list)) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if len(w.waiting) == 0 {
		w.first = first
	}
	w.waiting, w.bytes = append(w.waiting, list...), w.bytes+size
	return nil
}

// continues tells whether the sequences of two lists follow each other, as they have to within a block.
func continues(a, b []entry) bool {
	ends := map[uint32]uint64{}
	for i := range a {
		ends[a[i].stream] = a[i].seq
	}
	for i := range b {
		if end, ok := ends[b[i].stream]; ok && b[i].seq != end+1 {
			return false
		}
		ends[b[i].stream] = b[i].seq
	}
	return true
}

func (w *segmentWriter) flush() error {
	if len(w.waiting) == 0 {
		return nil
	}
	err := w.put(encodeBlocks(w.pack, w.first, w.waiting))
	w.waiting, w.bytes = nil, 0
	return err
}

// gap writes what stands for the lost positions first to last, if there are any.
func (w *segmentWriter) gap(first, last uint64) error {
	if err := w.flush(); err != nil || first > last {
		return err
	}
	return w.put(fillers(w.pack, first, last, w.at))
}

func (w *segmentWriter) put(blocks []block) error {
	_, _, err := w.seg.write(&placement{large: blocks}, &w.y, nil, w.c)
	return err
}

// read returns the block once more.
func (c *candidate) read(u *unpacker) (block, error) {
	f, err := os.Open(c.file.path)
	if err != nil {
		return block{}, err
	}
	defer func() { _ = f.Close() }()
	raw := make([]byte, c.size)
	if _, err := f.ReadAt(raw, c.off); err != nil {
		return block{}, err
	}
	b, err := decodeBlock(raw, u)
	if err == nil && (b.first != c.first || b.last != c.last) {
		err = ErrDamaged
	}
	if err != nil {
		return block{}, fmt.Errorf("%s changes while it is read: %w", c.file.path, err)
	}
	return b, nil
}

// forget removes the damaged files of all but the newest salvages.
func (s *salvage) forget() error {
	found, err := filepath.Glob(filepath.Join(s.dir, "*-*.bad"))
	if err != nil {
		return err
	}
	stamp := func(path string) string {
		name := strings.TrimSuffix(filepath.Base(path), ".bad")
		return name[strings.LastIndexByte(name, '-')+1:]
	}
	var stamps []string
	for _, path := range found {
		stamps = append(stamps, stamp(path))
	}
	slices.Sort(stamps)
	stamps = slices.Compact(stamps)
	if len(stamps) <= keptSalvages {
		return nil
	}
	for _, path := range found {
		if stamp(path) < stamps[len(stamps)-keptSalvages] {
			if err := s.o.files.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// salvageList is what SALVAGE holds, a line each:
//
//	salvage 1
//	aside NAME NAME.bad      a damaged file and the name under which it is kept
//	name NAME.tmp NAME.seg   a new segment and its name
//	sum CRC32C               of all lines before, as 8 hexadecimal digits
type salvageList struct {
	aside, names [][2]string
}

func (l *salvageList) encode() []byte {
	b := []byte("salvage 1\n")
	for _, a := range l.aside {
		b = fmt.Appendf(b, "aside %s %s\n", a[0], a[1])
	}
	for _, n := range l.names {
		b = fmt.Appendf(b, "name %s %s\n", n[0], n[1])
	}
	return fmt.Appendf(b, "sum %08x\n", crc32.Checksum(b, castagnoli))
}

func decodeSalvageList(b []byte) (salvageList, error) {
	var l salvageList
	text := string(b)
	body, sum, ok := strings.Cut(text, "sum ")
	if !ok || sum != fmt.Sprintf("%08x\n", crc32.Checksum([]byte(body), castagnoli)) {
		return l, fmt.Errorf("%w: %s cannot be read, so a salvage cannot be finished", ErrDamaged, salvageName)
	}
	for i, line := range strings.Split(strings.TrimSuffix(body, "\n"), "\n") {
		f := strings.Fields(line)
		switch {
		case i == 0 && line == "salvage 1":
		case i == 0:
			return l, fmt.Errorf("%w: %s begins with %q", ErrVersion, salvageName, line)
		case len(f) == 3 && f[0] == "aside":
			l.aside = append(l.aside, [2]string{f[1], f[2]})
		case len(f) == 3 && f[0] == "name":
			l.names = append(l.names, [2]string{f[1], f[2]})
		default:
			return l, fmt.Errorf("%w: %s has the line %q", ErrDamaged, salvageName, line)
		}
	}
	return l, nil
}

// save makes the list durable, and with it the salvage.
func (l *salvageList) save(dir string, o *Options) error {
	if err := o.files.sync(dir); err != nil { // the names of the new segments
		return err
	}
	path := filepath.Join(dir, salvageName)
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = o.files.writeAt(f, l.encode(), 0)
	if err == nil {
		err = o.files.syncFile(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = o.files.rename(tmp, path)
	}
	if err != nil {
		_ = o.files.remove(tmp)
		return err
	}
	return o.files.sync(dir)
}

// finishSalvage ends a salvage that was begun: the damaged files are put aside, all of them, and only then the new ones
// get their names. Each step looks at what is there, so it can be done again after a cut.
func finishSalvage(dir string, o *Options) error {
	path := filepath.Join(dir, salvageName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	l, err := decodeSalvageList(b)
	if err != nil {
		return err
	}
	if err := o.files.sync(dir); err != nil { // a killed process may have left the list's name in the cache only
		return err
	}
	waiting := map[string]bool{}
	for _, n := range l.names {
		if _, err := os.Stat(filepath.Join(dir, n[0])); err == nil {
			waiting[n[1]] = true
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	replaced := func(name string) bool {
		return slices.ContainsFunc(l.names, func(n [2]string) bool { return n[1] == name })
	}
	for _, a := range l.aside {
		if replaced(a[0]) && !waiting[a[0]] {
			continue // what bears this name is the new one
		}
		if err := o.files.rename(filepath.Join(dir, a[0]), filepath.Join(dir, a[1])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := o.files.sync(dir); err != nil {
		return err
	}
	for _, n := range l.names {
		if waiting[n[1]] {
			if err := o.files.rename(filepath.Join(dir, n[0]), filepath.Join(dir, n[1])); err != nil {
				return err
			}
		}
	}
	if err := o.files.sync(dir); err != nil {
		return err
	}
	if err := o.files.remove(path); err != nil {
		return err
	}
	return o.files.sync(dir)
}

// refusePending keeps those who only read from taking a half exchanged directory for the log.
func refusePending(entries []os.DirEntry) error {
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == salvageName }) {
		return errors.New("a salvage was interrupted; start the gateway, or salvage again, and it is finished")
	}
	return nil
}
