package xfer

import (
	"encoding/binary"
	"fmt"
)

// maxWorkerAddress bounds the address of a worker of UCX, in bytes. It grows with the devices of a host.
const maxWorkerAddress = 16 << 10

// joinHeader is the payload of JOIN.
type joinHeader struct {
	stream  uint64 // by which messages to the sender name the connection
	address []byte // of the sender's worker of UCX; opaque
}

func appendJoin(dst []byte, h joinHeader) []byte {
	start := len(dst)
	dst = beginFrame(dst, frameJoin)
	dst = binary.LittleEndian.AppendUint64(dst, h.stream)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(h.address)))
	return endFrame(append(dst, h.address...), start)
}

// decodeJoin decodes a JOIN, whose address aliases b.
func decodeJoin(b []byte) (h joinHeader, err error) {
	if len(b) < 10 {
		return h, errShortFrame("JOIN", b)
	}
	h.stream = binary.LittleEndian.Uint64(b)
	n := int(binary.LittleEndian.Uint16(b[8:]))
	if n == 0 || n > maxWorkerAddress || n > len(b)-10 {
		return h, fmt.Errorf("a JOIN with an address of %d bytes, in %d", n, len(b))
	}
	h.address = b[10 : 10+n : 10+n]
	return h, nil
}

// readJoin reads the JOIN which follows a greeting.
func (f *frameReader) readJoin() (joinHeader, error) {
	t, payload, err := f.next()
	switch {
	case err != nil:
		return joinHeader{}, err
	case t != frameJoin:
		return joinHeader{}, fmt.Errorf("a frame of type %d instead of a JOIN", t)
	}
	return decodeJoin(payload)
}
