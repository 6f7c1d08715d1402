package rpc

import (
	"errors"
	"sync/atomic"

	"penstock/core/fault"
)

// byteBudget bounds memory that several calls share, in bytes. A body's whole size is reserved
// before its first byte is read, so that many large bodies which arrive at once, or never complete,
// cannot exhaust the memory of the process.
type byteBudget struct {
	limit int64
	used  atomic.Int64
}

// tryReserve reserves n bytes and reports whether they were available.
func (b *byteBudget) tryReserve(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

// release returns n reserved bytes.
func (b *byteBudget) release(n int64) { b.used.Add(-n) }

// errBodiesFull is the outcome of a call whose body does not fit the budget.
func errBodiesFull(method string, n int64) *fault.Error {
	return fault.New(fault.Overloaded, "call %s: there is no room for its body of %d bytes beside those of other calls; try again", method, n)
}

// partBuffer reassembles data that arrives in parts. Its memory grows with the bytes received, not
// with the size announced.
type partBuffer struct {
	buf  []byte
	size int // bytes when complete
}

var errTooManyBytes = errors.New("more bytes came than were announced")

// appendPart appends a copy of part.
func (g *partBuffer) appendPart(part []byte) error {
	need := len(g.buf) + len(part)
	if need > g.size {
		return errTooManyBytes
	}
	if need > cap(g.buf) {
		grown := make([]byte, len(g.buf), min(max(need, 4*cap(g.buf), 64<<10), g.size))
		copy(grown, g.buf)
		g.buf = grown
	}
	g.buf = append(g.buf, part...)
	return nil
}

// isComplete reports whether all bytes have arrived.
func (g *partBuffer) isComplete() bool { return len(g.buf) == g.size }
