package bus

import (
	"context"
	"time"

	"penstock/core/fault"
)

// Limits of every archive.
const (
	// MaxObject bounds the data of one object, in bytes; longer data is TooLarge.
	MaxObject = 512 << 20
	// MaxObjects bounds the number of objects of an archive. A Put of a further name is Overloaded.
	MaxObjects = 1024
	// LeaseTTL is the default time after which a lock of a crashed holder expires.
	LeaseTTL = 15 * time.Second
)

// ArchiveObject describes an object in an archive.
type ArchiveObject struct {
	Name string
	Size uint64 // in bytes
}

// Archive stores a small number of objects for all processes of a deployment, and provides locks
// for working on them. Implementations are safe for concurrent use. Names of objects and locks have
// the syntax of topic names.
type Archive interface {
	// Put stores data under a name, atomically: readers see all of it or none, even if this process
	// crashes. It replaces an existing object of that name. A concurrent reader of the replaced
	// object may get Unavailable, so writers should prefer new names.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns the data of an object. A missing object is NotFound; a damaged object is
	// Unavailable. The caller owns the data.
	Get(ctx context.Context, name string) ([]byte, error)
	// List returns the objects whose names begin with prefix, sorted by name.
	List(ctx context.Context, prefix string) ([]ArchiveObject, error)
	// Delete removes an object. Deleting a missing object is no error.
	Delete(ctx context.Context, name string) error
	// Lock acquires the lock of that name, calls held, releases the lock when held has returned,
	// and returns held's error. If the lock is taken, Lock returns a Conflict and does not call
	// held. The context of held ends with ctx, or when the lock is or may be lost: a holder which
	// cannot reach the store keeps the lock no longer than LeaseTTL. token is greater than the
	// tokens of all previous holders (a fencing token).
	Lock(ctx context.Context, name string, held func(ctx context.Context, token uint64) error) error
}

// checkObject validates an object for Put.
func checkObject(name string, size int) error {
	if err := checkName(name); err != nil {
		return err
	}
	if size > MaxObject {
		return fault.New(fault.TooLarge, "put %s: the object has %d bytes, at most %d are allowed", name, size, MaxObject)
	}
	return nil
}

func errObjectNotFound(name string) error {
	return fault.New(fault.NotFound, "get %s: the archive has no object of that name", name)
}

func errArchiveFull(name string) error {
	return fault.New(fault.Overloaded, "put %s: the archive has %d objects already; delete some", name, MaxObjects)
}

func errLockHeld(name string) error {
	return fault.New(fault.Conflict, "lock %s: somebody else holds it; it is free when they are done, or a while after they died", name)
}
