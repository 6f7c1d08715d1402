package rpc

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"penstock/core/fault"
)

// natsCall is the caller's end of one call.
type natsCall struct {
	p       *NATSPlane
	id      uint64
	subject string // of the server
	inbox   string // subject of the answer; identifies the call
	method  string
	// answer queues the messages that were not taken yet: frames, bounded by the credit, and one
	// end.
	answer chan natsAnswer
	failed chan error // why there is no end; at most one
	taken  atomic.Uint64
	spoke  atomic.Bool // sent something since the last beat
	mu     struct {
		sync.Mutex
		got      uint64 // number of the last received message of the answer
		over     bool   // the end was received, or the call has failed
		accepted bool   // the server has accepted the call, and with it the body
		silent   int    // keepalive intervals without a message
	}
}

// creditStep is the number of messages after which the server gets new credit.
const creditStep = Credit / 4

func newNATSCall(p *NATSPlane, id uint64, subject, method string) *natsCall {
	return &natsCall{
		p: p, id: id, subject: subject, inbox: p.inbox + strconv.FormatUint(id, 16), method: method,
		answer: make(chan natsAnswer, Credit+1), failed: make(chan error, 1),
	}
}

// Call implements Plane.
func (p *NATSPlane) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := checkLimits(method, body)
	subject, ok := strings.CutPrefix(addr, natsScheme)
	switch {
	case err != nil:
		return err
	case !ok || !isValidSubject(subject):
		return fault.New(fault.Unavailable, "call %s: %.100q is no address of the NATS plane; it is nats://SUBJECT", method, addr)
	}
	m := natsCallMsg{method: method, size: len(body), body: body}
	if len(body) > p.chunkSize() {
		return p.callWithStoredBody(ctx, subject, &m, recv)
	}
	_, err = p.makeCall(ctx, subject, &m, recv)
	return err
}

// callWithStoredBody makes a call whose body is too long for a message. The server removes the
// object; if the server did not accept the call, the caller removes it.
func (p *NATSPlane) callWithStoredBody(ctx context.Context, subject string, m *natsCallMsg, recv func([]byte) error) error {
	object := rand.Text()
	err := p.store.putBody(ctx, object, m)
	accepted := false
	if err == nil {
		m.object, m.body = object, nil
		accepted, err = p.makeCall(ctx, subject, m, recv)
	}
	if !accepted {
		p.runInBackground(func() { p.store.removeObject(object) })
	}
	return err
}

// makeCall makes one call and reports whether the server accepted it.
func (p *NATSPlane) makeCall(ctx context.Context, subject string, m *natsCallMsg, recv func([]byte) error) (accepted bool, err error) {
	c, err := p.registerCall(subject, m.method)
	if err != nil {
		return false, err
	}
	defer p.unregisterCall(c)
	m.callMetadata = newCallMetadata(ctx)
	err = c.runCall(ctx, m, recv)
	return c.wasAccepted(), err
}

// runCall sends the call and receives its answer.
func (c *natsCall) runCall(ctx context.Context, m *natsCallMsg, recv func([]byte) error) error {
	if grease := randomNATSGrease(); grease != nil {
		_ = c.publishToServer(grease) // if it cannot be sent, neither can the call
	}
	if err := c.publishToServer(appendNATSCall(nil, m)); err != nil {
		return err
	}
	// When ctx ends, the server must know even if recv blocks.
	stop := context.AfterFunc(ctx, c.sendCancel)
	err := c.receiveFrames(ctx, recv)
	if stop() && err != nil {
		c.sendCancel()
	}
	return err
}

// sendCancel tells the server to stop. If the message is lost, the missing keepalives tell it.
func (c *natsCall) sendCancel() { _ = c.publishToServer([]byte{natsCancelType}) }

// publishToServer sends a message to the server. Its reply subject identifies the call.
func (c *natsCall) publishToServer(b []byte) error {
	if err := c.p.nc.PublishRequest(c.subject, c.inbox, b); err != nil {
		return fault.New(fault.Unavailable, "call %s: %v; check the connection to the NATS server", c.method, err)
	}
	return nil
}

