package xfer

import (
	"math"
	"sync"
	"time"

	"penstock/core/fault"
)

// maxLease is the longest lease which a descriptor can state.
const maxLease = math.MaxUint32 * time.Millisecond

// registry has the open transfers of one owner.
type registry struct {
	epoch    uint64
	limit    int // of open transfers
	observer Observer
	mu       struct {
		sync.Mutex
		endpoints []OwnerAddress           // where writers reach the owner; nil unless it runs
		open      map[transferID]*Transfer // not over
	}
}

func newRegistry(limit int, o Observer) *registry {
	r := &registry{epoch: newEpoch(), limit: limit, observer: o}
	r.mu.open = make(map[transferID]*Transfer)
	return r
}

// addEndpoint makes transfers reachable at e. The fastest transports stand first.
func (r *registry) addEndpoint(e OwnerAddress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Descriptors have slices of the old list, so a new one is made.
	at := 0
	for at < len(r.mu.endpoints) && r.mu.endpoints[at].Transport.precedes(e.Transport) {
		at++
	}
	list := append([]OwnerAddress(nil), r.mu.endpoints[:at]...)
	r.mu.endpoints = append(append(list, e), r.mu.endpoints[at:]...)
}

// Addresses implements Plane.
func (r *registry) Addresses() []OwnerAddress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.endpoints // it is replaced, and never changed
}

// removeEndpoint makes transfers unreachable at e, and aborts transfers which use its transport; with the
// last endpoint all.
func (r *registry) removeEndpoint(e OwnerAddress) {
	r.mu.Lock()
	var list []OwnerAddress
	for _, other := range r.mu.endpoints {
		if other != e {
			list = append(list, other)
		}
	}
	r.mu.endpoints = list
	r.mu.Unlock()
	r.abortOpen(func(by Transport) bool { return list == nil || by == e.Transport })
}

// Expect opens a transfer; see Plane.
func (r *registry) Expect(in Incoming) (*Transfer, error) {
	into := newScatter(in.Into)
	if in.Lease == 0 {
		in.Lease = DefaultLease
	}
	switch {
	case into.left == 0 || into.left > MaxSize:
		return nil, newFailure(Invalid, "expect: a transfer of %d bytes", into.left)
	case in.Lease < time.Millisecond || in.Lease > maxLease:
		return nil, newFailure(Invalid, "expect: a lease of %v", in.Lease)
	}
	t := &Transfer{registry: r, in: in, into: into.slices, over: make(chan struct{})}
	t.desc = Descriptor{epoch: r.epoch, id: newTransferID(), Size: into.left, Lease: in.Lease.Truncate(time.Millisecond)}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.endpoints == nil:
		return nil, fault.New(fault.Unavailable, "expect: the transfer plane does not run")
	case len(r.mu.open) >= r.limit:
		return nil, newFailure(Overloaded, "expect: %d transfers are open; try again", r.limit)
	}
	t.desc.Endpoints = r.mu.endpoints
	r.mu.open[t.desc.id] = t
	t.lease = time.AfterFunc(t.desc.Lease, t.expire) // under the lock: expire needs it
	return t, nil
}

func errUnknown() error {
	return newFailure(Unknown, "transfer: it is not open: its descriptor was used, or it was aborted or has expired")
}

// claimTransfer gives the transfer which h names to the caller, which must complete or release it.
// interrupt must make the caller release it soon.
func (r *registry) claimTransfer(h beginHeader, by Transport, interrupt func()) (*Transfer, error) {
	if h.epoch != r.epoch {
		return nil, newFailure(Stale, "transfer: it was that of an earlier life of the owner")
	}
	r.mu.Lock()
	t := r.mu.open[h.id]
	r.mu.Unlock()
	if t == nil {
		return nil, errUnknown()
	}
	if err := t.claim(by, interrupt); err != nil {
		return nil, err
	}
	if h.size != uint64(t.desc.Size) {
		return nil, t.release(newFailure(Invalid, "transfer: the writer has %d bytes, the owner expects %d", h.size, t.desc.Size))
	}
	return t, nil
}

// remove makes room for another transfer.
func (r *registry) remove(t *Transfer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.open, t.desc.id)
}

// abortOpen ends the open transfers whose writers use a transport for which which is true. It is 0
// before a writer has come.
func (r *registry) abortOpen(which func(Transport) bool) {
	r.mu.Lock()
	var open []*Transfer
	for _, t := range r.mu.open {
		if which(t.usedTransport()) {
			open = append(open, t)
		}
	}
	r.mu.Unlock()
	for _, t := range open {
		t.abortWith(newFailure(Aborted, "transfer: the owner is shutting down"))
		<-t.over
	}
}
