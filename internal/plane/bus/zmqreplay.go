package bus

import (
	"context"
	"time"
)

// Bounds of one page of a replay. The requester asks again for the next page.
const (
	zmqPageMessages = 512
	zmqPageBytes    = 4 << 20
)

// serveReplays answers requests for missed messages, one page at a time, until the router is
// closed. Sending never blocks, so one goroutine serves all peers.
func (b *ZMQBus) serveReplays() {
	for {
		id, frames, err := b.router.Recv(context.Background())
		if err != nil {
			return
		}
		r, err := decodeZMQRequest(frames)
		if err != nil {
			b.malformed.Add(1)
			continue
		}
		for _, m := range b.buildPage(r) {
			if b.router.Send(id, m...) != nil {
				break // it disconnected or does not read; it will ask again
			}
		}
	}
}

// buildPage returns the answer to a request: messages, and the end of the page.
func (b *ZMQBus) buildPage(r zmqRequest) (answer [][][]byte) {
	b.mu.Lock()
	o := b.mu.own[r.topic]
	b.mu.Unlock()
	next, last := uint64(1), uint64(0)
	if o != nil {
		o.mu.Lock()
		j := &o.mu.journal
		j.enforceBounds(time.Now())
		last = j.lastSeq()
		if r.incarnation == b.incarnation {
			next = min(r.from, last+1)
		}
		next = max(next, j.first)
		size := 0
		for next <= last && len(answer) < zmqPageMessages && size < zmqPageBytes {
			e, n, _ := j.entryFrom(next)
			m := zmqMessage{topic: r.topic, key: e.key, seq: n, incarnation: b.incarnation, data: e.data}
			answer = append(answer, append([][]byte{nil}, m.encodeFrames()...))
			size += len(e.data)
			next = n + 1
		}
		o.mu.Unlock()
	}
	return append(answer, encodeZMQPageEnd(r.topic, b.incarnation, next, last))
}
