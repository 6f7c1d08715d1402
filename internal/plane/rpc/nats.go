package rpc

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// NATSPlane is the request plane over a NATS server, for deployments whose processes can reach the
// server but not each other. Addresses are "nats://SUBJECT". Each server has its own subject; a
// caller has one subscription for the answers to all its calls. NATS delivers at most once, so
// frames are numbered, and a call which misses a frame ends with Unavailable. Both ends of a call
// send keepalives. docs/format/rpc-nats.md documents the wire format.
//
// Bodies above 64 KiB go through a JetStream object store. Everything else works without JetStream.
type NATSPlane struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	cfg   NATSPlaneConfig
	inbox string        // prefix of the subjects of answers
	done  chan struct{} // closed by Close
	work  sync.WaitGroup
	store natsStore
	mu    struct {
		sync.Mutex
		closed  bool
		answers *nats.Subscription // nil before the first call
		beating bool
		last    uint64 // id of the most recent call
		calls   map[uint64]*natsCall
		servers map[string]*natsServer // by subject
	}
}

var _ Plane = (*NATSPlane)(nil)

const (
	natsScheme = "nats://"
	// natsQueue is the queue group of servers. If two servers share a subject, each call still
	// reaches only one of them.
	natsQueue = "penstock-rpc"
	// silentBeats is the number of keepalive intervals without a message after which the other end
	// is considered dead.
	silentBeats = 5
	// maxUndelivered bounds the received answers which routeAnswer has not yet passed to their
	// calls, in bytes. routeAnswer never blocks, so this is a worst-case bound.
	maxUndelivered = 256 << 20
)

// NewNATSPlane returns a plane over nc, which remains owned by the caller. The plane uses the
// server only when it is used itself. The caller must close the plane before nc.
func NewNATSPlane(nc *nats.Conn, cfg NATSPlaneConfig) (*NATSPlane, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "open rpc: %v; check the connection to the NATS server", err)
	}
	p := &NATSPlane{nc: nc, js: js, cfg: cfg, inbox: nc.NewInbox() + ".", done: make(chan struct{})}
	p.store = natsStore{nc: nc, js: js, cfg: &p.cfg}
	p.mu.calls = make(map[uint64]*natsCall)
	p.mu.servers = make(map[string]*natsServer)
	return p, nil
}

// Close ends the calls in progress with Unavailable and waits for background work. Serve must have
// returned before. Close is idempotent.
func (p *NATSPlane) Close() {
	p.mu.Lock()
	if !p.mu.closed {
		p.mu.closed = true
		close(p.done)
	}
	answers := p.mu.answers
	calls := p.listCallsLocked()
	p.mu.Unlock()

	for _, c := range calls {
		c.failCall(fault.New(fault.Unavailable, "the request plane was closed"))
	}
	if answers != nil {
		_ = answers.Unsubscribe() // the connection may already be closed
	}
	p.work.Wait()
}

func (p *NATSPlane) listCallsLocked() []*natsCall {
	calls := make([]*natsCall, 0, len(p.mu.calls))
	for _, c := range p.mu.calls {
		calls = append(calls, c)
	}
	return calls
}

// startBeatsLocked starts the keepalive goroutine unless it is running.
func (p *NATSPlane) startBeatsLocked() error {
	if p.mu.closed {
		return fault.New(fault.Unavailable, "the request plane is closed")
	}
	if !p.mu.beating {
		p.mu.beating = true
		p.work.Go(p.runKeepalive)
	}
	return nil
}

// runKeepalive sends keepalives for both ends of every call, and detects silent peers, until Close.
// It counts silence in intervals during which this process ran, not in time: after a pause of this
// process, the messages which arrived meanwhile are read before any peer is considered dead.
func (p *NATSPlane) runKeepalive() {
	interval := p.cfg.KeepAlive / silentBeats
	t := time.NewTicker(interval)
	defer t.Stop()
	var next awakeClock
	for {
		next.startWait(interval, interval)
		select {
		case <-p.done:
			return
		case <-t.C:
		}
		yieldProcessor()
		silence := 0
		if next.waitCounts() {
			silence = 1
		}
		p.mu.Lock()
		calls := p.listCallsLocked()
		servers := make([]*natsServer, 0, len(p.mu.servers))
		for _, s := range p.mu.servers {
			servers = append(servers, s)
		}
		p.mu.Unlock()
		for _, c := range calls {
			c.keepAlive(silence)
		}
		for _, s := range servers {
			s.keepAlive(silence)
		}
	}
}

// runInBackground runs f in a goroutine which Close waits for. After Close it does nothing.
func (p *NATSPlane) runInBackground(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.closed {
		p.work.Go(f)
	}
}

// chunkSize returns how many bytes of data fit a message, at most natsChunk.
func (p *NATSPlane) chunkSize() int {
	if most := p.nc.MaxPayload(); most > natsOverhead {
		return int(min(most-natsOverhead, natsChunk))
	}
	return natsChunk
}

