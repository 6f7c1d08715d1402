package remote

import (
	"sync"
	"sync/atomic"
)

// Body is a buffer for the body of a call, kept for the next one: those with long prompts are
// hundreds of kilobytes.
type Body struct {
	B    []byte
	refs atomic.Int32 // its maker and who sends it
}

var bodies = sync.Pool{New: func() any { return &Body{B: make([]byte, 0, 16<<10)} }}

// maxKeptBody bounds the buffers that are kept.
const maxKeptBody = 4 << 20

// NewBody returns an empty buffer. Its maker releases it.
func NewBody() *Body {
	b := bodies.Get().(*Body)
	b.B = b.B[:0]
	b.refs.Store(1)
	return b
}

// Release gives the buffer back once nobody sends it any more either.
func (b *Body) Release() {
	if b.refs.Add(-1) == 0 && cap(b.B) <= maxKeptBody {
		bodies.Put(b)
	}
}

// hold keeps the buffer until one more Release.
func (b *Body) hold() { b.refs.Add(1) }