// receiveFrames passes frames to recv until the end of the answer.
func (c *natsCall) receiveFrames(ctx context.Context, recv func([]byte) error) error {
	var parts []byte // of a frame that spans several messages
	for {
		var a natsAnswer
		select {
		case a = <-c.answer:
		case err := <-c.failed:
			if err := contextErr(ctx); err != nil {
				return err
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.typ == natsEndType {
			if err := contextErr(ctx); err != nil {
				return err // the handler's error only echoes it
			}
			return a.end
		}
		if len(parts)+len(a.data) > MaxFrame {
			return fault.New(fault.Unavailable, "call %s: the answer has a frame of more than %d bytes", c.method, MaxFrame)
		}
		switch {
		case a.more:
			parts = append(parts, a.data...)
		case len(parts) > 0:
			parts = append(parts, a.data...)
			a.data = parts
			fallthrough
		default:
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := recv(a.data); err != nil {
				return err
			}
			if parts = parts[:0]; cap(parts) > maxKeptFrame {
				parts = nil
			}
		}
		if c.taken.Add(1)%creditStep == 0 {
			if err := c.sendCredit(); err != nil {
				return err
			}
		}
	}
}

// sendCredit tells the server how much of the answer was taken, and that the caller is alive.
func (c *natsCall) sendCredit() error {
	c.spoke.Store(true)
	return c.publishToServer(appendNATSSeq(nil, natsCreditType, c.taken.Load()))
}

// keepAlive sends a credit if nothing was sent since the last beat, and adds silence, in beats, to
// the server's silence.
func (c *natsCall) keepAlive(silence int) {
	c.mu.Lock()
	over := c.mu.over
	c.mu.silent += silence
	silent := c.mu.silent
	c.mu.Unlock()
	switch {
	case over:
	case silent > silentBeats:
		c.failCall(fault.New(fault.Unavailable, "call %s: the server has been silent for %v", c.method, c.p.cfg.KeepAlive))
	case !c.spoke.Swap(false):
		if err := c.sendCredit(); err != nil {
			c.failCall(err)
		}
		c.spoke.Store(false)
	}
}

// handleMessage queues a message of the answer. It never blocks, because the server respects the
// credit.
func (c *natsCall) handleMessage(m *nats.Msg) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		c.failCall(fault.New(fault.Unavailable, "call %s: nothing serves %s%s", c.method, natsScheme, c.subject))
		return
	}
	a, err := decodeNATSAnswer(m.Data)
	if err != nil {
		c.failCall(fault.New(fault.Unavailable, "call %s: the answer is malformed: %v", c.method, err))
		return
	}
	if err := c.enqueueAnswer(a); err != nil {
		c.failCall(err)
	}
}

// enqueueAnswer queues a frame or the end. An error makes the rest of the answer useless.
func (c *natsCall) enqueueAnswer(a natsAnswer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.silent = 0
	lost := false
	switch {
	case c.mu.over:
		return nil
	case a.typ == natsGoneType:
		return fault.New(fault.Unavailable, "call %s: the server does not know the call; it was restarted, or a message was lost", c.method)
	case a.typ == natsAliveType:
		lost = a.seq > c.mu.got
	case a.typ == natsFrameType || a.typ == natsEndType:
		lost = a.seq != c.mu.got+1
	default:
		return nil
	}
	// A server which refused the call sends only an end.
	c.mu.accepted = c.mu.accepted || a.typ != natsEndType || a.end == nil
	switch {
	case lost:
		return fault.New(fault.Unavailable, "call %s: a part of the answer was lost", c.method)
	case a.typ == natsAliveType:
		return nil
	}
	select {
	case c.answer <- a:
	default:
		return fault.New(fault.Unavailable, "call %s: the server does not keep to the credit", c.method)
	}
	c.mu.got++
	c.mu.over = a.typ == natsEndType
	return nil
}

// failCall ends the call with err, unless its end was received before.
func (c *natsCall) failCall(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.over {
		c.mu.over = true
		c.failed <- err
	}
}

// wasAccepted reports whether the server has accepted the call. Then the server removes the body.
func (c *natsCall) wasAccepted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.accepted
}
