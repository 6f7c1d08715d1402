//go:build !linux

package xfer

import (
	"net"
	"os"
)

// canSendFile tells that sendFile works on this system.
const canSendFile = false

func sendFile(*net.TCPConn, *os.File, int64, int) error { return os.ErrInvalid }
