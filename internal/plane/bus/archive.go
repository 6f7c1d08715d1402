package bus

import (
	"context"
	"time"

	"penstock/core/fault"
)

// Limits that every archive keeps.
const (
	// MaxObject bounds the data of one object, in bytes; a longer one is TooLarge.
	MaxObject = 512 << 20
	// MaxObjects bounds the objects of an archive: a Put of another name is
	// Overloaded then.
	MaxObjects = 1024
	// LeaseTTL is after how long a lock ends whose holder has died, if nothing else
	// is configured.
	LeaseTTL = 15 * time.Second
)

// Object describes one that an archive keeps.
type Object struct {
	Name string
	Size uint64 // in bytes
}

// Archive keeps a few objects for all processes of a fleet, and says which of them
// may work on them. Implementations are safe for concurrent use. Names of objects
// and of locks are formed like those of topics.
type Archive interface {
	// Put keeps data under a name: whoever looks sees all of it or none, also if
	// this process dies on the way. An object of that name is replaced; who reads it
	// meanwhile may get Unavailable, so that writers better take new names.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns an object as it was put; NotFound if there is none. An object that
	// is damaged is Unavailable. The data is the caller's.
	Get(ctx context.Context, name string) ([]byte, error)
	// List returns the objects of which names begin with prefix, ascending by name.
	List(ctx context.Context, prefix string) ([]Object, error)
	// Delete removes an object; one that is not there is removed already.
	Delete(ctx context.Context, name string) error
	// Lock calls held if nobody holds the lock of that name, and gives the lock up
	// when held has returned; it returns held's error. If somebody else holds it, it
	// is a Conflict and held is not called. The context of held ends with ctx, or when
	// the lock is lost or may be: a holder that cannot reach the store has it no
	// longer than LeaseTTL. token is greater than those of all who held it before.
	Lock(ctx context.Context, name string, held func(ctx context.Context, token uint64) error) error
}

// checkObject says whether an object may be put.
func checkObject(name string, size int) error {
	if err := checkName(name); err != nil {
		return err
	}
	if size > MaxObject {
		return fault.New(fault.TooLarge, "put %s: the object has %d bytes, at most %d are allowed", name, size, MaxObject)
	}
	return nil
}

func errNoObject(name string) error {
	return fault.New(fault.NotFound, "get %s: the archive has no object of that name", name)
}

func errFull(name string) error {
	return fault.New(fault.Overloaded, "put %s: the archive has %d objects already; delete some", name, MaxObjects)
}

func errHeld(name string) error {
	return fault.New(fault.Conflict, "lock %s: somebody else holds it; it is free when they are done, or a while after they died", name)
}
