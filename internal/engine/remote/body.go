package remote

import (
	"sync"
	"sync/atomic"
)

// BodyBuffer is a pooled buffer for the body of a call: bodies with long prompts have hundreds of kilobytes.
type BodyBuffer struct {
	B    []byte
	refs atomic.Int32 // its maker and its sender
}

var bodyPool = sync.Pool{New: func() any { return &BodyBuffer{B: make([]byte, 0, 16<<10)} }}

// maxKeptBody bounds the pooled buffers, in bytes.
const maxKeptBody = 4 << 20

// NewBody returns an empty buffer. Its maker releases it.
func NewBody() *BodyBuffer {
	b := bodyPool.Get().(*BodyBuffer)
	b.B = b.B[:0]
	b.refs.Store(1)
	return b
}

// Release returns the buffer to the pool after its last user's Release.
func (b *BodyBuffer) Release() {
	if b.refs.Add(-1) == 0 && cap(b.B) <= maxKeptBody {
		bodyPool.Put(b)
	}
}

// retain keeps the buffer until one more Release.
func (b *BodyBuffer) retain() { b.refs.Add(1) }
