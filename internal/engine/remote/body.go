package remote

import (
	"bytes"
	"sync"
	"sync/atomic"
)

// Body is a buffer for the body of a call, kept for the next one: those with long prompts are
// hundreds of kilobytes.
type Body struct {
	B    []byte
	refs atomic.Int32 // its maker and the transport's readers
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

// Release gives the buffer back once the transport does not read it any more either, which may be
// after the answer was closed.
func (b *Body) Release() {
	if b.refs.Add(-1) == 0 && cap(b.B) <= maxKeptBody {
		bodies.Put(b)
	}
}

// reader returns a reader of b that holds it until it is closed.
func (b *Body) reader() *bodyReader {
	b.refs.Add(1)
	r := &bodyReader{body: b}
	r.Reset(b.B)
	return r
}

// bodyReader is a request's body. The transport closes it, maybe twice, when it has done with it.
type bodyReader struct {
	bytes.Reader
	body   *Body
	closed atomic.Bool
}

// Close lets go of the buffer.
func (r *bodyReader) Close() error {
	if !r.closed.Swap(true) {
		r.body.Release()
	}
	return nil
}
