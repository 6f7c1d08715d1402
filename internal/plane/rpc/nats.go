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

// NATS is the request plane over a NATS server: for fleets whose processes reach
// it and not each other. Addresses are "nats://SUBJECT". A server has a subject of
// its own; a caller has one subscription for the answers to all its calls. NATS
// delivers at most once: frames are numbered, and a call that misses one ends in
// Unavailable. Both ends of a call tell each other that they are alive. The bytes
// are in docs/format/rpc-nats.md.
//
// Bodies above 64 KiB go through an object store of JetStream; everything else
// works without JetStream.
type NATS struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	cfg   NATSConfig
	inbox string        // begins the subjects of answers
	done  chan struct{} // closed by Close
	work  sync.WaitGroup
	store natsStore
	mu    struct {
		sync.Mutex
		closed  bool
		answers *nats.Subscription // nil before the first call
		beating bool
		last    uint64 // id of a call
		calls   map[uint64]*natsCall
		servers map[string]*natsServer // by subject
	}
}

var _ Plane = (*NATS)(nil)

const (
	natsScheme = "nats://"
	// natsQueue is the queue group of servers: should two come to have one subject,
	// a call still reaches one of them only.
	natsQueue = "penstock-rpc"
	// silentBeats is after how many beats without a message the other end is dead.
	silentBeats = 5
	// maxUndelivered bounds the answers that have come and are not sorted into their
	// calls yet, in bytes. Sorting waits for nothing, so this is for the worst.
	maxUndelivered = 256 << 20
)

// NewNATS returns a plane over nc, which stays the caller's. It talks to the
// server only when it is used. Whoever made it closes it, before nc.
func NewNATS(nc *nats.Conn, cfg NATSConfig) (*NATS, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "open rpc: %v; check the connection to the NATS server", err)
	}
	p := &NATS{nc: nc, js: js, cfg: cfg, inbox: nc.NewInbox() + ".", done: make(chan struct{})}
	p.store = natsStore{nc: nc, js: js, cfg: &p.cfg}
	p.mu.calls = make(map[uint64]*natsCall)
	p.mu.servers = make(map[string]*natsServer)
	return p, nil
}

// Close ends the calls in progress with Unavailable and waits for what runs in
// the background. Serve is to have returned. It is idempotent.
func (p *NATS) Close() {
	p.mu.Lock()
	if !p.mu.closed {
		p.mu.closed = true
		close(p.done)
	}
	answers := p.mu.answers
	calls := p.snapshotLocked()
	p.mu.Unlock()

	for _, c := range calls {
		c.fail(fault.New(fault.Unavailable, "the request plane was closed"))
	}
	if answers != nil {
		_ = answers.Unsubscribe() // the connection may have closed before
	}
	p.work.Wait()
}

func (p *NATS) snapshotLocked() []*natsCall {
	calls := make([]*natsCall, 0, len(p.mu.calls))
	for _, c := range p.mu.calls {
		calls = append(calls, c)
	}
	return calls
}

// startLocked starts the goroutine that keeps calls alive, unless it runs.
func (p *NATS) startLocked() error {
	if p.mu.closed {
		return fault.New(fault.Unavailable, "the request plane is closed")
	}
	if !p.mu.beating {
		p.mu.beating = true
		p.work.Go(p.beat)
	}
	return nil
}

// beat lets both ends of every call speak and listen until Close. Silence is
// counted in beats at which the process ran, not in time: of one that stood still for a
// while, or got no processor, the messages that came meanwhile are read before it takes
// the others for dead.
func (p *NATS) beat() {
	interval := p.cfg.KeepAlive / silentBeats
	t := time.NewTicker(interval)
	defer t.Stop()
	var next awake
	for {
		next.wait(interval, interval)
		select {
		case <-p.done:
			return
		case <-t.C:
		}
		letOthersRun()
		silence := 0
		if next.counts() {
			silence = 1
		}
		p.mu.Lock()
		calls := p.snapshotLocked()
		servers := make([]*natsServer, 0, len(p.mu.servers))
		for _, s := range p.mu.servers {
			servers = append(servers, s)
		}
		p.mu.Unlock()
		for _, c := range calls {
			c.beat(silence)
		}
		for _, s := range servers {
			s.beat(silence)
		}
	}
}

// background runs f in a goroutine that Close waits for; not after Close.
func (p *NATS) background(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.closed {
		p.work.Go(f)
	}
}

