package xfer

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// canSendFile tells that sendFile works on this system.
const canSendFile = true

// sendFile has the kernel send n bytes of f, from offset, on conn.
func sendFile(conn *net.TCPConn, f *os.File, offset int64, n int) error {
	to, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	from, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = from.Control(func(in uintptr) {
		sent = to.Write(func(out uintptr) bool {
			for n > 0 {
				k, err := unix.Sendfile(int(out), int(in), &offset, n)
				switch {
				case errors.Is(err, unix.EINTR):
				case errors.Is(err, unix.EAGAIN):
					return false // until the connection takes more
				case err != nil || k == 0:
					return true
				default:
					n -= k
				}
			}
			return true
		})
	})
	switch {
	case err != nil:
		return err
	case sent != nil:
		return sent
	case n > 0:
		return errReadFile(errors.New("the file ends early, or the connection broke"))
	}
	return nil
}
