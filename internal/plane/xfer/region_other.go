//go:build !linux

package xfer

import "net"

// window is a mapping of a region: not available on this system.
type window struct{}

func newWindow() (*window, error) { return nil, errNoSharedMemory }

func (w *window) slot(int) []byte { return nil }

func (w *window) part(int, int) []byte { return nil }

func (w *window) discard() {}

func (w *window) close() {}

func (w *window) sendTo(net.Conn, []byte, *poller) (net.Conn, error) { return nil, errNoSharedMemory }

// fileReader receives files: not available on this system.
type fileReader struct{ conn net.Conn }

// Read implements io.Reader.
func (r *fileReader) Read([]byte) (int, error) { return 0, errNoSharedMemory }

func (r *fileReader) close() {}

func (r *fileReader) mapWindow(int, *poller) (*window, net.Conn, error) {
	return nil, nil, errNoSharedMemory
}

func checkPeer(net.Conn) error { return errNoSharedMemory }

func identifyHost() (string, error) { return "", errNoSharedMemory }
