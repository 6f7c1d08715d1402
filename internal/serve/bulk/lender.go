// Package bulk hands bytes which are too large for a message to other processes: decoded media, and what an
// engine's processor made of them. One process lends bytes, and names the place in the message; another
// fetches them with the method fetch of the request plane, over the plane for bulk data where that reaches.
package bulk

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

// Lender lends bytes to other processes. It serves them from the first Lend on.
type Lender struct {
	calls  rpc.Plane
	bulk   xfer.Plane
	addr   string // to serve at; "" lets the plane choose
	log    *slog.Logger
	wanted chan struct{} // closed by the first Lend
	want   sync.Once
	served chan struct{} // closed when at is known, or serving has ended
	mu     struct {
		sync.Mutex
		at    string // the address to advertise; "" before and after serving
		lent  map[handle][]byte
		bytes int64
	}
}

// handle names lent bytes. Only processes which were told can fetch them.
type handle [16]byte

// NewLender returns a Lender which serves calls at addr, and sends the bytes over bulk. Run must be called.
func NewLender(calls rpc.Plane, bulk xfer.Plane, addr string, log *slog.Logger) *Lender {
	l := &Lender{calls: calls, bulk: bulk, addr: addr, log: log, wanted: make(chan struct{}), served: make(chan struct{})}
	l.mu.lent = map[handle][]byte{}
	return l
}

// Run serves lent bytes, once there are some, until ctx ends. If it cannot, Lend fails, and what depends on it
// has other ways.
func (l *Lender) Run(ctx context.Context) error {
	known := sync.OnceFunc(func() { close(l.served) })
	defer known()
	select {
	case <-l.wanted:
	case <-ctx.Done():
		return nil
	}
	err := l.calls.Serve(ctx, l.addr, l.serveFetch, func(addr string) {
		l.setAddr(addr)
		known()
	})
	l.setAddr("")
	if err != nil && ctx.Err() == nil {
		l.log.Warn("bytes cannot be lent to other processes: they fetch media by URL, or are sent them with requests", "error", err)
		known()
		<-ctx.Done()
	}
	return nil
}

func (l *Lender) setAddr(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.at = addr
}

// startTimeout bounds the wait of the first Lend for serving to begin.
const startTimeout = 5 * time.Second

var errNotServed = errors.New("lend: nothing is served to other processes")

// Lend lends data, which must not change, until release is called. place is for Fetch.
func (l *Lender) Lend(data []byte) (place string, release func(), err error) {
	l.want.Do(func() { close(l.wanted) })
	select {
	case <-l.served:
	case <-time.After(startTimeout):
		return "", nil, errNotServed
	}
	var h handle
	_, _ = rand.Read(h[:]) // never fails
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.at == "" {
		return "", nil, errNotServed
	}
	l.mu.lent[h] = data
	l.mu.bytes += int64(len(data))
	return l.mu.at + placeMark + hex.EncodeToString(h[:]), func() { l.release(h) }, nil
}

func (l *Lender) release(h handle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.bytes -= int64(len(l.mu.lent[h]))
	delete(l.mu.lent, h)
}

// Usage returns how many objects are lent, and their bytes.
func (l *Lender) Usage() (objects int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.lent), l.mu.bytes
}

// placeMark separates the address of a place from its handle.
const placeMark = "#"

// splitPlace returns the address on the request plane and the handle of a place.
func splitPlace(place string) (addr string, handle []byte, ok bool) {
	addr, text, found := strings.Cut(place, placeMark)
	handle, err := hex.DecodeString(text)
	return addr, handle, found && err == nil && len(handle) > 0 && len(handle) <= engine.MaxHandle
}

// serveFetch answers the method fetch.
func (l *Lender) serveFetch(ctx context.Context, method string, body []byte, send func([]byte) error) error {
	if method != engine.MethodFetch {
		return fault.New(fault.Unimplemented, "this process serves %s, not %.100q", engine.MethodFetch, method)
	}
	var req engine.FetchRequest
	if err := engine.DecodeFetchRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	data, ok := l.find(req.Handle)
	if !ok {
		return fault.New(fault.NotFound, "fetch: nothing is lent by this handle: its request is over")
	}
	last := engine.Fetched{Attempt: req.Attempt, Last: true, Total: uint64(len(data))}
	if len(req.Into) > 0 {
		if err := l.write(ctx, req.Into, data); err != nil {
			return err
		}
	} else if err := sendPieces(req.Attempt, data, send); err != nil {
		return err
	}
	last.Digest = binary.LittleEndian.AppendUint64(nil, uint64(xfer.DigestOf(data)))
	return send(engine.AppendFetched(nil, &last))
}

func (l *Lender) find(b []byte) ([]byte, bool) {
	var h handle
	if copy(h[:], b) != len(b) || len(b) != len(h) {
		return nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	data, ok := l.mu.lent[h]
	return data, ok
}

// write sends data over the plane for bulk data, as the encoded descriptor says.
func (l *Lender) write(ctx context.Context, descriptor, data []byte) error {
	if l.bulk == nil {
		return fault.New(fault.Unavailable, "fetch: this process has no plane for bulk data")
	}
	d, err := xfer.DecodeDescriptor(descriptor)
	switch {
	case err != nil:
		return fault.InvalidParam("descriptor", "%v", err)
	case d.Size != int64(len(data)):
		return fault.InvalidParam("descriptor", "room for %d bytes; what is lent has %d", d.Size, len(data))
	}
	err = xfer.Write(ctx, l.bulk, d, nil, data)
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
