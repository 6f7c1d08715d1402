package zmtp

import (
	"context"
	"io"
	"sync"
)

// chunkSize is how much is written at once: many small messages, or one larger one.
const chunkSize = 64 << 10

// freeChunks is how many written chunks are kept for reuse, so that bursts need no allocation.
const freeChunks = 8

// controlRoom is how much the answers to a peer's commands may exceed maxBytes, in bytes.
const controlRoom = 64 << 10

// outbox is the queue of encoded messages for one peer. Pushing never blocks. One goroutine runs
// it, and writes the accumulated messages with one call.
type outbox struct {
	highWater, maxBytes int

	wake chan struct{} // holds a token when there may be work
	room chan struct{} // holds a token when there may be room again
	mu   struct {
		sync.Mutex
		chunks []outboxChunk // chunks[head:] are waiting
		head   int
		free   [][]byte // memory for reuse
		count  int      // waiting messages
		bytes  int
		closed bool
	}
}

// outboxChunk is a sequence of encoded messages.
type outboxChunk struct {
	buf   []byte
	count int
}

func newOutbox(o *Options) *outbox {
	return &outbox{
		highWater: o.HighWater, maxBytes: o.QueueBytes,
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// push queues a message; it returns false if there is no room.
func (o *outbox) push(frames [][]byte) bool {
	size := messageSize(frames)
	o.mu.Lock()
	if o.mu.closed || o.mu.count > 0 && (o.mu.count >= o.highWater || o.mu.bytes+size > o.maxBytes) {
		o.mu.Unlock()
		return false
	}
	c := o.lastChunkLocked(size)
	before := len(c.buf)
	c.buf = appendMessage(c.buf, frames)
	c.count++
	o.mu.count++
	o.mu.bytes += len(c.buf) - before
	o.mu.Unlock()
	notify(o.wake)
	return true
}

// queueCommand queues a command. It drops answers to a peer which sends commands but does not read.
func (o *outbox) queueCommand(command []byte) error {
	o.mu.Lock()
	if !o.mu.closed && o.mu.bytes+len(command) <= o.maxBytes+controlRoom {
		c := o.lastChunkLocked(len(command))
		c.buf = append(c.buf, command...)
		o.mu.bytes += len(command)
	}
	o.mu.Unlock()
	notify(o.wake)
	return nil
}

// lastChunkLocked returns the last chunk, with room for size bytes.
func (o *outbox) lastChunkLocked(size int) *outboxChunk {
	if n := len(o.mu.chunks); n > o.mu.head {
		if c := &o.mu.chunks[n-1]; cap(c.buf)-len(c.buf) >= size {
			return c
		}
	}
	var buf []byte
	switch {
	case size > chunkSize:
		buf = make([]byte, 0, size)
	case len(o.mu.free) > 0:
		n := len(o.mu.free) - 1
		buf, o.mu.free = o.mu.free[n], o.mu.free[:n]
	default:
		buf = make([]byte, 0, chunkSize)
	}
	o.mu.chunks = append(o.mu.chunks, outboxChunk{buf: buf})
	return &o.mu.chunks[len(o.mu.chunks)-1]
}

// pop removes the oldest chunk. ok is false if there is none; done is true if there will be none.
func (o *outbox) pop() (c outboxChunk, ok, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.head == len(o.mu.chunks) {
		return outboxChunk{}, false, o.mu.closed
	}
	c = o.mu.chunks[o.mu.head]
	o.mu.chunks[o.mu.head] = outboxChunk{}
	o.mu.head++
	switch rest := len(o.mu.chunks) - o.mu.head; {
	case rest == 0:
		o.mu.chunks, o.mu.head = o.mu.chunks[:0], 0
	case o.mu.head > rest: // amortized: each chunk is moved at most once per removed chunk
		copy(o.mu.chunks, o.mu.chunks[o.mu.head:])
		clear(o.mu.chunks[rest:])
		o.mu.chunks, o.mu.head = o.mu.chunks[:rest], 0
	}
	o.mu.count -= c.count
	o.mu.bytes -= len(c.buf)
	return c, true, false
}

func (o *outbox) recycleChunk(c outboxChunk) {
	if cap(c.buf) != chunkSize {
		return
	}
	o.mu.Lock()
	if len(o.mu.free) < freeChunks {
		o.mu.free = append(o.mu.free, c.buf[:0])
	}
	o.mu.Unlock()
}

// writeQueued writes pushed messages until ctx ends, w fails, or the outbox is closed and empty,
// which returns nil.
func (o *outbox) writeQueued(ctx context.Context, w io.Writer) error {
	for {
		c, ok, done := o.pop()
		switch {
		case done:
			return nil
		case ok:
			notify(o.room)
			if _, err := w.Write(c.buf); err != nil {
				return err
			}
			o.recycleChunk(c)
			continue
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// closeWhenEmpty ends writeQueued once everything is written. Nothing more can be queued.
func (o *outbox) closeWhenEmpty() {
	o.mu.Lock()
	o.mu.closed = true
	o.mu.Unlock()
	notify(o.wake)
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
