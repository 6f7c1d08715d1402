package rpc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"penstock/core/fault"
)

// The records that an answer over HTTP is made of: a type, a length (4 bytes,
// little-endian) and so many bytes. Readers skip the types that they do not know.
const (
	recordFrame = 1 // one frame of the answer
	recordEnd   = 2 // the last record: empty if the call succeeded, else its fault
	// recordGrease and the types above it never mean anything. Writers send one
	// now and then, so that no reader comes to choke on what it does not know.
	recordGrease = 0x80

	recordHead = 5
	// readStep is how much memory a record gets before any of it has come.
	readStep = 64 << 10
)

// appendRecordHead appends what stands before n bytes of a record.
func appendRecordHead(dst []byte, typ byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, typ), uint32(n))
}

// appendEnd appends the last record of an answer that ended with err, which came
// from outcome.
func appendEnd(dst []byte, err error) []byte {
	at := len(dst)
	dst = appendRecordHead(dst, recordEnd, 0)
	var f *fault.Error
	if errors.As(err, &f) {
		dst = appendFault(dst, f)
	}
	binary.LittleEndian.PutUint32(dst[at+1:], uint32(len(dst)-at-recordHead))
	return dst
}

// appendGrease appends a record without meaning to one answer in sixteen.
func appendGrease(dst []byte) []byte {
	if rand.N(16) != 0 {
		return dst
	}
	dst = appendRecordHead(dst, recordGrease|byte(rand.N(128)), 8)
	return binary.LittleEndian.AppendUint64(dst, rand.Uint64())
}

// recordReader reads the records of one answer.
type recordReader struct {
	r    *bufio.Reader
	head [recordHead]byte
	buf  []byte // of the record that was read last
}

// next returns the next frame, which is valid until it is called again, or how
// the call ended. err says that the answer broke off or is not one.
func (r *recordReader) next() (frame []byte, ended bool, end, err error) {
	for {
		typ, payload, err := r.record()
		switch {
		case err != nil:
			return nil, false, nil, err
		case typ == recordFrame:
			return payload, false, nil, nil
		case typ == recordEnd && len(payload) == 0:
			return nil, true, nil, nil
		case typ == recordEnd:
			f, err := decodeFault(payload)
			if err != nil {
				return nil, false, nil, err
			}
			return nil, true, f, nil
		}
	}
}

// record reads one record of any type.
func (r *recordReader) record() (typ byte, payload []byte, err error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return 0, nil, err
	}
	n := int64(binary.LittleEndian.Uint32(r.head[1:]))
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("a record of %d bytes, at most %d are allowed", n, MaxFrame)
	}
	payload, err = r.read(int(n))
	return r.head[0], payload, err
}

// read returns the next n bytes. Memory grows with what has come, not with what
// was announced.
func (r *recordReader) read(n int) ([]byte, error) {
	if cap(r.buf) > keepFrame {
		r.buf = nil
	}
	b := r.buf[:0]
	for len(b) < n {
		if len(b) == cap(b) {
			grown := make([]byte, len(b), min(n, max(2*cap(b), readStep)))
			copy(grown, b)
			b, r.buf = grown, grown
		}
		at := len(b)
		b = b[:min(n, cap(b))]
		if _, err := io.ReadFull(r.r, b[at:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return b, nil
}
