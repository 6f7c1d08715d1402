package rpc

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
)

const (
	// tcpMagic is what each side sends first.
	tcpMagic = "penstock"
	// tcpVersion is the version that this build speaks, and the only one.
	tcpVersion = 1
	// maxHello bounds the payload of a HELLO and of what stands in its place.
	maxHello = 8 << 10
	// maxToken bounds a token, in bytes.
	maxToken = 4 << 10
)

// The settings of a HELLO. Numbers are never reused; a reader passes over those
// that it does not know, and takes the default of one that is absent.
const (
	setToken   = 1 // client: the shared secret
	setFrames  = 2 // client: frames that a call may be ahead at first
	setBytes   = 3 // client: bytes that it may be ahead at first
	setMaxBody = 4 // server: the longest body that it takes
	setCalls   = 5 // server: calls at a time
	// setChecksum is sent by both without TLS, as the last one: a byte that says whether
	// frames are to have checksums, and the CRC-32C of the payload up to there.
	setChecksum = 6
)

// What setChecksum says.
const (
	checksumsKnown = 1 // server: it could, and the client did not ask
	checksumsUsed  = 2 // client: it asks; server: so it is
)

// hello is what each side says first. The zero value of a setting is not sent.
type hello struct {
	least, most    uint8 // versions spoken
	token          string
	frames, bytes  uint32
	maxBody, calls uint32
	checksums      uint8
}

// setting is one pair of a HELLO.
type setting struct {
	key   uint16
	value []byte
}

// appendHello appends the payload of a HELLO: versions, the settings of h, and
// more of them, which mean nothing.
func appendHello(dst []byte, h *hello, more ...setting) []byte {
	start := len(dst)
	dst = append(dst, h.least, h.most)
	if h.token != "" {
		dst = appendSetting(dst, setting{setToken, []byte(h.token)})
	}
	for _, s := range [...]struct {
		key   uint16
		value uint32
	}{{setFrames, h.frames}, {setBytes, h.bytes}, {setMaxBody, h.maxBody}, {setCalls, h.calls}} {
		if s.value != 0 {
			dst = appendSetting(dst, setting{s.key, binary.LittleEndian.AppendUint32(nil, s.value)})
		}
	}
	for _, s := range more {
		dst = appendSetting(dst, s)
	}
	if h.checksums != 0 {
		dst = appendSetting(dst, setting{setChecksum, []byte{h.checksums, 0, 0, 0, 0}})
		sum := len(dst) - sumSize
		binary.LittleEndian.PutUint32(dst[sum:], crc32.Checksum(dst[start:sum], castagnoli))
	}
	return dst
}

func appendSetting(dst []byte, s setting) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, s.key)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(s.value)))
	return append(dst, s.value...)
}

// decodeHello reads the payload of a HELLO.
func decodeHello(b []byte) (hello, error) {
	if len(b) < 2 {
		return hello{}, errShort("HELLO", b)
	}
	h := hello{least: b[0], most: b[1]}
	if h.least == 0 || h.least > h.most {
		return h, fmt.Errorf("decode HELLO: versions %d to %d", h.least, h.most)
	}
	whole := b
	for b = b[2:]; len(b) > 0; {
		if len(b) < 4 {
			return h, errShort("HELLO", b)
		}
		key, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		b = b[4:]
		if n > len(b) {
			return h, fmt.Errorf("decode HELLO: a setting of %d bytes in %d", n, len(b))
		}
		if key == setChecksum {
			if err := h.setChecksums(whole[:len(whole)-len(b)], b[:n]); err != nil {
				return h, err
			}
		} else if err := h.set(key, b[:n]); err != nil {
			return h, err
		}
		b = b[n:]
	}
	return h, nil
}

// set takes one setting over. The last of several of one key counts.
func (h *hello) set(key uint16, value []byte) error {
	var to *uint32
	switch key {
	case setToken:
		if len(value) > maxToken {
			return fmt.Errorf("decode HELLO: a token of %d bytes, at most %d are allowed", len(value), maxToken)
		}
		h.token = string(value)
		return nil
	case setFrames:
		to = &h.frames
	case setBytes:
		to = &h.bytes
	case setMaxBody:
		to = &h.maxBody
	case setCalls:
		to = &h.calls
	default:
		return nil
	}
	if len(value) != 4 {
		return fmt.Errorf("decode HELLO: setting %d has %d bytes, not 4", key, len(value))
	}
	*to = binary.LittleEndian.Uint32(value)
	return nil
}

// setChecksums takes setChecksum over; before is the payload up to its value.
func (h *hello) setChecksums(before, value []byte) error {
	if len(value) < 1+sumSize {
		return errShort("HELLO", value)
	}
	sum := crc32.Update(crc32.Checksum(before, castagnoli), castagnoli, value[:1])
	if sum != binary.LittleEndian.Uint32(value[1:]) {
		return errDamaged
	}
	h.checksums = value[0]
	return nil
}

// agrees reports whether the peer that said h speaks our version.
func (h *hello) agrees() bool { return h.least <= tcpVersion && tcpVersion <= h.most }

// greeting returns the magic and a HELLO with a setting that means nothing.
func greeting(h *hello) []byte {
	return appendFirst(nil, frameHello, appendHello(nil, h, greaseSetting()))
}

// appendGrease appends a frame of a type that means nothing, the first of every
// connection: a peer that stumbles over what it does not know is found out today, not
// when there is something new to say.
func (f framing) appendGrease(dst []byte) []byte {
	t, id, nothing := grease()
	return f.append(dst, t, id, nothing, nil)
}

// appendFirst appends the magic and the frame after it.
func appendFirst(dst []byte, t frameType, payload []byte) []byte {
	dst = append(dst, tcpMagic...)
	return append(appendFrameHeader(dst, t, 0, len(payload)), payload...)
}

// greaseType returns one of the reserved types of frames: 0x8a, 0x9a … 0xfa.
func greaseType() frameType { return frameType(rand.N(8)<<4 | 0x8a) }

// greaseSetting returns one of the reserved settings, 0x0a0a, 0x0a1a … 0xfafa.
func greaseSetting() setting {
	return setting{uint16(rand.N(16)<<12 | rand.N(16)<<4 | 0x0a0a), random(rand.N(16))}
}

// grease returns a frame that means nothing.
func grease() (t frameType, id uint32, payload []byte) {
	return greaseType(), rand.Uint32(), random(rand.N(32))
}

// random returns n random bytes.
func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// readMagic reads what a peer says first, and tells from it who else it is.
func readMagic(r io.Reader) error {
	b := make([]byte, len(tcpMagic))
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return err
	}
	if b[0] == 0x15 || b[0] == 0x16 { // an alert, or the greeting of a TLS client
		return errSpeaksTLS
	}
	if _, err := io.ReadFull(r, b[1:]); err != nil {
		return err
	}
	if string(b) != tcpMagic {
		return errStranger
	}
	return nil
}

// readFirst reads the frame after the magic.
func readFirst(r io.Reader) (frameType, []byte, error) {
	head := make([]byte, tcpHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	t, _, n := frameHeader(head)
	if n > maxHello {
		return 0, nil, fmt.Errorf("the first frame has %d bytes, at most %d are allowed", n, maxHello)
	}
	payload := slices.Grow([]byte(nil), n)[:n]
	_, err := io.ReadFull(r, payload)
	return t, payload, err
}
