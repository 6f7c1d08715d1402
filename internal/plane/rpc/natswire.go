package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"penstock/core/fault"
)

// Message types of the NATS plane: the first byte of each message. Receivers ignore unknown types.
// They also ignore bytes after the known fields, except where these are the message's data.
const (
	natsCallType   = 1 // to the server: a call
	natsCreditType = 2 // to the server: how much of the answer was received; also a keepalive
	natsCancelType = 3 // to the server: the caller has canceled
	natsProbeType  = 4 // to the server: does a server listen here

	natsFrameType = 17 // to the caller: a frame or part of one
	natsEndType   = 18 // to the caller: the call ended
	natsAliveType = 19 // to the caller: how much was sent; also a keepalive
	natsGoneType  = 20 // to the caller: the call is unknown here

	// natsGrease and the types above it have no meaning. They are sent now and then, so that a
	// receiver which fails on unknown types is found early.
	natsGrease = 0x80
)

const (
	natsVersion = 1
	// natsChunk bounds the data of one message, in bytes. A longer body goes through the object
	// store; a longer frame is sent in several messages.
	natsChunk     = 64 << 10
	maxObjectName = 64

	natsMore = 1 // frame flag: the frame continues in the next message

	natsCallHead  = 4           // type, version, length of the header
	natsCallFixed = 4 + 4 + 4*2 // budget, body, and four lengths
	natsFrameHead = 1 + 1 + 8   // type, flags, sequence
	natsSeqHead   = 1 + 8       // type, sequence
	natsOverhead  = 4 << 10     // upper bound of a message's size without its data
)

// natsCallMsg is the message of a call.
type natsCallMsg struct {
	callMetadata
	method string
	size   int    // of the whole body, in bytes
	object string // name of the body's object; "" if the body is in the message
	body   []byte
}

// appendNATSCall appends the message of a call:
//
//	1 byte   type 1
//	1 byte   version 1
//	2 bytes  length of the header
//	         header: 4 bytes budget in ms (0 is none), 4 bytes length of the body,
//	         2 bytes each length of method, traceparent, tracestate and object, and
//	         these four one after another
//	rest     body, unless there is an object
func appendNATSCall(dst []byte, m *natsCallMsg) []byte {
	le := binary.LittleEndian
	dst = append(dst, natsCallType, natsVersion)
	dst = le.AppendUint16(dst, uint16(natsCallFixed+len(m.method)+len(m.parent)+len(m.state)+len(m.object)))
	dst = le.AppendUint32(dst, uint32(m.budgetMillis()))
	dst = le.AppendUint32(dst, uint32(m.size))
	for _, s := range []string{m.method, m.parent, m.state, m.object} {
		dst = le.AppendUint16(dst, uint16(len(s)))
	}
	for _, s := range []string{m.method, m.parent, m.state, m.object} {
		dst = append(dst, s...)
	}
	return append(dst, m.body...)
}

// decodeNATSCall decodes the output of appendNATSCall. The body aliases b.
func decodeNATSCall(b []byte) (*natsCallMsg, error) {
	if len(b) < natsCallHead || b[0] != natsCallType {
		return nil, errMalformed("call", b)
	}
	if b[1] != natsVersion {
		return nil, fault.New(fault.Unimplemented, "a call of version %d, this server knows version %d; upgrade it", b[1], natsVersion)
	}
	le := binary.LittleEndian
	n := int(le.Uint16(b[2:]))
	if n < natsCallFixed || len(b) < natsCallHead+n {
		return nil, errMalformed("call", b)
	}
	h, body := b[natsCallHead:natsCallHead+n], b[natsCallHead+n:]
	m := &natsCallMsg{callMetadata: callMetadata{budget: time.Duration(le.Uint32(h)) * time.Millisecond}, body: body}
	size := le.Uint32(h[4:])
	rest := h[natsCallFixed:]
	for i, f := range []struct {
		to   *string
		most int
	}{{&m.method, MaxMethod}, {&m.parent, maxTrace}, {&m.state, maxTrace}, {&m.object, maxObjectName}} {
		n := int(le.Uint16(h[8+2*i:]))
		if n > f.most || n > len(rest) {
			return nil, errMalformed("call", b)
		}
		*f.to, rest = string(rest[:n]), rest[n:]
	}
	m.size = int(size)
	switch {
	case size > MaxBody:
		return nil, errBodyTooLarge(m.method, m.size)
	case m.object == "" && len(body) != m.size:
		return nil, errMalformed("call", b)
	case m.object != "" && (!isValidSubject(m.object) || strings.Contains(m.object, ".")):
		return nil, errMalformed("call", b)
	}
	return m, nil
}

// errMalformed reveals only the size of a message, which may contain a prompt.
func errMalformed(what string, b []byte) error {
	return fault.New(fault.Invalid, "a malformed %s message of %d bytes", what, len(b))
}

// appendNATSSeq appends a message that consists of its type and one number.
func appendNATSSeq(dst []byte, typ byte, n uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, typ), n)
}

// appendNATSFrame appends the header of a frame message, which the data follows.
func appendNATSFrame(dst []byte, flags byte, seq uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, natsFrameType, flags), seq)
}

// appendNATSEnd appends the message that ends an answer. err is a result of handlerOutcome.
func appendNATSEnd(dst []byte, seq uint64, err error) []byte {
	dst = appendNATSSeq(dst, natsEndType, seq)
	if f, ok := errors.AsType[*fault.Error](err); ok {
		dst = appendFault(dst, f)
	}
	return dst
}

// natsAnswer is a message to a caller.
type natsAnswer struct {
	typ  byte
	seq  uint64 // of a frame or an end; in a keepalive, of the last message before it
	more bool   // the frame continues
	data []byte // of the frame; aliases the message
	end  error  // how the call ended
}

// minNATSAnswerSize returns the minimum size of a message of the given type, in bytes.
func minNATSAnswerSize(typ byte) int {
	switch typ {
	case natsFrameType:
		return natsFrameHead
	case natsEndType, natsAliveType:
		return natsSeqHead
	default:
		return 0
	}
}

// decodeNATSAnswer decodes a message to a caller. An unknown type is no error.
func decodeNATSAnswer(b []byte) (natsAnswer, error) {
	if len(b) == 0 {
		return natsAnswer{}, errors.New("an empty message")
	}
	a := natsAnswer{typ: b[0]}
	if least := minNATSAnswerSize(a.typ); len(b) < least {
		return a, fmt.Errorf("a message of type %d with %d bytes, at least %d are needed", a.typ, len(b), least)
	}
	switch a.typ {
	case natsFrameType:
		a.more, a.seq, a.data = b[1]&natsMore != 0, binary.LittleEndian.Uint64(b[2:]), b[natsFrameHead:]
		if len(a.data) > natsChunk {
			return a, fmt.Errorf("a part of %d bytes, at most %d are allowed", len(a.data), natsChunk)
		}
	case natsEndType:
		a.seq = binary.LittleEndian.Uint64(b[1:])
		if b = b[natsSeqHead:]; len(b) == 0 {
			break
		}
		f, err := decodeFault(b)
		if err != nil {
			return a, err
		}
		a.end = f
	case natsAliveType:
		a.seq = binary.LittleEndian.Uint64(b[1:])
	}
	return a, nil
}

// randomNATSGrease returns a meaningless message in one of sixteen cases, else nil.
func randomNATSGrease() []byte {
	if rand.N(16) != 0 {
		return nil
	}
	return appendNATSSeq(nil, natsGrease|byte(rand.N(128)), rand.Uint64())
}
