package xfer

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"

	"penstock/core/fault"
	"penstock/internal/plane/xfer/ucx"
)

// UCXPlane moves bulk data over UCX: by RDMA where both hosts have it. Peers meet over TCP, with TLS and token as
// TCPPlane has them, and tell each other where UCX reaches them. UCX itself encrypts nothing, and listens at
// ports of its own choice: it is for networks whose hosts trust each other. Builds with cgo and the tag ucx have
// it; see penstock/internal/plane/xfer/ucx.
type UCXPlane struct {
	*registry
	cfg  TCPConfig
	pool *lanePool
	mu   struct {
		sync.Mutex
		worker *ucx.Worker // nil until it is needed
		runs   bool
		closed bool
	}
}

var (
	_ Plane       = (*UCXPlane)(nil)
	_ wholeOpener = (*UCXPlane)(nil)
)

// NewUCXPlane returns a plane without connections. It is Unimplemented if this build, or this machine, has no UCX.
func NewUCXPlane(cfg TCPConfig) (*UCXPlane, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := ucx.Load(); err != nil {
		return nil, fault.New(fault.Unimplemented, "transfers over UCX: %w", err)
	}
	p := &UCXPlane{registry: newRegistry(cfg.Transfers, cfg.Observer), cfg: cfg}
	p.pool = newLanePool(&p.cfg.Config, UCX, p.dialLane)
	return p, nil
}

// useWorker returns the worker of the plane, for Run or for a connection to an owner. One worker has them all.
func (p *UCXPlane) useWorker(runs bool) (*ucx.Worker, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed && !p.mu.runs && !runs {
		return nil, errPoolClosed
	}
	if p.mu.worker == nil {
		w, err := ucx.NewWorker()
		if err != nil {
			return nil, err
		}
		p.mu.worker = w
	}
	p.mu.runs = p.mu.runs || runs
	return p.mu.worker, nil
}

// Run implements Plane.
func (p *UCXPlane) Run(ctx context.Context, ready func()) error {
	w, err := p.useWorker(true)
	if err != nil {
		return fault.New(fault.Unavailable, "serve transfers over UCX: %w", err)
	}
	defer p.endRun()
	o := newOwner(&p.cfg.Config, p.registry, UCX)
	o.joinUCX = func(l *ownerLane, greeting []byte) (net.Conn, error) { return joinWriter(w, l, greeting) }
	return runOwner(ctx, &p.cfg, o, ready)
}

// endRun closes the worker if the plane is closed.
func (p *UCXPlane) endRun() {
	p.mu.Lock()
	p.mu.runs = false
	closed := p.mu.closed
	p.mu.Unlock()
	if closed {
		p.closeWorker()
	}
}

func (p *UCXPlane) closeWorker() {
	p.mu.Lock()
	w := p.mu.worker
	p.mu.worker = nil
	p.mu.Unlock()
	if w != nil {
		_ = w.Close() // never fails
	}
}

// joinWriter connects to the writer which has greeted, and tells it how to connect to this side.
func joinWriter(w *ucx.Worker, l *ownerLane, greeting []byte) (net.Conn, error) {
	h, err := l.in.readJoin()
	if err != nil {
		return nil, err
	}
	conn, err := w.NewConn(l.conn)
	if err != nil {
		return nil, err
	}
	// The writer hears nothing before this side is ready.
	_, err = l.conn.Write(appendJoin(greeting, joinHeader{stream: conn.ID(), address: w.Address()}))
	if err = cmp.Or(err, conn.Connect(h.stream, h.address)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Open implements Plane.
func (p *UCXPlane) Open(ctx context.Context, d Descriptor) (TransferWriter, error) {
	addr, ok := d.endpoint(UCX)
	if !ok {
		return nil, errNoWay(d)
	}
	return p.pool.open(ctx, addr, d)
}

// openWhole implements wholeOpener.
func (p *UCXPlane) openWhole(ctx context.Context, d Descriptor) (*sharedLane, error) {
	addr, ok := d.endpoint(UCX)
	if !ok {
		return nil, errNoWay(d)
	}
	return p.pool.joinShared(ctx, addr)
}

// Close closes the connections to owners; see TCPPlane.Close.
func (p *UCXPlane) Close() error {
	p.pool.close()
	p.mu.Lock()
	p.mu.closed = true
	runs := p.mu.runs
	p.mu.Unlock()
	if !runs {
		p.closeWorker()
	}
	return nil
}

// dialLane connects to an owner, greets it and joins it by UCX.
func (p *UCXPlane) dialLane(ctx context.Context, addr string) (*lane, error) {
	w, err := p.useWorker(false)
	if err != nil {
		return nil, err
	}
	control, err := dialTCP(ctx, addr, p.cfg.ClientTLS)
	if err != nil {
		return nil, err
	}
	conn, err := w.NewConn(control)
	if err != nil {
		return nil, err
	}
	l := &lane{conn: control}
	l.in.r = control
	if err := l.joinOwner(ctx, p.cfg.Token, w, conn); err != nil {
		conn.Close()
		return nil, err
	}
	l.conn, l.in.r = conn, conn
	return l, nil
}

// joinOwner exchanges greetings and addresses with the owner, until ctx ends.
func (l *lane) joinOwner(ctx context.Context, token string, w *ucx.Worker, conn *ucx.Conn) error {
	control := l.conn
	if err := l.greet(ctx, token, appendJoin(nil, joinHeader{stream: conn.ID(), address: w.Address()})...); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = control.SetDeadline(past) })
	defer stop()
	h, err := l.in.readJoin()
	if err != nil {
		return err
	}
	if l.in.buffered() {
		return errors.New("bytes follow the JOIN of the owner")
	}
	if !stop() {
		return cmp.Or(ctx.Err(), context.DeadlineExceeded)
	}
	return conn.Connect(h.stream, h.address)
}
