// Package shm passes bytes to other processes of the same host in shared memory: decoded pictures,
// which are too large to copy.
//
// A segment is a file in /dev/shm with a random name. A process of the same user which knows the
// name can open it during the lease. It has its full size before its name is published, and is
// read-only from then on; a process which has opened it keeps it after its name is removed. Its
// memory is always freed: when the lease is released, when its deadline passes, when the [Lender]
// is closed, and, if the process crashes, by the next sweep ([Sweep]). A segment is alive while its
// lender holds a lock on the file. The lock ends with the process, in whatever pid namespace that
// is.
//
// Without that directory (other systems than Linux, containers without it) errors are
// ErrUnavailable, and callers must send the bytes another way.
package shm

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Dir is the directory of segments.
const Dir = "/dev/shm"

// namePrefix is the prefix of all segments' names.
const namePrefix = "penstock-"

// Errors for callers; after each of them the bytes must be sent another way.
var (
	ErrUnavailable = errors.New("shared memory is not available on this system")
	ErrFull        = errors.New("there is no room in shared memory")
	ErrGone        = errors.New("there is no such segment any more")
)

// checkName rejects names which no segment can have, so that a name from outside never refers to
// another file.
func checkName(name string) error {
	if !strings.HasPrefix(name, namePrefix) || len(name) > 128 {
		return fmt.Errorf("shm open: the name does not begin with %s or is too long", namePrefix)
	}
	for _, c := range []byte(name) {
		if !isNameByte(c) {
			return errors.New("shm open: a name has only small letters, digits and hyphens")
		}
	}
	return nil
}

// isNameByte reports whether names may contain c.
func isNameByte(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' }

// newSegmentName returns an unguessable name.
func newSegmentName(prefix string) (string, error) {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	name := namePrefix + prefix + "-" + hex.EncodeToString(random[:])
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("shm create: prefix %q is not of small letters, digits and hyphens, or too long", prefix)
	}
	return name, nil
}

// Open opens the segment of Dir with the given name, which must have exactly the given size. The
// caller must close the mapping.
func Open(name string, size int) (*Mapping, error) { return OpenIn(Dir, name, size) }

// OpenIn is Open for another directory.
func OpenIn(dir, name string, size int) (*Mapping, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, fmt.Errorf("shm open: a segment of %d bytes", size)
	}
	return openIn(dir, name, size)
}

// Sweep removes segments of dir whose lenders are dead, if they belong to this user, and returns
// their number.
func Sweep(dir string) (int, error) { return sweep(dir) }
