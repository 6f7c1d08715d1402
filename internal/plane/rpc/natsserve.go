package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"penstock/core/fault"
)

// natsServer is one Serve in progress.
type natsServer struct {
	p       *NATSPlane
	subject string
	handler Handler
	bodies  byteBudget
	// calls counts handlers. It is incremented under mu and only while the server is not draining,
	// so Wait never races with an Add from zero.
	calls sync.WaitGroup
	mu    struct {
		sync.Mutex
		draining bool
		calls    map[string]*natsServerCall // by reply subject
	}
}

func newNATSServer(p *NATSPlane, subject string, h Handler) *natsServer {
	s := &natsServer{p: p, subject: subject, handler: h, bodies: byteBudget{limit: p.cfg.MaxBodies}}
	s.mu.calls = make(map[string]*natsServerCall)
	return s
}

// startDraining makes the server refuse new calls.
func (s *natsServer) startDraining() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.draining = true
}

// keepAlive runs keepAlive of every call.
func (s *natsServer) keepAlive(silence int) {
	s.mu.Lock()
	calls := make([]*natsServerCall, 0, len(s.mu.calls))
	for _, c := range s.mu.calls {
		calls = append(calls, c)
	}
	s.mu.Unlock()
	for _, c := range calls {
		c.keepAlive(silence)
	}
}

// handleMessage handles the messages of all callers, each caller's in order of sending. It never
// blocks.
func (s *natsServer) handleMessage(m *nats.Msg) {
	if len(m.Data) == 0 || m.Reply == "" {
		return
	}
	switch m.Data[0] {
	case natsCallType:
		if err := s.startCall(m); err != nil {
			s.publishReply(m.Reply, appendNATSEnd(nil, 1, err))
		}
	case natsCreditType:
		switch c := s.findCall(m.Reply); {
		case c == nil:
			s.publishReply(m.Reply, []byte{natsGoneType})
		case len(m.Data) >= natsSeqHead:
			c.recordCredit(binary.LittleEndian.Uint64(m.Data[1:]))
		}
	case natsCancelType:
		if c := s.findCall(m.Reply); c != nil {
			c.cancel()
		}
	case natsProbeType:
		s.publishReply(m.Reply, appendNATSSeq(nil, natsAliveType, 0))
	}
}

// publishReply sends a message whose loss does no harm.
func (s *natsServer) publishReply(reply string, b []byte) { _ = s.p.nc.Publish(reply, b) }

func (s *natsServer) findCall(reply string) *natsServerCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.calls[reply]
}

// startCall starts the handler of a call.
func (s *natsServer) startCall(m *nats.Msg) error {
	msg, err := decodeNATSCall(m.Data)
	if err != nil {
		return err
	}
	// The handler gets the caller's deadline and trace but no context values.
	ctx, cancel := msg.handlerContext(context.Background())
	c := &natsServerCall{s: s, reply: m.Reply, cancel: cancel, sending: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	c.mu.allowed = Credit
	if err := s.registerCall(c, msg); err != nil {
		cancel()
		return err
	}
	go c.runHandler(ctx, msg)
	return nil
}

// registerCall registers a call, or returns the reason to refuse it. A call whose reply subject is
// in use is a Conflict.
func (s *natsServer) registerCall(c *natsServerCall, msg *natsCallMsg) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.draining:
		return fault.New(fault.Unavailable, "call %s: the server is leaving", msg.method)
	case len(s.mu.calls) >= s.p.cfg.MaxCalls:
		return fault.New(fault.Overloaded, "call %s: the server has %d calls in progress, which is all it takes; try again", msg.method, len(s.mu.calls))
	case s.mu.calls[c.reply] != nil:
		return fault.New(fault.Conflict, "call %s: the reply subject is in use", msg.method)
	case !s.bodies.tryReserve(int64(msg.size)):
		return errBodiesFull(msg.method, int64(msg.size))
	}
	s.mu.calls[c.reply] = c
	s.calls.Add(1)
	return nil
}

func (s *natsServer) unregisterCall(c *natsServerCall, msg *natsCallMsg) {
	s.mu.Lock()
	delete(s.mu.calls, c.reply)
	s.mu.Unlock()
	s.bodies.release(int64(msg.size))
	s.calls.Done()
}

// natsServerCall is the server's end of one call.
type natsServerCall struct {
	s      *natsServer
	reply  string
	cancel context.CancelFunc
	// sending is held by the sending goroutine, which owns buf.
	sending chan struct{}
	buf     []byte
	// sent is the number of the last message that was passed to the connection.
	sent  atomic.Uint64
	spoke atomic.Bool   // sent something since the last beat
	wake  chan struct{} // has a token when allowed has grown
	mu    struct {
		sync.Mutex
		allowed uint64 // number of the last message that the credit allows
		silent  int    // keepalive intervals without a message
	}
}

