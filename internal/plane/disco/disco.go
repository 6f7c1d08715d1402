// Package disco is the discovery plane: which processes are registered, at which address, serving
// what. Losing the store makes the data stale, it does not remove instances: watchers keep the last
// known set, marked unconfirmed.
package disco

import (
	"context"

	"penstock/core/kv"
)

// MaxRecord bounds the stored JSON of one instance, in bytes; a larger one is TooLarge. Base64
// makes Meta a third longer.
const MaxRecord = 256 << 10

// Kind is the type of an instance: a word of letters, digits, '-' and '_'.
type Kind string

// The kinds of instance. Workers which are sent whole requests are of KindWorker. Workers of the roles prefill
// and encode have kinds of their own, so that routers which know no roles do not see them.
const (
	KindWorker   Kind = "worker"
	KindPrefill  Kind = "prefill"
	KindEncode   Kind = "encode"
	KindFrontend Kind = "frontend"
	KindRouter   Kind = "router"
)

// Instance is one registered process. Two registrations with the same Kind and ID are the same
// instance; the higher Epoch is the newer incarnation.
type Instance struct {
	Kind      Kind        `json:"kind"`
	ID        kv.WorkerID `json:"id"`
	Epoch     uint64      `json:"epoch"`
	Namespace string      `json:"namespace"`
	Component string      `json:"component"`
	Endpoint  string      `json:"endpoint"`
	Addr      string      `json:"addr"` // on the request plane
	Host      string      `json:"host"`
	PID       int         `json:"pid"`
	Name      string      `json:"name,omitempty"` // display name; "" means Host
	// Meta describes what is served; for a worker it is the JSON of its model card.
	Meta []byte `json:"meta,omitempty"`
	// Unconfirmed is set in watched sets only: the instance's lease expired or the store is
	// unreachable, but nothing has shown yet that the instance is gone.
	Unconfirmed bool `json:"-"`
}

// Lease keeps an instance registered. It refreshes the liveness key by itself, and registers again,
// with the same identity, after an outage of the store.
type Lease interface {
	// Update replaces the registered instance; Kind, ID and Epoch must not change. After
	// Unavailable the change is made when the store is back. Conflict means that the registration
	// is no longer ours: it was released, or a newer incarnation of the instance has replaced it.
	Update(ctx context.Context, in Instance) error
	// Lost is closed once the registration is known to belong to a newer incarnation of the
	// instance: this one will not be registered again. Release alone does not close it.
	Lost() <-chan struct{}
	// Release removes the registration now, if it is still ours. After an error the registration
	// ends when its lease expires. Release is idempotent.
	Release(ctx context.Context) error
}

// Registry is a discovery store. Implementations are safe for concurrent use.
type Registry interface {
	// Register adds an instance and keeps it registered until the lease is released. It returns
	// once watchers can see the instance. It replaces a lower Epoch of the same instance; if an
	// equal or higher one is alive, it returns a Conflict.
	Register(ctx context.Context, in Instance) (Lease, error)
	// Watch calls sink with the full set of instances of kind, ordered by ID: first the current
	// set, then each changed set, until ctx ends (it then returns nil). Lease refreshes do not call
	// sink. Receivers compute differences themselves. sink may keep the slice.
	Watch(ctx context.Context, kind Kind, sink func([]Instance)) error
}
