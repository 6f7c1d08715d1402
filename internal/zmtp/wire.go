package zmtp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// A ZMTP 3 greeting has 64 bytes: FF, eight bytes of padding, 7F, the version (major, minor), the
// mechanism's name in 20 bytes, whether the sender is the mechanism's server, 31 zeros.
const (
	greetingSize  = 64
	signatureSize = 11 // up to the major version, which determines the format of the rest
	mechanismAt   = 12
	mechanismSize = 20
	mechanism     = "NULL"
	ourMinor      = 1 // we speak ZMTP 3.1
)

// Flags of a frame. The size takes one byte in a short frame and eight in a long one.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
	flagsKnown  = flagMore | flagLong | flagCommand
)

// maxCommand bounds the body of a command. The longest in use, READY and SUBSCRIBE, have a few
// dozen bytes.
const maxCommand = 16 << 10

// maxHeader is the size of a long frame's header.
const maxHeader = 9

func appendGreeting(b []byte) []byte {
	var g [greetingSize]byte
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = 3, ourMinor
	copy(g[mechanismAt:], mechanism)
	return append(b, g[:]...)
}

// checkSignature checks the first bytes of a greeting. Older versions send no more before they know
// ours.
func checkSignature(g []byte) error {
	switch {
	case g[0] != 0xff || g[9]&1 == 0:
		return fmt.Errorf("%w: no greeting of it; is the port that of a ZeroMQ socket?", ErrProtocol)
	case g[10] < 3:
		return fmt.Errorf("%w: the peer speaks an older ZMTP (%d); it needs libzmq 4 or later", ErrProtocol, g[10])
	}
	return nil
}

// checkGreeting checks a whole greeting, whose signature was checked before. It returns the minor
// version that both sides speak.
func checkGreeting(g []byte) (minor int, err error) {
	name := string(g[mechanismAt : mechanismAt+mechanismSize])
	if name = strings.TrimRight(name, "\x00"); name != mechanism {
		return 0, fmt.Errorf("%w: the peer wants the security mechanism %.20q; only NULL is supported, turn it off there", ErrProtocol, name)
	}
	if g[10] > 3 {
		return ourMinor, nil // a later major version falls back to ours
	}
	return min(int(g[11]), ourMinor), nil
}

// appendHeader appends the header of a frame of size bytes.
func appendHeader(b []byte, flags byte, size int) []byte {
	if size < 256 {
		return append(b, flags, byte(size))
	}
	b = append(b, flags|flagLong)
	return binary.BigEndian.AppendUint64(b, uint64(size))
}

// appendMessage appends a message.
func appendMessage(b []byte, frames [][]byte) []byte {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = append(appendHeader(b, flags, len(f)), f...)
	}
	return b
}

// messageSize returns an upper bound of the bytes which appendMessage appends.
func messageSize(frames [][]byte) int {
	n := len(frames) * maxHeader
	for _, f := range frames {
		n += len(f)
	}
	return n
}

// appendCommand appends a command; data are the parts of its data.
func appendCommand(b []byte, name string, data ...string) []byte {
	size := 1 + len(name)
	for _, d := range data {
		size += len(d)
	}
	b = append(appendHeader(b, flagCommand, size), byte(len(name)))
	b = append(b, name...)
	for _, d := range data {
		b = append(b, d...)
	}
	return b
}

// appendReady appends READY, the command that ends our part of the handshake.
func appendReady(b []byte, socket, identity string) []byte {
	meta := appendProperty(nil, "Socket-Type", socket)
	if socket == typeDealer || socket == typeRouter {
		meta = appendProperty(meta, "Identity", identity)
	}
	return appendCommand(b, "READY", string(meta))
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// splitCommand splits the body of a command into its name and data.
func splitCommand(body []byte) (name, data []byte, err error) {
	if len(body) == 0 || body[0] == 0 || int(body[0]) >= len(body) {
		return nil, nil, fmt.Errorf("%w: a command without a name", ErrProtocol)
	}
	n := 1 + int(body[0])
	return body[1:n], body[n:], nil
}

// peerInfo is what a peer declared about itself.
type peerInfo struct {
	minor    int    // of the protocol that both sides speak
	socket   string // its socket type, "" if not declared
	identity string
}

// readMetadata sets h from the properties of READY.
func (h *peerInfo) readMetadata(data []byte) error {
	for len(data) > 0 {
		n := int(data[0])
		if n == 0 || len(data) < 1+n+4 {
			return fmt.Errorf("%w: a property of READY is cut short", ErrProtocol)
		}
		name, rest := string(data[1:1+n]), data[1+n+4:]
		size := binary.BigEndian.Uint32(data[1+n:])
		if uint64(size) > uint64(len(rest)) {
			return fmt.Errorf("%w: a property of READY is cut short", ErrProtocol)
		}
		switch value := string(rest[:size]); {
		case strings.EqualFold(name, "Socket-Type"):
			h.socket = value
		case strings.EqualFold(name, "Identity"):
			h.identity = value
		}
		data = rest[size:]
	}
	if len(h.identity) > 255 {
		return fmt.Errorf("%w: an identity of %d bytes, at most 255 are allowed", ErrProtocol, len(h.identity))
	}
	return nil
}

// errorReason returns the printable reason in the data of an ERROR command.
func errorReason(data []byte) string {
	if len(data) > 0 && int(data[0]) <= len(data)-1 {
		data = data[1 : 1+data[0]]
	}
	return fmt.Sprintf("%.255q", data)
}
