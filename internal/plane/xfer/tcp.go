package xfer

import (
	"context"
	"crypto/tls"
	"net"

	"penstock/core/fault"
	"penstock/internal/plane/endpoint"
)

// TCPPlane moves bulk data over TCP. A transfer has a connection of its own while it lasts, so the
// kernel shares the network between transfers, and a small one does not queue behind large ones.
// docs/format/xfer.md documents the bytes.
type TCPPlane struct {
	*registry
	cfg  TCPConfig
	pool *lanePool
}

var (
	_ Plane       = (*TCPPlane)(nil)
	_ wholeOpener = (*TCPPlane)(nil)
)

// NewTCPPlane returns a plane without connections.
func NewTCPPlane(cfg TCPConfig) (*TCPPlane, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &TCPPlane{registry: newRegistry(cfg.Transfers, cfg.Observer), cfg: cfg}
	p.pool = newLanePool(&p.cfg.Config, TCP, p.dialLane)
	return p, nil
}

// Run implements Plane.
func (p *TCPPlane) Run(ctx context.Context, ready func()) error {
	return runOwner(ctx, &p.cfg, newOwner(&p.cfg.Config, p.registry, TCP), ready)
}

// runOwner has o serve connections to cfg.Listen, with TLS if cfg says so, until ctx ends.
func runOwner(ctx context.Context, cfg *TCPConfig, o *owner, ready func()) error {
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return endpoint.ListenError(cfg.Listen, err)
	}
	at, err := endpoint.AdvertiseAddress("xfer", cfg.Advertise, l.Addr())
	if err != nil {
		l.Close()
		return err
	}
	o.tls = cfg.ServerTLS
	return o.run(ctx, l, at, ready)
}

// Open implements Plane.
func (p *TCPPlane) Open(ctx context.Context, d Descriptor) (TransferWriter, error) {
	addr, ok := d.endpoint(TCP)
	if !ok {
		return nil, errNoWay(d)
	}
	return p.pool.open(ctx, addr, d)
}

// errNoWay is the outcome of a descriptor whose owner is not reachable by any transport of a plane.
func errNoWay(d Descriptor) error {
	return lastingError{fault.New(fault.Unavailable, "open transfer: the owner can be reached only by %v", d.Endpoints)}
}

// openWhole implements wholeOpener.
func (p *TCPPlane) openWhole(ctx context.Context, d Descriptor) (*sharedLane, error) {
	addr, ok := d.endpoint(TCP)
	if !ok {
		return nil, errNoWay(d)
	}
	return p.pool.joinShared(ctx, addr)
}

// Close closes the connections to owners: idle ones at once, others when their transfers end. Later
// Opens are Unavailable. It does not affect Run.
func (p *TCPPlane) Close() error {
	p.pool.close()
	return nil
}

// dialLane connects to an owner and greets it.
func (p *TCPPlane) dialLane(ctx context.Context, addr string) (*lane, error) {
	conn, err := dialTCP(ctx, addr, p.cfg.ClientTLS)
	if err != nil {
		return nil, err
	}
	l := &lane{conn: conn}
	l.in.r = conn
	if err := l.greet(ctx, p.cfg.Token); err != nil {
		conn.Close()
		return nil, err
	}
	l.in.r = newTCPReader(conn, p.pool.poll)
	return l, nil
}

// dialTCP connects to addr, with TLS unless cfg is nil.
func dialTCP(ctx context.Context, addr string, cfg *tls.Config) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil || cfg == nil {
		return conn, err
	}
	if host, _, err := net.SplitHostPort(addr); err == nil && cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	return tls.Client(conn, cfg), nil
}

// greet exchanges greetings with the owner, until ctx ends. The frames of more follow ours.
func (l *lane) greet(ctx context.Context, token string, more ...byte) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(past) })
	defer stop()
	if _, err := l.conn.Write(append(appendHello(nil, hello{least: version, most: version, token: token}), more...)); err != nil {
		return err
	}
	h, err := l.in.readHello()
	if err != nil {
		return err
	}
	if !h.speaksOurVersion() {
		return errVersions(h)
	}
	if !stop() {
		return ctx.Err()
	}
	return nil
}
