package ucx

import (
	"encoding/binary"
	"fmt"
)

// messageKind is the kind of a message. Numbers are never reused.
type messageKind uint32

const (
	messageData  messageKind = 1 // bytes of the stream
	messageTaken messageKind = 2 // the sender has taken so many messages with data
	messageEnd   messageKind = 3 // the sender has sent so many messages with data, and sends no more
	messageClose messageKind = 4 // the same, and it takes no more
)

const (
	// headerSize is that of the header of a message: stream:u64 number:u64 kind:u32.
	headerSize = 20
	// maxMessage bounds the data of a message, in bytes: half of a chunk of 256 KiB, and its frame.
	maxMessage = 132 << 10
	// windowBytes and windowMessages bound the data which one side has sent and the other has not taken.
	windowBytes    = 1 << 20
	windowMessages = 64
)

// messageHeader stands before the data of a message. The number of data is that of the message in its
// direction, from 0.
type messageHeader struct {
	stream uint64 // of the receiver: which connection it is
	number uint64
	kind   messageKind
}

func (h messageHeader) put(b []byte) {
	binary.LittleEndian.PutUint64(b, h.stream)
	binary.LittleEndian.PutUint64(b[8:], h.number)
	binary.LittleEndian.PutUint32(b[16:], uint32(h.kind))
}

// decodeHeader decodes the header of a message with size bytes of data. Bytes after it are additions of
// later builds.
func decodeHeader(b []byte, size int) (messageHeader, error) {
	if len(b) < headerSize {
		return messageHeader{}, fmt.Errorf("a message with a header of %d bytes", len(b))
	}
	h := messageHeader{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), messageKind(binary.LittleEndian.Uint32(b[16:]))}
	if isData := h.kind == messageData; size > maxMessage || isData != (size > 0) {
		return h, fmt.Errorf("a message of kind %d with %d bytes", h.kind, size)
	}
	return h, nil
}

// receiveWindow puts the messages with data of one direction in order: UCX does not, since it sends long and short
// ones in different ways. T is the memory of a message.
type receiveWindow[T any] struct {
	slots [windowMessages]struct {
		message T
		size    int // 0 is an empty slot
	}
	taken uint64 // messages
	bytes int    // in slots
	top   uint64 // number after the highest that has come
	end   uint64 // number of messages in all, once ended
	ended bool
}

// accept keeps a message of size bytes. It fails if the peer has sent it twice, or sends more than the window.
func (b *receiveWindow[T]) accept(number uint64, message T, size int) error {
	slot := &b.slots[number%windowMessages]
	switch {
	case number-b.taken >= windowMessages || slot.size > 0 || b.bytes+size > windowBytes:
		return fmt.Errorf("message %d of %d bytes, where %d were taken and %d bytes wait", number, size, b.taken, b.bytes)
	case b.ended && number >= b.end:
		return fmt.Errorf("message %d, where the peer has said that it sends %d", number, b.end)
	}
	slot.message, slot.size = message, size
	b.bytes += size
	b.top = max(b.top, number+1)
	return nil
}

// finish is told that the peer sends number messages in all.
func (b *receiveWindow[T]) finish(number uint64) error {
	if b.ended && b.end != number || number < b.top || number-b.taken > windowMessages {
		return fmt.Errorf("an end after %d messages, where %d were taken", number, b.taken)
	}
	b.end, b.ended = number, true
	return nil
}

// first returns the next message, if it has come.
func (b *receiveWindow[T]) first() (message T, ok bool) {
	slot := &b.slots[b.taken%windowMessages]
	return slot.message, slot.size > 0
}

// pop takes the next message, which must have come, and returns its size.
func (b *receiveWindow[T]) pop() int {
	slot := &b.slots[b.taken%windowMessages]
	size := slot.size
	b.bytes -= size
	var none T
	slot.message, slot.size = none, 0
	b.taken++
	return size
}

// drain removes and returns all messages, also those after a gap. No other may follow.
func (b *receiveWindow[T]) drain() (list []T) {
	for i := range b.slots {
		if slot := &b.slots[i]; slot.size > 0 {
			list = append(list, slot.message)
			slot.size = 0
		}
	}
	b.bytes = 0
	return list
}

// isOver reports whether all messages of the peer were taken.
func (b *receiveWindow[T]) isOver() bool { return b.ended && b.taken == b.end }

// sendWindow counts the messages with data of the other direction.
type sendWindow struct {
	sizes [windowMessages]int
	sent  uint64 // messages
	taken uint64 // of them by the peer
	bytes int    // sent and not taken
}

// room returns how many bytes the next message may have.
func (b *sendWindow) room() int {
	if b.sent-b.taken == windowMessages {
		return 0
	}
	return min(windowBytes-b.bytes, maxMessage)
}

// add counts a message of size bytes, and returns its number.
func (b *sendWindow) add(size int) uint64 {
	number := b.sent
	b.sizes[number%windowMessages] = size
	b.sent++
	b.bytes += size
	return number
}

// takenBy is told that the peer has taken number messages. Numbers may come late.
func (b *sendWindow) takenBy(number uint64) error {
	if number > b.sent {
		return fmt.Errorf("%d messages were taken, of %d", number, b.sent)
	}
	for ; b.taken < number; b.taken++ {
		b.bytes -= b.sizes[b.taken%windowMessages]
	}
	return nil
}