// runHandler runs the handler and sends its outcome.
func (c *natsServerCall) runHandler(ctx context.Context, msg *natsCallMsg) {
	defer c.s.unregisterCall(c, msg) // deferred first, so that the call is known until its end is sent
	defer c.cancel()
	if grease := randomNATSGrease(); grease != nil {
		c.s.publishReply(c.reply, grease)
	}
	var end error
	body, removed, err := c.fetchBody(ctx, msg)
	defer removed()
	if err != nil {
		c.sendEnd(err)
		return
	}
	defer func() { c.sendEnd(end) }() // runs even if the handler ends the goroutine
	invokeHandler(ctx, c.s.handler, msg.method, body, func(f []byte) error { return c.sendFrame(ctx, f) }, func(err error) { end = err })
	if cause := errors.Unwrap(end); cause != nil {
		c.s.p.cfg.Log.Error("a call failed", "method", msg.method, "err", cause)
	}
}

// fetchBody returns the call's body, from the object store if it is there, and a function which
// waits until the object is removed.
func (c *natsServerCall) fetchBody(ctx context.Context, msg *natsCallMsg) (body []byte, removed func(), err error) {
	if msg.object == "" {
		return msg.body, func() {}, nil
	}
	body, err = c.s.p.store.getBody(ctx, msg)
	var gone sync.WaitGroup
	gone.Go(func() { c.s.p.store.removeObject(msg.object) })
	return body, gone.Wait, err
}

// sendEnd sends the outcome of the call. Frames sent after it are ignored.
func (c *natsServerCall) sendEnd(err error) {
	c.cancel()
	c.sending <- struct{}{} // waits for a sending goroutine, which sees that the call is over
	defer func() { <-c.sending }()
	c.s.publishReply(c.reply, appendNATSEnd(c.buf[:0], c.sent.Load()+1, err))
}

// sendFrame sends one frame in as many messages as it needs. It blocks while the caller is behind
// by the credit.
func (c *natsServerCall) sendFrame(ctx context.Context, frame []byte) error {
	if len(frame) > MaxFrame {
		return errFrameTooLarge(len(frame))
	}
	select {
	case c.sending <- struct{}{}:
		defer func() { <-c.sending }()
	case <-ctx.Done():
		return errCallOver()
	}
	for most := c.s.p.chunkSize(); ; frame = frame[most:] {
		if len(frame) <= most {
			return c.sendPart(ctx, 0, frame)
		}
		if err := c.sendPart(ctx, natsMore, frame[:most]); err != nil {
			return err
		}
	}
}

// sendPart sends one message. The caller holds sending.
func (c *natsServerCall) sendPart(ctx context.Context, flags byte, data []byte) error {
	seq := c.sent.Load() + 1
	if err := c.awaitCredit(ctx, seq); err != nil {
		return err
	}
	c.buf = append(appendNATSFrame(c.buf[:0], flags, seq), data...)
	err := c.s.p.nc.Publish(c.reply, c.buf)
	if cap(c.buf) > maxKeptFrame {
		c.buf = nil
	}
	if err != nil { // the caller will detect the missing message
		c.cancel()
		return errCallOver()
	}
	c.sent.Store(seq)
	c.spoke.Store(true)
	return nil
}

// awaitCredit waits until the credit allows message seq.
func (c *natsServerCall) awaitCredit(ctx context.Context, seq uint64) error {
	for {
		if ctx.Err() != nil {
			return errCallOver()
		}
		c.mu.Lock()
		ok := seq <= c.mu.allowed
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
		}
	}
}

// recordCredit records that the caller is alive and has received taken messages.
func (c *natsServerCall) recordCredit(taken uint64) {
	c.mu.Lock()
	c.mu.silent = 0
	if taken <= c.mu.allowed { // a caller cannot have received more than was allowed
		c.mu.allowed = max(c.mu.allowed, taken+Credit)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// keepAlive sends a keepalive if nothing was sent since the last beat, and adds silence, in beats,
// to the caller's silence. It cancels the handler of a silent caller.
func (c *natsServerCall) keepAlive(silence int) {
	c.mu.Lock()
	c.mu.silent += silence
	silent := c.mu.silent
	c.mu.Unlock()
	if silent > silentBeats {
		c.cancel()
		return
	}
	if c.spoke.Swap(false) {
		return
	}
	// Messages up to sent were passed to the connection before this one, so a caller that has
	// received fewer has lost some.
	if err := c.s.p.nc.Publish(c.reply, appendNATSSeq(nil, natsAliveType, c.sent.Load())); err != nil {
		c.cancel()
	}
}
