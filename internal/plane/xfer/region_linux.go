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
	fd, err := unix.MemfdCreate("penstock-xfer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a region: %w", err)
	}
	w := &window{fd: fd}
	if err := w.allocate(); err != nil {
		w.close()
		return nil, newFailure(Overloaded, "make a region of %d bytes: %w", regionSize, err)
	}
	return w, nil
}

// allocate provides the memory in advance: a write to a page which the system does not have would
// kill the process.
func (w *window) allocate() error {
	if err := unix.Ftruncate(w.fd, regionSize); err != nil {
		return err
	}
	for {
		err := unix.Fallocate(w.fd, 0, 0, regionSize)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	if _, err := unix.FcntlInt(uintptr(w.fd), unix.F_ADD_SEALS, regionSeals); err != nil {
		return err
	}
	// The owner only reads.
	b, err := unix.Mmap(w.fd, 0, regionSize, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	w.b = b
	return err
}

// slot returns the memory of a slot.
func (w *window) slot(i int) []byte { return w.b[i*ChunkSize : (i+1)*ChunkSize] }

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

// sendTo sends greeting to the writer, with the region.
func (w *window) sendTo(conn net.Conn, greeting []byte) error {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return errNoSharedMemory
	}
	n, _, err := c.WriteMsgUnix(greeting, unix.UnixRights(w.fd), nil)
	if err == nil && n < len(greeting) {
		_, err = c.Write(greeting[n:])
	}
	return err
}

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
	oob := make([]byte, unix.CmsgSpace(4*4))
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

// mapWindow maps the region of size bytes which has come.
func (r *fileReader) mapWindow(size int) (*window, error) {
	if len(r.fds) != 1 {
		return nil, fmt.Errorf("%d files came instead of a region", len(r.fds))
	}
	seals, err := unix.FcntlInt(uintptr(r.fds[0]), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("what came is no region: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.fds[0], &st); err != nil {
		return nil, err
	}
	if seals&regionSeals != regionSeals || st.Size != int64(size) {
		return nil, fmt.Errorf("the region has %d bytes and seals %#x, not %d and %#x", st.Size, seals, size, regionSeals)
	}
	b, err := unix.Mmap(r.fds[0], 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	return &window{b: b, fd: -1}, nil
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
