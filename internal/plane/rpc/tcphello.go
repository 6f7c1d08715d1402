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
	// tcpMagic is the first thing that each side sends.
	tcpMagic = "penstock"
	// tcpVersion is the only version that this build speaks.
	tcpVersion = 1
	// maxHello bounds the payload of a HELLO, or of a frame sent instead of it, in bytes.
	maxHello = 8 << 10
	// maxToken bounds a token, in bytes.
	maxToken = 4 << 10
)

// Settings of a HELLO. Numbers are never reused. Readers skip unknown settings and use the default
// of absent ones.
const (
	settingToken   = 1 // client: the shared secret
	settingFrames  = 2 // client: initial frame credit of a call
	settingBytes   = 3 // client: initial byte credit of a call
	settingMaxBody = 4 // server: the longest accepted body, in bytes
	settingCalls   = 5 // server: maximum calls in progress
	// settingChecksum is sent by both sides without TLS, as the last setting: one byte that tells
	// whether frames have checksums, and the CRC-32C of the payload up to there.
	settingChecksum = 6
)

// Values of settingChecksum.
const (
	checksumsKnown = 1 // server: supported, but the client did not ask
	checksumsUsed  = 2 // client: requested; server: enabled
)

// hello is the first message of each side. Settings with the zero value are not sent.
type hello struct {
	minVersion, maxVersion uint8 // range of supported versions
	token                  string
	frames, bytes          uint32
	maxBody, calls         uint32
	checksums              uint8
}

// helloSetting is one key and value of a HELLO.
type helloSetting struct {
	key   uint16
	value []byte
}

// appendHello appends the payload of a HELLO: versions, the settings of h, and the meaningless
// settings in more.
func appendHello(dst []byte, h *hello, more ...helloSetting) []byte {
	start := len(dst)
	dst = append(dst, h.minVersion, h.maxVersion)
	if h.token != "" {
		dst = appendSetting(dst, helloSetting{settingToken, []byte(h.token)})
	}
	for _, s := range [...]struct {
		key   uint16
		value uint32
	}{{settingFrames, h.frames}, {settingBytes, h.bytes}, {settingMaxBody, h.maxBody}, {settingCalls, h.calls}} {
		if s.value != 0 {
			dst = appendSetting(dst, helloSetting{s.key, binary.LittleEndian.AppendUint32(nil, s.value)})
		}
	}
	for _, s := range more {
		dst = appendSetting(dst, s)
	}
	if h.checksums != 0 {
		dst = appendSetting(dst, helloSetting{settingChecksum, []byte{h.checksums, 0, 0, 0, 0}})
		sum := len(dst) - checksumSize
		binary.LittleEndian.PutUint32(dst[sum:], crc32.Checksum(dst[start:sum], castagnoli))
	}
	return dst
}

func appendSetting(dst []byte, s helloSetting) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, s.key)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(s.value)))
	return append(dst, s.value...)
}

// decodeHello decodes the payload of a HELLO.
func decodeHello(b []byte) (hello, error) {
	if len(b) < 2 {
		return hello{}, errShortFrame("HELLO", b)
	}
	h := hello{minVersion: b[0], maxVersion: b[1]}
	if h.minVersion == 0 || h.minVersion > h.maxVersion {
		return h, fmt.Errorf("decode HELLO: versions %d to %d", h.minVersion, h.maxVersion)
	}
	whole := b
	for b = b[2:]; len(b) > 0; {
		if len(b) < 4 {
			return h, errShortFrame("HELLO", b)
		}
		key, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		b = b[4:]
		if n > len(b) {
			return h, fmt.Errorf("decode HELLO: a setting of %d bytes in %d", n, len(b))
		}
		if key == settingChecksum {
			if err := h.applyChecksums(whole[:len(whole)-len(b)], b[:n]); err != nil {
				return h, err
			}
		} else if err := h.applySetting(key, b[:n]); err != nil {
			return h, err
		}
		b = b[n:]
	}
	return h, nil
}

