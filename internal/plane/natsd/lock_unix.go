//go:build !windows

package natsd

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes an exclusive lock on f, or fails at once.
func lockFile(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}
