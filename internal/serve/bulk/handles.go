package bulk

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/xfer"
)

// Handles lends bytes by handles, for a process which answers the method fetch itself.
type Handles struct {
	bulk xfer.Plane // nil if there is none
	mu   struct {
		sync.Mutex
		lent  map[handle]*lentBytes
		bytes int64
	}
}

// handle names lent bytes. Only processes which were told can fetch them.
type handle [16]byte

// lentBytes are lent by one handle.
type lentBytes struct {
	data []byte
	free func() // nil, or called when data are not read any more
	// fetched is closed when data were fetched for the first time, if isFetched.
	fetched   chan struct{}
	isFetched bool
	readers   int // the lender, until its release, and running fetches
}

// NewHandles returns Handles which send bytes over bulk, which may be nil.
func NewHandles(bulk xfer.Plane) *Handles {
	h := &Handles{bulk: bulk}
	h.mu.lent = map[handle]*lentBytes{}
	return h
}

// LendHandle lends data, which must not change, until release is called. fetched is closed when they have been
// fetched once. free, if not nil, is called after the release, when data are not read any more.
func (h *Handles) LendHandle(data []byte, free func()) (name []byte, fetched <-chan struct{}, release func()) {
	var of handle
	_, _ = rand.Read(of[:]) // never fails
	l := &lentBytes{data: data, free: free, fetched: make(chan struct{}), readers: 1}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.lent[of] = l
	h.mu.bytes += int64(len(data))
	return of[:], l.fetched, sync.OnceFunc(func() { h.release(of, l) })
}

func (h *Handles) release(of handle, l *lentBytes) {
	h.mu.Lock()
	h.mu.bytes -= int64(len(l.data))
	delete(h.mu.lent, of)
	h.mu.Unlock()
	h.endRead(l)
}

// Usage returns how many objects are lent, and their bytes.
func (h *Handles) Usage() (objects int, bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.lent), h.mu.bytes
}

// ServeFetch answers the method fetch.
func (h *Handles) ServeFetch(ctx context.Context, body []byte, send func([]byte) error) error {
	var req engine.FetchRequest
	if err := engine.DecodeFetchRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	l := h.beginRead(req.Handle)
	if l == nil {
		return fault.New(fault.NotFound, "fetch: nothing is lent by this handle: its request is over")
	}
	defer h.endRead(l)
	last := engine.Fetched{Attempt: req.Attempt, Last: true, Total: uint64(len(l.data))}
	var err error
	if len(req.Into) > 0 {
		err = h.write(ctx, req.Into, l.data) // with its own digest
	} else {
		err = sendPieces(req.Attempt, l.data, send)
		last.Digest = appendDigest(nil, xfer.DigestOf(l.data))
	}
	if err == nil {
		err = send(engine.AppendFetched(nil, &last))
	}
	if err == nil {
		h.markFetched(l)
	}
	return err
}

// beginRead returns what is lent by a handle, until endRead; nil if nothing is.
func (h *Handles) beginRead(b []byte) *lentBytes {
	var of handle
	if copy(of[:], b) != len(b) || len(b) != len(of) {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.mu.lent[of]
	if l != nil {
		l.readers++
	}
	return l
}

func (h *Handles) endRead(l *lentBytes) {
	h.mu.Lock()
	l.readers--
	last := l.readers == 0
	h.mu.Unlock()
	if last && l.free != nil {
		l.free()
	}
}

func (h *Handles) markFetched(l *lentBytes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !l.isFetched {
		l.isFetched = true
		close(l.fetched)
	}
}

// write sends data over the plane for bulk data, as the encoded descriptor says.
func (h *Handles) write(ctx context.Context, descriptor, data []byte) error {
	if h.bulk == nil {
		return fault.New(fault.Unavailable, "fetch: this process has no plane for bulk data")
	}
	d, err := xfer.DecodeDescriptor(descriptor)
	switch {
	case err != nil:
		return fault.InvalidParam("descriptor", "%v", err)
	case d.Size != int64(len(data)):
		return fault.InvalidParam("descriptor", "room for %d bytes; what is lent has %d", d.Size, len(data))
	}
	err = xfer.Write(ctx, h.bulk, d, nil, data)
	if fault.CodeOf(err) == fault.NotFound { // the transfer is over; what is lent is there
		err = fault.New(fault.Unavailable, "fetch: %w", err)
	}
	return err
}

// sendPieces sends data in the frames of an answer.
func sendPieces(attempt uint32, data []byte, send func([]byte) error) error {
	var frame []byte
	for len(data) > 0 {
		piece := data[:min(len(data), engine.MaxPiece)]
		frame = engine.AppendFetched(frame[:0], &engine.Fetched{Attempt: attempt, Data: piece})
		if err := send(frame); err != nil {
			return err
		}
		data = data[len(piece):]
	}
	return nil
}

// appendDigest appends the bytes of a digest as messages have them.
func appendDigest(dst []byte, d xfer.Digest) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(d))
}
