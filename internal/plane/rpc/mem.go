package rpc

import (
	"context"
	"fmt"
	"sync"

	"penstock/core/fault"
)

// MemPlane is the request plane within one process. Addresses are plain names; the plane chooses
// "mem-1", "mem-2", …. Only bytes and the public part of an error cross it, so code which works
// over MemPlane works over a network.
type MemPlane struct {
	bodies sync.Pool // of *[]byte
	mu     struct {
		sync.Mutex
		servers map[string]*memServer
		chosen  uint64
	}
}

var _ Plane = (*MemPlane)(nil)

// NewMemPlane returns a plane without servers.
func NewMemPlane() *MemPlane {
	m := &MemPlane{}
	m.mu.servers = make(map[string]*memServer)
	return m
}

type memServer struct {
	handler Handler
	// calls counts calls in progress. It is incremented under MemPlane.mu and only while the server
	// is registered, so Wait never races with an Add from zero.
	calls sync.WaitGroup
}

// Serve implements Plane. An addr in use is a Conflict. Handlers in progress outlive ctx: they end
// when they return or when their callers disconnect.
func (m *MemPlane) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	s := &memServer{handler: h}
	addr, err := m.registerServer(addr, s)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(addr)
	}
	<-ctx.Done()
	m.unregisterServer(addr)
	s.calls.Wait()
	return nil
}

// Call implements Plane.
func (m *MemPlane) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkLimits(method, body); err != nil {
		return err
	}
	s := m.startCall(addr)
	if s == nil {
		return fault.New(fault.Unavailable, "call %s: nothing serves %q", method, addr)
	}
	// The handler gets the caller's deadline and trace but no context values, as over a network.
	hctx, cancel := newCallMetadata(ctx).handlerContext(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()

	c := newMemCall(cancel)
	kept := m.copyBody(body) // the handler may outlive this call
	go func() {
		defer s.calls.Done()
		c.runHandler(hctx, s.handler, method, *kept)
		m.recycleBody(kept)
	}()
	return c.receiveFrames(ctx, recv)
}

// maxKept bounds the capacity of pooled body buffers, in bytes.
const maxKept = 64 << 10

// copyBody returns a copy of body in a pooled buffer. Pass it to recycleBody when done.
func (m *MemPlane) copyBody(body []byte) *[]byte {
	b, ok := m.bodies.Get().(*[]byte)
	if !ok {
		b = new([]byte)
	}
	*b = append((*b)[:0], body...)
	return b
}

// recycleBody returns a body's buffer to the pool after its handler has returned.
func (m *MemPlane) recycleBody(b *[]byte) {
	if cap(*b) <= maxKept {
		m.bodies.Put(b)
	}
}

// registerServer registers s under addr, or under a generated name if addr is empty.
func (m *MemPlane) registerServer(addr string, s *memServer) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for addr == "" {
		m.mu.chosen++
		name := fmt.Sprintf("mem-%d", m.mu.chosen)
		if m.mu.servers[name] == nil {
			addr = name
		}
	}
	if m.mu.servers[addr] != nil {
		return "", fault.New(fault.Conflict, "serve %q: the address is being served already", addr)
	}
	m.mu.servers[addr] = s
	return addr, nil
}

func (m *MemPlane) unregisterServer(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.servers, addr)
}

// startCall counts one more call at addr and returns its server, or nil if there is none.
func (m *MemPlane) startCall(addr string) *memServer {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.mu.servers[addr]
	if s != nil {
		s.calls.Add(1)
	}
	return s
}