// chunk returns how many bytes of data fit a message, of at most natsChunk.
func (p *NATS) chunk() int {
	if most := p.nc.MaxPayload(); most > natsOverhead {
		return int(min(most-natsOverhead, natsChunk))
	}
	return natsChunk
}

// Serve implements Plane. addr is "nats://SUBJECT"; one that another server
// answers at, in this process or elsewhere, is a Conflict. Handlers in progress
// outlive ctx: they end by themselves or with their callers.
func (p *NATS) Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error {
	subject, ok := strings.CutPrefix(addr, natsScheme)
	switch {
	case addr == "":
		subject = p.cfg.Prefix + ".rpc." + rand.Text()
	case !ok || !validSubject(subject):
		return fault.New(fault.Invalid, "serve %.100q: addresses of this plane are nats://SUBJECT, without wildcards", addr)
	}
	s := newNATSServer(p, subject, h)
	if err := p.list(s); err != nil {
		return err
	}
	defer p.unlist(s)
	if addr != "" {
		if err := p.probe(ctx, subject); err != nil || ctx.Err() != nil {
			return err
		}
	}
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub, err := p.nc.QueueSubscribe(subject, natsQueue, s.dispatch)
	if err != nil {
		return fault.New(fault.Unavailable, "serve %s: %v; check the connection to the NATS server", addr, err)
	}
	sub.SetClosedHandler(func(string) { cancel() })
	if sub.SetPendingLimits(-1, maxUndelivered) != nil {
		cancel() // it is closed already
	}
	if p.inForce(sctx) && ready != nil {
		ready(natsScheme + subject)
	}
	<-sctx.Done()
	s.drain()
	s.calls.Wait()
	_ = sub.Unsubscribe() // the connection may have closed before
	p.flush()
	if ctx.Err() == nil {
		return fault.New(fault.Unavailable, "serve %s: the connection to the NATS server was closed", subject)
	}
	return nil
}

// list enters s under its subject, which nobody else in this process serves.
func (p *NATS) list(s *natsServer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.servers[s.subject] != nil {
		return errServed(s.subject)
	}
	if err := p.startLocked(); err != nil {
		return err
	}
	p.mu.servers[s.subject] = s
	return nil
}

func (p *NATS) unlist(s *natsServer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.servers, s.subject)
}

func errServed(subject string) error {
	return fault.New(fault.Conflict, "serve %s%s: the address is being served already", natsScheme, subject)
}

// probe asks whether anybody serves subject, which would be a Conflict.
func (p *NATS) probe(ctx context.Context, subject string) error {
	pctx, cancel := context.WithTimeout(ctx, p.cfg.KeepAlive)
	defer cancel()
	_, err := p.nc.RequestWithContext(pctx, subject, []byte{natsProbeType})
	switch {
	case err == nats.ErrNoResponders:
		return nil
	case ctx.Err() != nil:
		return nil // Serve ends, and not by a mistake
	case err == nil || pctx.Err() != nil: // somebody is there, alive or not
		return errServed(subject)
	}
	return fault.New(fault.Unavailable, "serve %s%s: %v; check the connection to the NATS server", natsScheme, subject, err)
}

// inForce waits until the server has seen every subscription of the connection;
// false if ctx ended before. After an interruption the library subscribes again
// by itself.
func (p *NATS) inForce(ctx context.Context) bool {
	retry := backoff.Backoff{Least: 50 * time.Millisecond, Most: time.Second}
	for ctx.Err() == nil {
		fctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := p.nc.FlushWithContext(fctx)
		cancel()
		if err == nil {
			return true
		}
		_ = retry.Wait(ctx) // its end is looked at above
	}
	return false
}

// flush waits a while until the server has seen what was sent.
func (p *NATS) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.KeepAlive)
	defer cancel()
	_ = p.nc.FlushWithContext(ctx)
}

// sort gives an answer's message to its call. It is the one reader of the answers
// to all calls and waits for nobody.
func (p *NATS) sort(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.inbox), 16, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	c := p.mu.calls[id]
	p.mu.Unlock()
	if c != nil {
		c.take(m)
	}
}

// join enters a call to subject, which then gets answers.
func (p *NATS) join(subject, method string) (*natsCall, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.startLocked(); err != nil {
		return nil, err
	}
	if p.mu.answers == nil {
		sub, err := p.nc.Subscribe(p.inbox+"*", p.sort)
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

func (p *NATS) part(c *natsCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.calls, c.id)
}
