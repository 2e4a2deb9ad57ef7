package blockdev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/rpc"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// goodbye is how long the serving process stays for what the program's mounts still write after it has ended.
const goodbye = 5 * time.Second

// root is the directory of the FUSE mount. Its files are the media: PROGRAM.NUMBER, so that `losetup` shows whose they are.
type root struct {
	fs.Inode

	mu    sync.Mutex // guards the field below
	media []*medium
}

func (r *root) medium(n int) (*medium, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < 0 || n >= len(r.media) {
		return nil, fmt.Errorf("no device %d", n)
	}
	return r.media[n], nil
}

// Lookup finds the file of a medium.
func (r *root) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	_, number, _ := strings.Cut(name, ".")
	n, err := strconv.Atoi(number)
	if err != nil {
		return nil, syscall.ENOENT
	}
	m, err := r.medium(n)
	if err != nil {
		return nil, syscall.ENOENT
	}
	f := &file{m: m}
	f.attr(&out.Attr)
	return r.NewInode(ctx, f, fs.StableAttr{Mode: syscall.S_IFREG, Ino: uint64(n) + 2}), 0
}

// file is the file of a medium.
type file struct {
	fs.Inode

	m *medium
}

var (
	_ fs.NodeLookuper  = (*root)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeSetattrer = (*file)(nil)
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
)

func (f *file) attr(a *fuse.Attr) {
	a.Mode, a.Size, a.Blksize = syscall.S_IFREG|0o600, uint64(f.m.size), pageSize
}

// Getattr tells the size.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.attr(&out.Attr)
	return 0
}

// Setattr changes nothing: a device has its size.
func (f *file) Setattr(_ context.Context, _ fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	f.attr(&out.Attr)
	return 0
}

// Open has the kernel keep no pages of it.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES, 0
}

func (f *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := f.m.read(off, dest); errno != 0 {
		return nil, errno
	}
	return fuse.ReadResultData(dest), 0
}

func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := f.m.write(off, data); errno != 0 {
		return 0, errno
	}
	return uint32(len(data)), 0
}

// Fsync is the flush of the device's cache.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return f.m.flush() }

// remote is what the program asks of the serving process.
type remote struct {
	r    *root
	conn *fuse.Server
}

// Make is the argument of remote.New.
type Make struct {
	Size   int64
	Image  string
	Timing Timing
}

// On is an argument for one device.
type On struct {
	Device, Of int
	Fault      Fault
	Timing     Timing
	Cut        Cut
}

// None is no answer.
type None struct{}

// Mount makes the FUSE mount.
func (s *remote) Mount(dir string, _ *None) error {
	srv, err := fs.Mount(dir, s.r, &fs.Options{
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, FsName: "blockdev", Name: "blockdev", MaxWrite: 1 << 20, MaxBackground: 128,
			DisableXAttrs: true, Logger: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
		},
	})
	s.conn = srv
	return err
}

// New adds a medium.
func (s *remote) New(a Make, device *int) error {
	m, err := newMedium(a.Size, a.Image, a.Timing)
	if err != nil {
		return err
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.media = append(s.r.media, m)
	*device = len(s.r.media) - 1
	return nil
}

// Counts returns what has reached it.
func (s *remote) Counts(a On, c *Counts) error {
	return s.with(a, func(m *medium) { *c = m.counts })
}

// Fail sets the fault.
func (s *remote) Fail(a On, _ *None) error {
	return s.with(a, func(m *medium) { m.fault, m.seen = a.Fault, 0 })
}

// Time sets the timing.
func (s *remote) Time(a On, _ *None) error {
	return s.with(a, func(m *medium) { m.timing = a.Timing })
}

// Reset gives it its first contents.
func (s *remote) Reset(a On, _ *None) error {
	return s.with(a, func(m *medium) { m.reset(m.first.snapshot()) })
}

func (s *remote) with(a On, do func(*medium)) error {
	m, err := s.r.medium(a.Device)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	do(m)
	return nil
}

// Record begins a record.
func (s *remote) Record(a On, _ *None) error {
	m, err := s.r.medium(a.Device)
	if err == nil {
		m.record()
	}
	return err
}

// Mark puts a mark into it.
func (s *remote) Mark(a On, at *int) error {
	m, err := s.r.medium(a.Device)
	if err != nil {
		return err
	}
	*at, err = m.mark()
	return err
}

// Events lists it.
func (s *remote) Events(a On, out *[]Event) error {
	m, err := s.r.medium(a.Device)
	if err == nil {
		*out = m.list()
	}
	return err
}

// Cut fills one device with what is left of another.
func (s *remote) Cut(a On, waiting *int) error {
	m, err := s.r.medium(a.Device)
	if err != nil {
		return err
	}
	of, err := s.r.medium(a.Of)
	if err != nil {
		return err
	}
	if m == of {
		return errors.New("a device cannot be its own replica")
	}
	*waiting, err = m.leave(of, a.Cut)
	return err
}

// serve answers the program until it hangs up. Then whatever it had mounted is on its way out, and gets a moment.
func serve(conn net.Conn) error {
	s := &remote{r: &root{}}
	srv := rpc.NewServer()
	if err := srv.RegisterName("Device", s); err != nil {
		return err
	}
	srv.ServeConn(conn)
	if s.conn == nil {
		return nil
	}
	over := time.AfterFunc(goodbye, func() { os.Exit(0) })
	defer over.Stop()
	s.conn.Wait()
	return nil
}
