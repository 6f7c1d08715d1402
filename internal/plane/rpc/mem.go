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
type Mem struct {
	bodies sync.Pool // of *[]byte
	mu     struct {
		sync.Mutex
		servers map[string]*memServer
		chosen  uint64
	}
}

var _ Plane = (*Mem)(nil)

// NewMemPlane returns a plane without servers.
func NewMem() *Mem {
	m := &Mem{}
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
func (m *Mem) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	s := &memServer{handler: h}
	addr, err := m.list(addr, s)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(addr)
	}
	<-ctx.Done()
	m.unlist(addr)
	s.calls.Wait()
	return nil
}

// Call implements Plane.
func (m *Mem) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := fits(method, body); err != nil {
		return err
	}
	s := m.join(addr)
	if s == nil {
		return fault.New(fault.Unavailable, "call %s: nobody serves %q", method, addr)
	}
	// The handler gets the caller's deadline and trace but no context values, as over a network.
	hctx, cancel := envelop(ctx).open(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()

	c := newMemCall(cancel)
	kept := m.keep(body) // the handler may outlive this call
	go func() {
		defer s.calls.Done()
		c.serve(hctx, s.handler, method, *kept)
		m.release(kept)
	}()
	return c.receive(ctx, recv)
}

// maxKept bounds the capacity of pooled body buffers, in bytes.
const maxKept = 64 << 10

// copyBody returns a copy of body in a pooled buffer. Pass it to recycleBody when done.
func (m *Mem) keep(body []byte) *[]byte {
	b, ok := m.bodies.Get().(*[]byte)
	if !ok {
		b = new([]byte)
	}
	*b = append((*b)[:0], body...)
	return b
}

// recycleBody returns a body's buffer to the pool after its handler has returned.
func (m *Mem) release(b *[]byte) {
	if cap(*b) <= maxKept {
		m.bodies.Put(b)
	}
}

// registerServer registers s under addr, or under a generated name if addr is empty.
func (m *Mem) list(addr string, s *memServer) (string, error) {
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

func (m *Mem) unlist(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.servers, addr)
}

// startCall counts one more call at addr and returns its server, or nil if there is none.
func (m *Mem) join(addr string) *memServer {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.mu.servers[addr]
	if s != nil {
		s.calls.Add(1)
	}
	return s
}
