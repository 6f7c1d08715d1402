//go:build unix

package doctor

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileLimit returns how many files this process may have open.
func fileLimit() (n uint64, known bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return uint64(r.Cur), true
}

// isAddrInUse reports whether listening failed because another socket listens there.
func isAddrInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
