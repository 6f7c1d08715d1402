package rpc

import (
	"errors"
	"sync/atomic"
)

// budget bounds memory that several calls share, in bytes.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take sets n bytes aside and reports whether there were as many.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

// give returns n bytes.
func (b *budget) give(n int) { b.used.Add(-int64(n)) }

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
