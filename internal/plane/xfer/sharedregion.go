package xfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"penstock/core/fault"
)

// Limits of shared regions.
const (
	// NotesSize is the size of the notes of a reader in bytes.
	NotesSize = 4096
	// maxSharedRegion bounds the memory which a reader maps, in bytes.
	maxSharedRegion = 1 << 50
	// sharedVersion is the only version of the greeting that this build speaks.
	sharedVersion = 1
)

// SharedRegionConfig has the bounds of a SharedRegion.
type SharedRegionConfig struct {
	// Readers bounds the processes which map the region, or wait for its memory. One more is refused. Default: 64.
	Readers int
	// Greeting bounds the time for which a reader may leave the greeting untaken. Default: 5 s.
	Greeting time.Duration
	// Log receives refused readers. Nil discards them.
	Log *slog.Logger
}

func (c *SharedRegionConfig) ensureDefaults() {
	c.Readers = cmp.Or(c.Readers, 64)
	c.Greeting = cmp.Or(c.Greeting, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// SharedRegion is memory of this process that other processes of its user on its host map for reading. Each of them has
// a page of notes, which it writes and this process reads. Only Linux has it.
//
// The memory is an anonymous file (memfd) without a name, sealed against resizing and against further mappings for
// writing. Readers connect to a unix socket in the abstract namespace and get the file there, so a process which is
// killed leaves nothing behind, and each side learns of the other's end. No byte is sent after that.
type SharedRegion struct {
	cfg       SharedRegionConfig
	addr      string
	name      string // of the socket
	allocated chan struct{}
	mu        struct {
		sync.Mutex
		memory []byte // nil before Allocate
		fd     int
		notes  map[*readerNotes]struct{}
		closed bool
	}
}

// readerNotes are the notes of one reader.
type readerNotes struct{ b []byte }

// NewSharedRegion returns a region without memory. It is Unimplemented on systems other than Linux.
func NewSharedRegion(cfg SharedRegionConfig) (*SharedRegion, error) {
	cfg.ensureDefaults()
	host, err := identifyHost()
	if err != nil {
		return nil, fault.New(fault.Unimplemented, "a region which others read: %w", err)
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	r := &SharedRegion{cfg: cfg, name: socketPrefix + hex.EncodeToString(random[:]), allocated: make(chan struct{})}
	r.addr = host + "/" + r.name
	r.mu.fd, r.mu.notes = -1, map[*readerNotes]struct{}{}
	return r, nil
}

// Addr is where readers find the region.
func (r *SharedRegion) Addr() string { return r.addr }

// VisitNotes calls visit with the notes of each reader, in no order that means anything. The notes must not be used
// later.
func (r *SharedRegion) VisitNotes(visit func(notes []byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.mu.notes { // the order does not matter
		visit(n.b)
	}
}

// RegionView is a SharedRegion of another process.
type RegionView struct {
	// Bytes is the memory, which its owner changes at any time. Notes is the page which this process may write.
	Bytes, Notes []byte

	conn  net.Conn // its end is that of the owner
	unmap func()
}

// Await returns when the owner has ended, or ctx does. The view stays as it was. It is called once.
func (v *RegionView) Await(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = v.conn.SetDeadline(past) })
	defer stop()
	_, _ = v.conn.Read(make([]byte, 1)) // an owner sends nothing more
}

// Close unmaps the region. Nothing may use Bytes and Notes any more.
func (v *RegionView) Close() {
	_ = v.conn.Close()
	v.unmap()
}

// IsHere reports whether an address of a SharedRegion is one of this host.
func IsHere(addr string) bool {
	host, name, ok := strings.Cut(addr, "/")
	if !ok || !strings.HasPrefix(name, socketPrefix) {
		return false
	}
	own, err := identifyHost()
	return err == nil && own == host
}

// sharedHeader is the payload of SHARED.
type sharedHeader struct {
	version uint8
	size    uint64
	notes   uint32
}

func appendShared(dst []byte, h sharedHeader) []byte {
	dst = append(dst, magic...)
	start := len(dst)
	dst = append(beginFrame(dst, frameShared), h.version)
	dst = binary.LittleEndian.AppendUint64(dst, h.size)
	dst = binary.LittleEndian.AppendUint32(dst, h.notes)
	return endFrame(dst, start)
}

// decodeShared decodes a SHARED: a region of at least one byte, with notes.
func decodeShared(b []byte) (h sharedHeader, err error) {
	if len(b) < 13 {
		return h, errShortFrame("SHARED", b)
	}
	h = sharedHeader{b[0], binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint32(b[9:])}
	switch {
	case h.version != sharedVersion:
		return h, newFailure(Invalid, "the region is of version %d, this build reads %d", h.version, sharedVersion)
	case h.size == 0 || h.size > maxSharedRegion || h.notes != NotesSize:
		return h, fmt.Errorf("a SHARED of %d bytes and %d of notes", h.size, h.notes)
	}
	return h, nil
}
