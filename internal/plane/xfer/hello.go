package xfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// magic is the first thing that each side sends.
	magic = "pensxfer"
	// version is the only version of the protocol that this build speaks.
	version = 1
	// maxToken bounds a token, in bytes.
	maxToken = 4 << 10
)

var (
	errSpeaksTLS   = lastingError{errors.New("the peer speaks TLS, and this side does not; give both the TLS settings or neither")}
	errNotPenstock = lastingError{errors.New("the peer is not a Penstock transfer plane")}
)

// hello is the first frame of each side.
type hello struct {
	least, most uint8 // range of supported versions
	token       string
}

// appendHello appends the magic and a HELLO.
func appendHello(dst []byte, h hello) []byte {
	dst = append(dst, magic...)
	start := len(dst)
	dst = append(beginFrame(dst, frameHello), h.least, h.most)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(h.token)))
	return endFrame(append(dst, h.token...), start)
}

// decodeHello decodes the payload of a HELLO. Bytes after the token are additions of later builds.
func decodeHello(b []byte) (hello, error) {
	if len(b) < 4 {
		return hello{}, errShortFrame("HELLO", b)
	}
	h := hello{least: b[0], most: b[1]}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	switch {
	case h.least == 0 || h.least > h.most:
		return h, fmt.Errorf("a HELLO of versions %d to %d", h.least, h.most)
	case n > maxToken || n > len(b)-4:
		return h, fmt.Errorf("a HELLO with a token of %d bytes", n)
	}
	h.token = string(b[4 : 4+n])
	return h, nil
}

// errVersions explains that the versions of h are not ours.
func errVersions(h hello) error {
	return newFailure(Invalid, "the peer speaks versions %d to %d of the transfer plane, this build %d", h.least, h.most, version)
}

func (h hello) speaksOurVersion() bool { return h.least <= version && version <= h.most }

// readMagic reads the magic.
func (f *frameReader) readMagic() error {
	if f.buf == nil {
		f.buf = make([]byte, readBuffer)
	}
	for f.end-f.from < len(magic) {
		n, err := f.r.Read(f.buf[f.end:])
		f.end += n
		if f.end > f.from && (f.buf[f.from] == 0x15 || f.buf[f.from] == 0x16) { // a TLS alert or ClientHello
			return errSpeaksTLS
		}
		if n == 0 {
			if err == nil {
				err = io.ErrNoProgress
			}
			return err
		}
	}
	if string(f.buf[f.from:f.from+len(magic)]) != magic {
		return errNotPenstock
	}
	f.from += len(magic)
	return nil
}

// readHello reads the peer's greeting, or why it refuses ours.
func (f *frameReader) readHello() (hello, error) {
	if err := f.readMagic(); err != nil {
		return hello{}, err
	}
	t, payload, err := f.next()
	switch {
	case err != nil:
		return hello{}, err
	case t == frameHello:
		return decodeHello(payload)
	case t == frameOutcome:
		verdict, err := decodeVerdict(payload)
		if err != nil {
			return hello{}, err
		}
		if verdict != nil {
			return hello{}, verdict
		}
	}
	return hello{}, fmt.Errorf("the first frame is of type %d", t)
}
