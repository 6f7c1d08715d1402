//go:build unix

package xfer

import (
	"errors"

	"golang.org/x/sys/unix"
)

// hasNothingToRead reports whether a socket is connected and has no bytes to read.
func hasNothingToRead(fd uintptr) bool {
	var b [1]byte
	_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return errors.Is(err, unix.EAGAIN)
}
