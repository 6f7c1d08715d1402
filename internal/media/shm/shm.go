// Package shm hands bytes to other processes of the same host in shared memory:
// decoded pictures, which are too large to be sent for nothing.
//
// A segment is a file in /dev/shm under a random name, which whoever is told it can open
// while the lease lasts, if it runs as the same user. It has its full size before its name
// is told to anybody and is read-only from then on; whoever has opened it keeps it when its
// name is gone. Its memory comes back on every path: when the lease is released, when its
// deadline passes, when the [Lender] is closed, and if the process dies without any of these,
// by the next one that sweeps ([Sweep]). A segment is alive while its lender holds a lock on
// the file, which ends with the process, whatever pid namespace that is in.
//
// Where there is no such directory (other systems than Linux, containers without it) errors
// are ErrUnavailable, and bytes go another way.
package shm

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Dir is where segments are.
const Dir = "/dev/shm"

// mark begins the names of all segments.
const mark = "penstock-"

// The errors that callers tell apart; another way must be gone after each of them.
var (
	ErrUnavailable = errors.New("shared memory is not available on this system")
	ErrFull        = errors.New("there is no room in shared memory")
	ErrGone        = errors.New("there is no such segment any more")
)

// checkName refuses names that are none of a segment, so that a name from outside never
// leads to another file.
func checkName(name string) error {
	if !strings.HasPrefix(name, mark) || len(name) > 128 {
		return fmt.Errorf("shm open: the name does not begin with %s or is too long", mark)
	}
	for _, c := range []byte(name) {
		if !plain(c) {
			return errors.New("shm open: a name has only small letters, digits and hyphens")
		}
	}
	return nil
}

// plain reports whether names may have c.
func plain(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' }

// newName returns a name that cannot be guessed.
func newName(prefix string) (string, error) {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	name := mark + prefix + "-" + hex.EncodeToString(random[:])
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("shm create: prefix %q is not of small letters, digits and hyphens, or too long", prefix)
	}
	return name, nil
}

// Open opens a segment of Dir by its name, which must have that very size. The caller closes
// what it got.
func Open(name string, size int) (*Mapping, error) { return OpenIn(Dir, name, size) }

// OpenIn is Open in another directory.
func OpenIn(dir, name string, size int) (*Mapping, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if size <= 0 {
		return nil, fmt.Errorf("shm open: a segment of %d bytes", size)
	}
	return openIn(dir, name, size)
}

// Sweep removes segments of dir whose lenders are dead, as far as they were this user's,
// and returns how many there were.
func Sweep(dir string) (int, error) { return sweep(dir) }
