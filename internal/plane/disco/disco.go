// Package disco is the discovery plane: who is there, at which address, serving
// what. Loss of the store is staleness, not death: watchers keep the last known
// set, marked unconfirmed.
package disco

import (
	"context"

	"penstock/core/kv"
)

// MaxRecord bounds what is stored of one instance, as JSON, in bytes; a larger
// one is TooLarge. Base64 makes Meta a third longer.
const MaxRecord = 256 << 10

// Kind is what an instance is: a word of letters, digits, '-' and '_'.
type Kind string

// The kinds of instance.
const (
	Worker   Kind = "worker"
	Frontend Kind = "frontend"
	Router   Kind = "router"
)

// Instance is one registered process. Two registrations with the same Kind and
// ID are the same instance; the higher Epoch is the newer life of it.
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
	Name      string      `json:"name,omitempty"` // for people; "" is Host
	// Meta describes what is served; for a worker the JSON of its model card.
	Meta []byte `json:"meta,omitempty"`
	// Unconfirmed is set in watched sets only: the instance's lease ran out or
	// the store is out of reach, and nothing has shown yet that it is gone.
	Unconfirmed bool `json:"-"`
}

// Lease keeps an instance registered: it refreshes the liveness key by itself
// and registers again, under the same identity, after the store was away.
type Lease interface {
	// Update replaces what is registered; Kind, ID and Epoch must be the same.
	// After Unavailable the change is made when the store is back. Conflict
	// means that the registration is no longer ours: it was released, or a newer
	// life of the instance has replaced it.
	Update(ctx context.Context, in Instance) error
	// Lost is closed once the registration is known to belong to a newer life of
	// the instance: it does not come back. Release alone does not close it.
	Lost() <-chan struct{}
	// Release removes the registration now, if it is still ours. After an error
	// it ends by itself when the lease runs out. It is idempotent.
	Release(ctx context.Context) error
}

// Registry is a discovery store. Implementations are safe for concurrent use.
type Registry interface {
	// Register adds an instance and keeps it there until the lease is released.
	// It returns once watchers can see it. It replaces a lower Epoch of the same
	// instance; while an equal or higher one is alive it is a Conflict.
	Register(ctx context.Context, in Instance) (Lease, error)
	// Watch calls sink with the full set of instances of kind, ordered by ID,
	// first as it is now and then whenever it changed, until ctx ends (it
	// returns nil then). Refreshes of leases wake nobody. Receivers diff. sink
	// may keep the slice.
	Watch(ctx context.Context, kind Kind, sink func([]Instance)) error
}
