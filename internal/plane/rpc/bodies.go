package rpc

import (
	"sync/atomic"

	"penstock/core/fault"
)

// bodies bounds the bytes of bodies that a server holds at a time. Each is
// counted whole before the first byte of it is read, so that many large ones
// which come at once, or never come to their end, cannot take the memory of the
// process.
type bodies struct {
	most int64
	held atomic.Int64
}

// take counts a body of n bytes; the error says that there is no room now. What
// was taken is given back.
func (b *bodies) take(n int64) error {
	if b.held.Add(n) <= b.most {
		return nil
	}
	b.held.Add(-n)
	return fault.New(fault.Overloaded, "the bodies of the calls in progress fill the worker's %d bytes for them; try again", b.most)
}

func (b *bodies) give(n int64) { b.held.Add(-n) }
