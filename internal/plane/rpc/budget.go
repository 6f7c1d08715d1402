package rpc

import (
	"errors"
	"sync/atomic"

	"penstock/core/fault"
)

// budget bounds memory that several calls share, in bytes. A body is counted whole
// before the first byte of it is read, so that many large ones which come at once,
// or never come to their end, cannot take the memory of the process.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take sets n bytes aside and reports whether there were as many.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

// give returns n bytes.
func (b *budget) give(n int64) { b.used.Add(-n) }

// errBodiesFull is the outcome of a call for whose body there is no room.
func errBodiesFull(method string, n int64) *fault.Error {
	return fault.New(fault.Overloaded, "call %s: there is no room for its body of %d bytes beside those of other calls; try again", method, n)
}

// gather puts together what comes in parts. Its memory grows with what has come,
// not with what was announced.
type gather struct {
	buf  []byte
	size int // when all has come
}

var errTooMuch = errors.New("more bytes came than were announced")

// add appends a copy of part.
func (g *gather) add(part []byte) error {
	need := len(g.buf) + len(part)
	if need > g.size {
		return errTooMuch
	}
	if need > cap(g.buf) {
		grown := make([]byte, len(g.buf), min(max(need, 4*cap(g.buf), 64<<10), g.size))
		copy(grown, g.buf)
		g.buf = grown
	}
	g.buf = append(g.buf, part...)
	return nil
}

// whole reports whether all has come.
func (g *gather) whole() bool { return len(g.buf) == g.size }
