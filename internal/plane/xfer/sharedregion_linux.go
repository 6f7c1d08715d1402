package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// sharedSeals are the seals of the memory of a SharedRegion: only mappings from before can be written.
const sharedSeals = regionSeals | unix.F_SEAL_FUTURE_WRITE

// Allocate makes the memory of the region, which it can do once: size bytes of zero. All of them are taken from the
// system at once.
func (r *SharedRegion) Allocate(size int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.memory != nil || r.mu.closed {
		return nil, fault.New(fault.Conflict, "a region which others read: it has memory, or is closed")
	}
	fd, b, err := newSealedMemory(size, unix.PROT_READ|unix.PROT_WRITE, sharedSeals)
	if err != nil {
		return nil, err
	}
	r.mu.fd, r.mu.memory = fd, b
	close(r.allocated)
	return b, nil
}

// Lock keeps the memory from being swapped out. The error of a process which may not lock as much is an unix.Errno.
func (r *SharedRegion) Lock() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return unix.Mlock(r.mu.memory)
}

// Close gives the memory back. What this process still reads is zero from then on, and what it writes is lost: requests
// whose end was not awaited may do so. Readers keep what they have mapped until Run has ended.
func (r *SharedRegion) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.memory == nil || r.mu.closed {
		r.mu.closed = true
		return nil
	}
	r.mu.closed = true
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED | unix.MAP_NORESERVE
	at := unsafe.Pointer(unsafe.SliceData(r.mu.memory))
	_, err := unix.MmapPtr(-1, 0, at, uintptr(len(r.mu.memory)), unix.PROT_READ|unix.PROT_WRITE, flags)
	return errors.Join(err, unix.Close(r.mu.fd))
}

// Run serves readers until ctx ends; then it ends their connections and returns nil.
func (r *SharedRegion) Run(ctx context.Context) error {
	l, err := net.Listen("unix", "@"+r.name)
	if err != nil {
		return fmt.Errorf("serve a region which others read: %w", err)
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	room := make(chan struct{}, r.cfg.Readers)
	wait := backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			r.cfg.Log.Warn("cannot accept a reader of the region, trying again", "error", err)
			if wait.Wait(ctx) != nil {
				return nil
			}
			continue
		}
		wait.Reset()
		select {
		case room <- struct{}{}:
			readers.Go(func() {
				defer func() { <-room }()
				r.serveReader(ctx, conn)
			})
		default:
			_, _ = conn.Write(appendVerdict([]byte(magic), frameOutcome, newFailure(Overloaded, "%d processes read the region already", r.cfg.Readers))) // best effort
			_ = conn.Close()
		}
	}
}

// serveReader gives one reader the region, and its notes to VisitNotes, until it leaves or ctx ends.
func (r *SharedRegion) serveReader(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	if err := checkPeer(conn); err != nil {
		r.cfg.Log.Warn("refused a reader of the region", "error", err)
		return
	}
	left := make(chan struct{})
	var watch sync.WaitGroup
	defer watch.Wait()
	defer conn.Close()
	watch.Go(func() {
		defer close(left)
		_, _ = conn.Read(make([]byte, 1)) // a reader sends nothing: this is its end, or that of the connection
	})
	select {
	case <-r.allocated:
	case <-left:
		return
	case <-ctx.Done():
		return
	}
	n, err := r.greetReader(conn)
	if err != nil {
		select {
		case <-left: // it has not waited
		default:
			r.cfg.Log.Warn("cannot give the region to a reader", "error", err)
		}
		return
	}
	defer r.dropNotes(n)
	select {
	case <-left:
	case <-ctx.Done():
	}
}

// greetReader sends the region and new notes.
func (r *SharedRegion) greetReader(conn net.Conn) (*readerNotes, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errNoSharedMemory
	}
	fd, b, err := newSealedMemory(NotesSize, unix.PROT_READ, regionSeals)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := &readerNotes{b}
	r.addNotes(n) // the reader may write them as soon as it has them
	if err := r.sendRegion(u, fd); err != nil {
		r.dropNotes(n)
		return nil, err
	}
	return n, nil
}

// sendRegion sends the greeting.
func (r *SharedRegion) sendRegion(u *net.UnixConn, notes int) error {
	if err := u.SetWriteDeadline(time.Now().Add(r.cfg.Greeting)); err != nil {
		return err
	}
	fd, size, err := r.duplicateFile()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	greeting := appendShared(nil, sharedHeader{sharedVersion, uint64(size), NotesSize})
	sent, _, err := u.WriteMsgUnix(greeting, unix.UnixRights(fd, notes), nil)
	if err == nil && sent < len(greeting) {
		err = io.ErrShortWrite
	}
	return err
}

// duplicateFile returns the file of the memory, which the caller closes.
func (r *SharedRegion) duplicateFile() (fd, size int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return -1, 0, net.ErrClosed
	}
	fd, err = unix.FcntlInt(uintptr(r.mu.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, len(r.mu.memory), err
}

func (r *SharedRegion) addNotes(n *readerNotes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.notes[n] = struct{}{}
}

func (r *SharedRegion) dropNotes(n *readerNotes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.notes, n)
	_ = unix.Munmap(n.b)
}

// OpenRegion maps the SharedRegion at an address. It waits until the region has memory, its owner ends, or ctx does.
// A region of another host is Unavailable.
func OpenRegion(ctx context.Context, addr string) (*RegionView, error) {
	if !IsHere(addr) {
		return nil, fault.New(fault.Unavailable, "%.100q is no region of this host", addr)
	}
	_, name, _ := strings.Cut(addr, "/")
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", "@"+name)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) })
	v, err := receiveRegionView(conn)
	if err == nil && !stop() {
		v.Close()
		err = ctx.Err()
	}
	if err != nil {
		stop()
		_ = conn.Close()
		return nil, err
	}
	return v, nil
}

// receiveRegionView takes the greeting of an owner.
func receiveRegionView(conn net.Conn) (*RegionView, error) {
	if err := checkPeer(conn); err != nil {
		return nil, err
	}
	files := &fileReader{conn: conn}
	defer files.close()
	in := frameReader{r: files}
	if err := in.readMagic(); err != nil {
		return nil, err
	}
	t, payload, err := in.next()
	if err != nil {
		return nil, err
	}
	if t == frameOutcome {
		verdict, err := decodeVerdict(payload)
		return nil, errors.Join(verdict, err, errors.New("the owner of a region refuses readers"))
	}
	if t != frameShared {
		return nil, fmt.Errorf("a frame of type %d instead of a SHARED", t)
	}
	h, err := decodeShared(payload)
	if err != nil {
		return nil, err
	}
	if len(files.fds) != 2 {
		return nil, fmt.Errorf("%d files came instead of a region and notes", len(files.fds))
	}
	memory, err := mapSealed(files.fds[0], int(h.size), unix.PROT_READ, 0)
	if err != nil {
		return nil, err
	}
	notes, err := mapSealed(files.fds[1], int(h.notes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_POPULATE)
	if err != nil {
		_ = unix.Munmap(memory)
		return nil, err
	}
	return &RegionView{Bytes: memory, Notes: notes, conn: conn, unmap: sync.OnceFunc(func() {
		_, _ = unix.Munmap(memory), unix.Munmap(notes)
	})}, nil
}