// applySetting stores one setting in h. Of several with the same key the last one counts.
func (h *hello) applySetting(key uint16, value []byte) error {
	var to *uint32
	switch key {
	case settingToken:
		if len(value) > maxToken {
			return fmt.Errorf("decode HELLO: a token of %d bytes, at most %d are allowed", len(value), maxToken)
		}
		h.token = string(value)
		return nil
	case settingFrames:
		to = &h.frames
	case settingBytes:
		to = &h.bytes
	case settingMaxBody:
		to = &h.maxBody
	case settingCalls:
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

// applyChecksums verifies and stores settingChecksum. before is the payload up to its value.
func (h *hello) applyChecksums(before, value []byte) error {
	if len(value) < 1+checksumSize {
		return errShortFrame("HELLO", value)
	}
	sum := crc32.Update(crc32.Checksum(before, castagnoli), castagnoli, value[:1])
	if sum != binary.LittleEndian.Uint32(value[1:]) {
		return errDamaged
	}
	h.checksums = value[0]
	return nil
}

// speaksOurVersion reports whether the peer that sent h supports tcpVersion.
func (h *hello) speaksOurVersion() bool {
	return h.minVersion <= tcpVersion && tcpVersion <= h.maxVersion
}

// encodeGreeting returns the magic and a HELLO with one meaningless setting.
func encodeGreeting(h *hello) []byte {
	return appendFirstFrame(nil, frameHello, appendHello(nil, h, randomGreaseSetting()))
}

// appendGreaseFrame appends a frame of a meaningless type, which is the first of every connection.
// A peer that fails on unknown types is thus found before new types exist.
func (f framing) appendGreaseFrame(dst []byte) []byte {
	t, id, nothing := greaseFrame()
	return f.appendFrame(dst, t, id, nothing, nil)
}

// appendFirstFrame appends the magic and the frame that follows it.
func appendFirstFrame(dst []byte, t frameType, payload []byte) []byte {
	dst = append(dst, tcpMagic...)
	return append(appendFrameHeader(dst, t, 0, len(payload)), payload...)
}

// randomGreaseType returns one of the reserved frame types: 0x8a, 0x9a … 0xfa.
func randomGreaseType() frameType { return frameType(rand.N(8)<<4 | 0x8a) }

// randomGreaseSetting returns one of the reserved settings: 0x0a0a, 0x0a1a … 0xfafa.
func randomGreaseSetting() helloSetting {
	return helloSetting{uint16(rand.N(16)<<12 | rand.N(16)<<4 | 0x0a0a), randomBytes(rand.N(16))}
}

// greaseFrame returns a meaningless frame.
func greaseFrame() (t frameType, id uint32, payload []byte) {
	return randomGreaseType(), rand.Uint32(), randomBytes(rand.N(32))
}

// randomBytes returns n random bytes.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// readMagic reads the magic. If the peer speaks TLS or another protocol, the error says so.
func readMagic(r io.Reader) error {
	b := make([]byte, len(tcpMagic))
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return err
	}
	if b[0] == 0x15 || b[0] == 0x16 { // a TLS alert, or a TLS ClientHello
		return errSpeaksTLS
	}
	if _, err := io.ReadFull(r, b[1:]); err != nil {
		return err
	}
	if string(b) != tcpMagic {
		return errNotPenstock
	}
	return nil
}

// readFirstFrame reads the frame that follows the magic.
func readFirstFrame(r io.Reader) (frameType, []byte, error) {
	head := make([]byte, tcpHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	t, _, n := decodeFrameHeader(head)
	if n > maxHello {
		return 0, nil, fmt.Errorf("the first frame has %d bytes, at most %d are allowed", n, maxHello)
	}
	payload := slices.Grow([]byte(nil), n)[:n]
	_, err := io.ReadFull(r, payload)
	return t, payload, err
}
