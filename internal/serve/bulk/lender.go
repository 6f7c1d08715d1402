// Package bulk hands bytes which are too large for a message to other processes: decoded media, and what an
// engine's processor made of them. One process lends bytes, and names the place in the message; another
// fetches them with the method fetch of the request plane, over the plane for bulk data where that reaches.
package bulk

import (
	"context"
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
	handles *Handles
	calls   rpc.Plane
	addr    string // to serve at; "" lets the plane choose
	log     *slog.Logger
	wanted  chan struct{} // closed by the first Lend
	want    sync.Once
	served  chan struct{} // closed when at is known, or serving has ended
	// startTimeout bounds the wait of the first Lend for serving to begin.
	startTimeout time.Duration
	mu           struct {
		sync.Mutex
		at string // the address to advertise; "" before and after serving
	}
}

// NewLender returns a Lender which serves calls at addr, and sends the bytes over bulk. Run must be called.
func NewLender(calls rpc.Plane, bulk xfer.Plane, addr string, log *slog.Logger) *Lender {
	return &Lender{handles: NewHandles(bulk), calls: calls, addr: addr, log: log, wanted: make(chan struct{}), served: make(chan struct{}), startTimeout: startTimeout}
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

// startTimeout bounds the wait of the first Lend and of the first Fetch.
const startTimeout = 5 * time.Second

var errNotServed = errors.New("lend: nothing is served to other processes")

// Lend lends data, which must not change, until release is called. place is for Fetch.
func (l *Lender) Lend(data []byte) (place string, release func(), err error) {
	l.want.Do(func() { close(l.wanted) })
	select {
	case <-l.served:
	case <-time.After(l.startTimeout):
		return "", nil, errNotServed
	}
	l.mu.Lock()
	at := l.mu.at
	l.mu.Unlock()
	if at == "" {
		return "", nil, errNotServed
	}
	name, _, release := l.handles.LendHandle(data, nil)
	return at + placeMark + hex.EncodeToString(name), release, nil
}

// Usage returns how many objects are lent, and their bytes.
func (l *Lender) Usage() (objects int, bytes int64) { return l.handles.Usage() }

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
	return l.handles.ServeFetch(ctx, body, send)
}
