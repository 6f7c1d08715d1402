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
	p       *NATS
	subject string
	handler Handler
	bodies  budget
	// calls counts handlers. It is incremented under mu and only while the server is not draining,
	// so Wait never races with an Add from zero.
	calls sync.WaitGroup
	mu    struct {
		sync.Mutex
		draining bool
		calls    map[string]*natsServed // by reply subject
	}
}

func newNATSServer(p *NATS, subject string, h Handler) *natsServer {
	s := &natsServer{p: p, subject: subject, handler: h, bodies: budget{limit: p.cfg.MaxBodies}}
	s.mu.calls = make(map[string]*natsServed)
	return s
}

// startDraining makes the server refuse new calls.
func (s *natsServer) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.draining = true
}

// keepAlive runs keepAlive of every call.
func (s *natsServer) beat(silence int) {
	s.mu.Lock()
	calls := make([]*natsServed, 0, len(s.mu.calls))
	for _, c := range s.mu.calls {
		calls = append(calls, c)
	}
	s.mu.Unlock()
	for _, c := range calls {
		c.beat(silence)
	}
}

// handleMessage handles the messages of all callers, each caller's in order of sending. It never
// blocks.
func (s *natsServer) dispatch(m *nats.Msg) {
	if len(m.Data) == 0 || m.Reply == "" {
		return
	}
	switch m.Data[0] {
	case natsCallType:
		if err := s.begin(m); err != nil {
			s.say(m.Reply, appendNATSEnd(nil, 1, err))
		}
	case natsCreditType:
		switch c := s.call(m.Reply); {
		case c == nil:
			s.say(m.Reply, []byte{natsGoneType})
		case len(m.Data) >= natsSeqHead:
			c.credit(binary.LittleEndian.Uint64(m.Data[1:]))
		}
	case natsCancelType:
		if c := s.call(m.Reply); c != nil {
			c.cancel()
		}
	case natsProbeType:
		s.say(m.Reply, appendNATSSeq(nil, natsAliveType, 0))
	}
}

// publishReply sends a message whose loss does no harm.
func (s *natsServer) say(reply string, b []byte) { _ = s.p.nc.Publish(reply, b) }

func (s *natsServer) call(reply string) *natsServed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.calls[reply]
}

// startCall starts the handler of a call.
func (s *natsServer) begin(m *nats.Msg) error {
	msg, err := decodeNATSCall(m.Data)
	if err != nil {
		return err
	}
	// The handler gets the caller's deadline and trace but no context values.
	ctx, cancel := msg.open(context.Background())
	c := &natsServed{s: s, reply: m.Reply, cancel: cancel, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	c.mu.allowed = Credit
	if err := s.enter(c, msg); err != nil {
		cancel()
		return err
	}
	go c.serve(ctx, msg)
	return nil
}

// registerCall registers a call, or returns the reason to refuse it. A call whose reply subject is
// in use is a Conflict.
func (s *natsServer) enter(c *natsServed, msg *natsCallMsg) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.draining:
		return fault.New(fault.Unavailable, "call %s: the server is leaving", msg.method)
	case len(s.mu.calls) >= s.p.cfg.MaxCalls:
		return fault.New(fault.Overloaded, "call %s: the server has %d calls in progress, which is all it takes; try again", msg.method, len(s.mu.calls))
	case s.mu.calls[c.reply] != nil:
		return fault.New(fault.Conflict, "call %s: the reply subject is in use", msg.method)
	case !s.bodies.take(int64(msg.size)):
		return errBodiesFull(msg.method, int64(msg.size))
	}
	s.mu.calls[c.reply] = c
	s.calls.Add(1)
	return nil
}

func (s *natsServer) leave(c *natsServed, msg *natsCallMsg) {
	s.mu.Lock()
	delete(s.mu.calls, c.reply)
	s.mu.Unlock()
	s.bodies.give(int64(msg.size))
	s.calls.Done()
}

// natsServerCall is the server's end of one call.
type natsServed struct {
	s      *natsServer
	reply  string
	cancel context.CancelFunc
	// sending is held by the sending goroutine, which owns buf.
	turn chan struct{}
	buf  []byte
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
func (c *natsServed) serve(ctx context.Context, msg *natsCallMsg) {
	defer c.s.leave(c, msg) // deferred first, so that the call is known until its end is sent
	defer c.cancel()
	if grease := natsGreaseMsg(); grease != nil {
		c.s.say(c.reply, grease)
	}
	var end error
	body, removed, err := c.body(ctx, msg)
	defer removed()
	if err != nil {
		c.end(err)
		return
	}
	defer func() { c.end(end) }() // runs even if the handler ends the goroutine
	invoke(ctx, c.s.handler, msg.method, body, func(f []byte) error { return c.send(ctx, f) }, func(err error) { end = err })
	if cause := errors.Unwrap(end); cause != nil {
		c.s.p.cfg.Log.Error("a call failed", "method", msg.method, "err", cause)
	}
}

// fetchBody returns the call's body, from the object store if it is there, and a function which
// waits until the object is removed.
func (c *natsServed) body(ctx context.Context, msg *natsCallMsg) (body []byte, removed func(), err error) {
	if msg.object == "" {
		return msg.body, func() {}, nil
	}
	body, err = c.s.p.store.get(ctx, msg)
	var gone sync.WaitGroup
	gone.Go(func() { c.s.p.store.remove(msg.object) })
	return body, gone.Wait, err
}

// sendEnd sends the outcome of the call. Frames sent after it are ignored.
func (c *natsServed) end(err error) {
	c.cancel()
	c.turn <- struct{}{} // waits for a sending goroutine, which sees that the call is over
	defer func() { <-c.turn }()
	c.s.say(c.reply, appendNATSEnd(c.buf[:0], c.sent.Load()+1, err))
}

// sendFrame sends one frame in as many messages as it needs. It blocks while the caller is behind
// by the credit.
func (c *natsServed) send(ctx context.Context, frame []byte) error {
	if len(frame) > MaxFrame {
		return errFrameTooLarge(len(frame))
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return errOver()
	}
	for most := c.s.p.chunk(); ; frame = frame[most:] {
		if len(frame) <= most {
			return c.sendPart(ctx, 0, frame)
		}
		if err := c.sendPart(ctx, natsMore, frame[:most]); err != nil {
			return err
		}
	}
}

// sendPart sends one message. The caller holds sending.
func (c *natsServed) sendPart(ctx context.Context, flags byte, data []byte) error {
	seq := c.sent.Load() + 1
	if err := c.await(ctx, seq); err != nil {
		return err
	}
	c.buf = append(appendNATSFrame(c.buf[:0], flags, seq), data...)
	err := c.s.p.nc.Publish(c.reply, c.buf)
	if cap(c.buf) > keepFrame {
		c.buf = nil
	}
	if err != nil { // the caller will detect the missing message
		c.cancel()
		return errOver()
	}
	c.sent.Store(seq)
	c.spoke.Store(true)
	return nil
}

// awaitCredit waits until the credit allows message seq.
func (c *natsServed) await(ctx context.Context, seq uint64) error {
	for {
		if ctx.Err() != nil {
			return errOver()
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
func (c *natsServed) credit(taken uint64) {
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
func (c *natsServed) beat(silence int) {
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
