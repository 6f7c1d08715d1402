//go:build unix

package remote

import "syscall"

// nothingToRead reports whether a socket is open and has nothing to read. It does not wait.
func nothingToRead(fd uintptr) bool {
	var b [1]byte
	n, err := syscall.Read(int(fd), b[:])
	return n <= 0 && (err == syscall.EAGAIN || err == syscall.EWOULDBLOCK)
}
