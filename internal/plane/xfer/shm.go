package xfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"strings"

	"penstock/core/fault"
)

// ShmPlane moves bulk data in shared memory between the processes of one user on one host. Owners
// listen on a unix socket in the abstract namespace. Each connection has a region of its own, an
// anonymous file (memfd) which the owner makes, seals against resizing and passes to the writer.
//
// Neither socket nor region has a name in a file system, so a process which is killed leaves
// nothing behind, in /dev/shm or elsewhere. Regions are not bounded by the size of /dev/shm, 64 MiB
// in many containers, and no peer can truncate one under its owner. Containers reach each other if
// they share a network namespace and a user, as the containers of a pod do; others need TCP.
type ShmPlane struct {
	*registry
	cfg  Config
	host string // identifies host and network namespace
	pool *lanePool
}

var (
	_ Plane       = (*ShmPlane)(nil)
	_ wholeOpener = (*ShmPlane)(nil)
)

// socketPrefix begins the names of sockets in the abstract namespace.
const socketPrefix = "penstock-xfer-"

// NewShmPlane returns a plane without connections. It is Unimplemented on systems other than Linux.
func NewShmPlane(cfg Config) (*ShmPlane, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	host, err := identifyHost()
	if err != nil {
		return nil, fault.New(fault.Unimplemented, "transfers in shared memory: %w", err)
	}
	p := &ShmPlane{registry: newRegistry(cfg.Transfers, cfg.Observer), cfg: cfg, host: host}
	p.pool = newLanePool(&p.cfg, Shm, p.dialLane)
	return p, nil
}

// Run implements Plane.
func (p *ShmPlane) Run(ctx context.Context, ready func()) error {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	name := socketPrefix + hex.EncodeToString(random[:])
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		return fmt.Errorf("serve transfers in shared memory: %w", err)
	}
	o := newOwner(&p.cfg, p.registry, Shm)
	o.newRegion = newWindow
	o.checkPeer = checkPeer
	return o.run(ctx, l, p.host+"/"+name, ready)
}

// Open implements Plane.
func (p *ShmPlane) Open(ctx context.Context, d Descriptor) (TransferWriter, error) {
	addr, ok := d.endpoint(Shm)
	if !ok {
		return nil, errNoWay(d)
	}
	return p.pool.open(ctx, addr, d)
}

// openWhole implements wholeOpener.
func (p *ShmPlane) openWhole(ctx context.Context, d Descriptor) (*sharedLane, error) {
	addr, ok := d.endpoint(Shm)
	if !ok {
		return nil, errNoWay(d)
	}
	return p.pool.joinShared(ctx, addr)
}

// Close closes the connections to owners, with their regions: idle ones at once, others when their
// transfers end. Later Opens are Unavailable. It does not affect Run.
func (p *ShmPlane) Close() error {
	p.pool.close()
	return nil
}

// dialLane connects to an owner of this host and receives a region.
func (p *ShmPlane) dialLane(ctx context.Context, addr string) (*lane, error) {
	host, name, ok := strings.Cut(addr, "/")
	if !ok || !strings.HasPrefix(name, socketPrefix) {
		return nil, fault.New(fault.Invalid, "open transfer: %.100q is no address in shared memory", addr)
	}
	if host != p.host {
		return nil, lastingError{fault.New(fault.Unavailable, "open transfer: the owner is on another host, or in another network namespace")}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", "@"+name)
	if err != nil {
		return nil, err
	}
	l := &lane{conn: conn}
	if err := l.receiveRegion(ctx, p.cfg.Token, p.pool.poll); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// receiveRegion greets the owner and maps the memory which comes with its greeting: the region, and the
// rings through which frames go from then on.
func (l *lane) receiveRegion(ctx context.Context, token string, poll *poller) error {
	socket := l.conn
	if err := checkPeer(socket); err != nil {
		return err
	}
	files := &fileReader{conn: socket}
	defer files.close()
	l.in.r = files
	if err := l.greet(ctx, token); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(past) })
	defer stop()
	t, payload, err := l.in.next()
	if err == nil && t != frameRegion {
		err = fmt.Errorf("a frame of type %d instead of a REGION", t)
	}
	if err != nil {
		return err
	}
	h, err := decodeRegion(payload)
	if err != nil {
		return err
	}
	window, conn, err := files.mapWindow(int(h.size), poll)
	if err != nil {
		return err
	}
	l.window, l.conn, l.in.r = window, conn, conn
	l.slots, l.generation = int(h.slots), h.generation
	if !stop() {
		return cmp.Or(ctx.Err(), context.DeadlineExceeded)
	}
	return nil
}
