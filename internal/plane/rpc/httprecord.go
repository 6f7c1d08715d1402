package rpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"penstock/core/fault"
)

// Record types. An answer over HTTP is a sequence of records: type (1 byte), length (4 bytes,
// little-endian), payload. Readers skip unknown types.
const (
	recordFrame = 1 // one frame of the answer
	recordEnd   = 2 // the last record: empty if the call succeeded, else its fault
	// recordGrease and the types above it have no meaning. Writers send one now and then, so that a
	// reader which fails on unknown types is found early.
	recordGrease = 0x80

	recordHead = 5
)

// appendRecordHead appends the header of a record with a payload of n bytes.
func appendRecordHead(dst []byte, typ byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, typ), uint32(n))
}

// appendEndRecord appends the last record of an answer. err is a result of handlerOutcome.
func appendEndRecord(dst []byte, err error) []byte {
	at := len(dst)
	dst = appendRecordHead(dst, recordEnd, 0)
	var f *fault.Error
	if errors.As(err, &f) {
		dst = appendFault(dst, f)
	}
	binary.LittleEndian.PutUint32(dst[at+1:], uint32(len(dst)-at-recordHead))
	return dst
}

// appendGreaseRecord appends a meaningless record to one answer in sixteen.
func appendGreaseRecord(dst []byte) []byte {
	if rand.N(16) != 0 {
		return dst
	}
	dst = appendRecordHead(dst, recordGrease|byte(rand.N(128)), 8)
	return binary.LittleEndian.AppendUint64(dst, rand.Uint64())
}

// recordReader reads the records of one answer.
type recordReader struct {
	r    io.Reader
	head [recordHead]byte
	buf  bytes.Buffer     // the most recent record
	part io.LimitedReader // of r
}

// nextFrame returns the next frame, which is valid until the next call of nextFrame, or reports
// that the answer ended with outcome end. err means that the answer was cut off or is malformed.
func (r *recordReader) nextFrame() (frame []byte, ended bool, end, err error) {
	for {
		typ, payload, err := r.readRecord()
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

// readRecord reads one record of any type.
func (r *recordReader) readRecord() (typ byte, payload []byte, err error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return 0, nil, err
	}
	n := int64(binary.LittleEndian.Uint32(r.head[1:]))
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("a record of %d bytes, at most %d are allowed", n, MaxFrame)
	}
	payload, err = r.readBytes(int(n))
	return r.head[0], payload, err
}

// readBytes returns the next n bytes. The buffer grows with the bytes received, not with the size
// announced.
func (r *recordReader) readBytes(n int) ([]byte, error) {
	if r.buf.Cap() > maxKeptFrame {
		r.buf = bytes.Buffer{}
	}
	r.buf.Reset()
	r.part = io.LimitedReader{R: r.r, N: int64(n)}
	if _, err := r.buf.ReadFrom(&r.part); err != nil {
		return nil, err
	}
	if r.part.N > 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return r.buf.Bytes(), nil
}
