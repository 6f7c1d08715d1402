package bus

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// zmqEnd is the number of the message which ends a page of a replay.
const zmqEnd = ^uint64(0)

// zmqMessage is one message between buses over ZeroMQ. Its frames are: the topic's name, a zero
// byte and the key; the number and the incarnation, 8 bytes each, big-endian; the data. See
// docs/format/bus.md.
type zmqMessage struct {
	topic, key       string
	seq, incarnation uint64 // of the publisher; seq is 0 on a topic that is not durable
	data             []byte
}

// zmqSubject returns the prefix of the first frame of a topic's messages. No other topic's messages
// have it.
func zmqSubject(topic string) string { return topic + "\x00" }

// maxZMQSeq bounds sequence numbers, so that arithmetic on them cannot overflow.
const maxZMQSeq = 1 << 53

// isNumbered reports whether m is a message of a durable topic.
func (m zmqMessage) isNumbered() bool { return m.seq > 0 && m.seq < maxZMQSeq && m.incarnation != 0 }

func (m zmqMessage) encodeFrames() [][]byte {
	return [][]byte{[]byte(zmqSubject(m.topic) + m.key), encodeZMQNumbers(m.seq, m.incarnation), m.data}
}

func encodeZMQNumbers(a, b uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, 16), a), b)
}

// decodeZMQMessage decodes a message; its data aliases the frames.
func decodeZMQMessage(frames [][]byte) (m zmqMessage, err error) {
	if len(frames) != 3 || len(frames[1]) != 16 {
		return m, fmt.Errorf("a message of %d frames", len(frames))
	}
	topic, key, ok := strings.Cut(string(frames[0]), "\x00")
	if !ok || len(key) > MaxKey || checkName(topic) != nil || len(frames[2]) > MaxData {
		return m, fmt.Errorf("a message whose topic, key or size is none of an event plane")
	}
	return zmqMessage{
		topic: topic, key: key,
		seq: binary.BigEndian.Uint64(frames[1]), incarnation: binary.BigEndian.Uint64(frames[1][8:]), data: frames[2],
	}, nil
}

// zmqRequest requests the messages of a topic from a number on.
type zmqRequest struct {
	topic             string
	from, incarnation uint64 // incarnation of from; 0 if unknown
}

// encodeFrames returns the request with an empty first frame, as a REQ socket sends it. Answers
// have one too.
func (r zmqRequest) encodeFrames() [][]byte {
	return [][]byte{nil, []byte(zmqSubject(r.topic)), encodeZMQNumbers(r.from, r.incarnation)}
}

func decodeZMQRequest(frames [][]byte) (r zmqRequest, err error) {
	if len(frames) != 3 || len(frames[0]) != 0 || len(frames[2]) != 16 {
		return r, fmt.Errorf("a request of %d frames", len(frames))
	}
	topic, ok := strings.CutSuffix(string(frames[1]), "\x00")
	if !ok || checkName(topic) != nil {
		return r, fmt.Errorf("a request for a topic that has no such name")
	}
	return zmqRequest{topic, binary.BigEndian.Uint64(frames[2]), binary.BigEndian.Uint64(frames[2][8:])}, nil
}

// encodeZMQPageEnd returns the message which ends a page: the number at which the next page starts,
// and the last existing number.
func encodeZMQPageEnd(topic string, life, next, last uint64) [][]byte {
	return append([][]byte{nil}, zmqMessage{topic: topic, seq: zmqEnd, incarnation: life, data: encodeZMQNumbers(next, last)}.encodeFrames()...)
}

func decodeZMQPageEnd(data []byte) (next, last uint64, ok bool) {
	if len(data) != 16 {
		return 0, 0, false
	}
	next, last = binary.BigEndian.Uint64(data), binary.BigEndian.Uint64(data[8:])
	return next, last, next > 0 && next <= last+1 && last < maxZMQSeq
}

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