// Serve implements Plane. addr is "nats://SUBJECT". An address which another server uses, in this
// process or elsewhere, is a Conflict. Handlers in progress outlive ctx: they end when they return
// or when their callers disconnect.
func (p *NATSPlane) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	subject, ok := strings.CutPrefix(addr, natsScheme)
	switch {
	case addr == "":
		subject = p.cfg.Prefix + ".rpc." + rand.Text()
	case !ok || !isValidSubject(subject):
		return fault.New(fault.Invalid, "serve %.100q: addresses of this plane are nats://SUBJECT, without wildcards", addr)
	}
	s := newNATSServer(p, subject, h)
	if err := p.registerServer(s); err != nil {
		return err
	}
	defer p.unregisterServer(s)
	if addr != "" {
		if err := p.probeSubject(ctx, subject); err != nil || ctx.Err() != nil {
			return err
		}
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub, err := p.nc.QueueSubscribe(subject, natsQueue, s.handleMessage)
	if err != nil {
		return fault.New(fault.Unavailable, "serve %s: %v; check the connection to the NATS server", addr, err)
	}
	sub.SetClosedHandler(func(string) { cancel() })
	if sub.SetPendingLimits(-1, maxUndelivered) != nil {
		cancel() // it is already closed
	}
	if p.awaitSubscriptions(sctx) && ready != nil {
		ready(natsScheme + subject)
	}
	<-sctx.Done()
	s.startDraining()
	s.calls.Wait()
	_ = sub.Unsubscribe() // the connection may already be closed
	p.flushSent()
	if ctx.Err() == nil {
		return fault.New(fault.Unavailable, "serve %s: the connection to the NATS server was closed", subject)
	}
	return nil
}

// registerServer registers s under its subject. A second server of this process at the same subject
// is a Conflict.
func (p *NATSPlane) registerServer(s *natsServer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.servers[s.subject] != nil {
		return errAlreadyServed(s.subject)
	}
	if err := p.startBeatsLocked(); err != nil {
		return err
	}
	p.mu.servers[s.subject] = s
	return nil
}

func (p *NATSPlane) unregisterServer(s *natsServer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.servers, s.subject)
}

func errAlreadyServed(subject string) error {
	return fault.New(fault.Conflict, "serve %s%s: the address is being served already", natsScheme, subject)
}

// probeSubject returns a Conflict if another server answers at subject.
func (p *NATSPlane) probeSubject(ctx context.Context, subject string) error {
	pctx, cancel := context.WithTimeout(ctx, p.cfg.KeepAlive)
	defer cancel()
	_, err := p.nc.RequestWithContext(pctx, subject, []byte{natsProbeType})
	switch {
	case err == nats.ErrNoResponders:
		return nil
	case ctx.Err() != nil:
		return nil // Serve was stopped; this is no error
	case err == nil || pctx.Err() != nil: // a server exists, responsive or not
		return errAlreadyServed(subject)
	}
	return fault.New(fault.Unavailable, "serve %s%s: %v; check the connection to the NATS server", natsScheme, subject, err)
}

// awaitSubscriptions waits until the server has processed all subscriptions of the connection; it
// returns false if ctx ended first. After a reconnect the NATS library resubscribes by itself.
func (p *NATSPlane) awaitSubscriptions(ctx context.Context) bool {
	retry := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for ctx.Err() == nil {
		fctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := p.nc.FlushWithContext(fctx)
		cancel()
		if err == nil {
			return true
		}
		_ = retry.Wait(ctx) // the loop condition checks ctx
	}
	return false
}

// flushSent waits up to KeepAlive for the server to process everything sent.
func (p *NATSPlane) flushSent() {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.KeepAlive)
	defer cancel()
	_ = p.nc.FlushWithContext(ctx)
}

// routeAnswer passes a message of an answer to its call. It is the only reader of all answers and
// never blocks.
func (p *NATSPlane) routeAnswer(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.inbox), 16, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	c := p.mu.calls[id]
	p.mu.Unlock()
	if c != nil {
		c.handleMessage(m)
	}
}

// registerCall registers a call to subject, so that it receives answers.
func (p *NATSPlane) registerCall(subject, method string) (*natsCall, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.startBeatsLocked(); err != nil {
		return nil, err
	}
	if p.mu.answers == nil {
		sub, err := p.nc.Subscribe(p.inbox+"*", p.routeAnswer)
		if err != nil {
			return nil, fault.New(fault.Unavailable, "call %s: %v; check the connection to the NATS server", method, err)
		}
		if err := sub.SetPendingLimits(-1, maxUndelivered); err != nil {
			return nil, fault.New(fault.Unavailable, "call %s: %v", method, err)
		}
		p.mu.answers = sub
	}
	p.mu.last++
	c := newNATSCall(p, p.mu.last, subject, method)
	p.mu.calls[c.id] = c
	return c, nil
}

func (p *NATSPlane) unregisterCall(c *natsCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.calls, c.id)
}
