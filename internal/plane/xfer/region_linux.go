package xfer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// seals of a region: its size is final, so no peer can make an access to it fault.
const regionSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// window is one end's mapping of a region. The owner's has a descriptor too.
type window struct {
	b    []byte
	fd   int // -1 at the writer
	once sync.Once
}

// newWindow makes a region.
func newWindow() (*window, error) {
	fd, b, err := newSealedMemory(regionSize, unix.PROT_READ, regionSeals) // the owner only reads
	if err != nil {
		return nil, err
	}
	return &window{b: b, fd: fd}, nil
}

// newSealedMemory makes an anonymous file of size bytes, maps it and seals it: it cannot be resized.
func newSealedMemory(size, protection, seals int) (fd int, b []byte, err error) {
	fd, err = unix.MemfdCreate("penstock-xfer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("make a region: %w", err)
	}
	if b, err = allocateSealed(fd, size, protection, seals); err != nil {
		_ = unix.Close(fd)
		return -1, nil, newFailure(Overloaded, "make a region of %d bytes: %w", size, err)
	}
	return fd, b, nil
}

// allocationStep is how much memory is allocated at a time: an interrupted allocation starts again.
const allocationStep = 64 << 20

// allocateSealed provides the memory in advance: a write to a page which the system does not have would
// kill the process. It seals last: a seal may forbid further mappings for writing.
func allocateSealed(fd, size, protection, seals int) ([]byte, error) {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	for at := 0; at < size; {
		n := min(size-at, allocationStep)
		err := unix.Fallocate(fd, 0, int64(at), int64(n))
		switch {
		case err == nil:
			at += n
		case !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
	b, err := unix.Mmap(fd, 0, size, protection, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	return b, nil
}

// slot returns the memory of a slot.
func (w *window) slot(i int) []byte { return w.part(i*ChunkSize, ChunkSize) }

// part returns n bytes from at.
func (w *window) part(at, n int) []byte { return w.b[at : at+n : at+n] }

// discard frees the memory of a region even if the writer still maps it, and closes w.
func (w *window) discard() {
	// An error leaves the memory to the end of the writer's mapping.
	_ = unix.Fallocate(w.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, regionSize)
	w.close()
}

// close unmaps the region in this process.
func (w *window) close() {
	w.once.Do(func() {
		if w.b != nil {
			_ = unix.Munmap(w.b)
		}
		if w.fd >= 0 {
			_ = unix.Close(w.fd)
		}
	})
}

// sendTo sends greeting to the writer, with the region and two rings, and returns the connection over
// these.
func (w *window) sendTo(conn net.Conn, greeting []byte, poll *poller) (net.Conn, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errNoSharedMemory
	}
	c, err := newRingConn(conn, poll)
	if err != nil {
		return nil, err
	}
	fds := []int{w.fd}
	err = func() error {
		for _, r := range []struct {
			mem        *ringMem
			protection int
		}{{&c.ours, unix.PROT_READ | unix.PROT_WRITE}, {&c.peers, unix.PROT_READ}} {
			fd, b, err := newSealedMemory(ringMemory, r.protection, regionSeals)
			if err != nil {
				return err
			}
			fds, *r.mem = append(fds, fd), b
		}
		n, _, err := u.WriteMsgUnix(greeting, unix.UnixRights(fds...), nil)
		if err == nil && n < len(greeting) {
			_, err = u.Write(greeting[n:])
		}
		return err
	}()
	for _, fd := range fds[1:] {
		_ = unix.Close(fd)
	}
	if err != nil {
		c.unmap()
		return nil, err
	}
	return c, nil
}

// greetingFiles is how many files come with the greeting of an owner: a region and two rings. With that of a
// SharedRegion come fewer.
const greetingFiles = 3

// fileReader reads from a unix socket, and collects the files which come with the bytes.
type fileReader struct {
	conn net.Conn
	fds  []int
}

// Read implements io.Reader.
func (r *fileReader) Read(p []byte) (int, error) {
	c, ok := r.conn.(*net.UnixConn)
	if !ok {
		return 0, errNoSharedMemory
	}
	oob := make([]byte, unix.CmsgSpace(8*4))
	n, oobn, _, _, err := c.ReadMsgUnix(p, oob)
	if err != nil {
		return 0, err // n is -1
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			r.fds = append(r.fds, fds...)
		}
	}
	if len(r.fds) > greetingFiles {
		return 0, fmt.Errorf("%d files came instead of a region and two rings", len(r.fds))
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// close closes the files. Mappings of them stay.
func (r *fileReader) close() {
	for _, fd := range r.fds {
		_ = unix.Close(fd)
	}
	r.fds = nil
}

// mapWindow maps the region of size bytes and the two rings which have come: the owner's and the writer's.
func (r *fileReader) mapWindow(size int, poll *poller) (*window, net.Conn, error) {
	if len(r.fds) != greetingFiles {
		return nil, nil, fmt.Errorf("%d files came instead of a region and two rings", len(r.fds))
	}
	c, err := newRingConn(r.conn, poll)
	if err != nil {
		return nil, nil, err
	}
	const readWrite = unix.PROT_READ | unix.PROT_WRITE
	region, err := mapSealed(r.fds[0], size, readWrite, unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, err
	}
	w := &window{b: region, fd: -1}
	if c.peers, err = mapSealed(r.fds[1], ringMemory, unix.PROT_READ, unix.MAP_POPULATE); err == nil {
		c.ours, err = mapSealed(r.fds[2], ringMemory, readWrite, unix.MAP_POPULATE)
	}
	if err != nil {
		w.close()
		c.unmap()
		return nil, nil, err
	}
	return w, c, nil
}

// mapSealed maps an anonymous file of a peer, which must have size bytes and be sealed.
func mapSealed(fd, size, protection, flags int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("what came is no region: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if seals&regionSeals != regionSeals || st.Size != int64(size) {
		return nil, fmt.Errorf("a region has %d bytes and seals %#x, not %d and %#x", st.Size, seals, size, regionSeals)
	}
	return unix.Mmap(fd, 0, size, protection, unix.MAP_SHARED|flags)
}

// checkPeer refuses a peer of another user. Sockets in the abstract namespace have no permissions.
func checkPeer(conn net.Conn) error {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return errNoSharedMemory
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the peer is a process of user %d, not of %d", cred.Uid, os.Geteuid())
	}
	return nil
}

// identifyHost returns what the processes have in common which reach each other's abstract sockets:
// the kernel's boot id and the network namespace.
func identifyHost() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return "", err
	}
	sum := digestBytes(fmt.Appendf(nil, "%s %d", strings.TrimSpace(string(boot)), st.Ino))
	return fmt.Sprintf("%016x", uint64(sum)), nil
}
