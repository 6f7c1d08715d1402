package bus

import "sync"

// messageQueue holds the messages of one subscriber to a topic that is not durable. Push never
// blocks: beyond the bounds the oldest messages are lost.
type messageQueue struct {
	wake chan struct{} // holds a token when the queue may be non-empty
	mu   struct {
		sync.Mutex
		ring  []Message // its length grows up to QueueMessages and never shrinks
		head  int       // index of the oldest message
		count int
		bytes int // of data
	}
}

func newMessageQueue() *messageQueue { return &messageQueue{wake: make(chan struct{}, 1)} }

// push appends m, whose Data the queue keeps, and returns how many of the oldest messages were
// dropped to make room.
func (q *messageQueue) push(m Message) (lost uint64) {
	q.mu.Lock()
	for q.mu.count == QueueMessages || q.mu.count > 0 && q.mu.bytes+len(m.Data) > QueueBytes {
		q.dropOldestLocked()
		lost++
	}
	if q.mu.count == len(q.mu.ring) {
		q.growLocked()
	}
	q.mu.ring[(q.mu.head+q.mu.count)%len(q.mu.ring)] = m
	q.mu.count++
	q.mu.bytes += len(m.Data)
	q.mu.Unlock()

	select {
	case q.wake <- struct{}{}:
	default:
	}
	return lost
}

// pop removes and returns the oldest message; ok is false if there is none.
func (q *messageQueue) pop() (m Message, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.count == 0 {
		return Message{}, false
	}
	m = q.mu.ring[q.mu.head]
	q.dropOldestLocked()
	return m, true
}

func (q *messageQueue) dropOldestLocked() {
	q.mu.bytes -= len(q.mu.ring[q.mu.head].Data)
	q.mu.ring[q.mu.head] = Message{}
	q.mu.head = (q.mu.head + 1) % len(q.mu.ring)
	q.mu.count--
}

func (q *messageQueue) growLocked() {
	ring := make([]Message, min(max(16, 2*len(q.mu.ring)), QueueMessages))
	n := copy(ring, q.mu.ring[q.mu.head:])
	copy(ring[n:], q.mu.ring[:q.mu.head])
	q.mu.ring, q.mu.head = ring, 0
}
