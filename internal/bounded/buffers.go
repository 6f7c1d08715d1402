package bounded

import "sync"

// bufferPool holds memory for messages, reused between requests.
var bufferPool = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// maxPooled bounds the size of a pooled buffer, in bytes.
const maxPooled = 16 << 10

// TakeBuffer returns an empty buffer.
func TakeBuffer() []byte { return *bufferPool.Get().(*[]byte) }

// RecycleBuffer makes an unused buffer, or the longer one that it became, available to TakeBuffer.
func RecycleBuffer(b []byte) {
	if cap(b) > 0 && cap(b) <= maxPooled {
		b = b[:0]
		bufferPool.Put(&b)
	}
}
