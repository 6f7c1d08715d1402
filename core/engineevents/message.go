package engineevents

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// feedMessage is a batch with the other contents of its frames.
type feedMessage struct {
	seq     uint64
	payload []byte
	// epoch names the publisher's incarnation, "" if the frames do not give it.
	epoch string
	// barrier is the snapshot which the message marks, "" for none.
	barrier string
	// isEnd marks the end of a replay.
	isEnd bool
}

// What SGLang appends to the topic, after a NUL.
const (
	epochPrefix   = "sgl-kv-epoch="
	barrierPrefix = "sgl-kv-snapshot="
	maxMarkLen    = 256
)

// parseLive parses topic, number and batch.
func parseLive(frames [][]byte) (m feedMessage, ok bool) {
	if len(frames) == 2 {
		return parseFrames(nil, frames[0], frames[1])
	}
	if len(frames) < 3 {
		return feedMessage{}, false
	}
	return parseFrames(frames[0], frames[1], frames[2])
}

// parseReplay parses an answer: an empty frame, then number and batch; newer builds put the topic before
// them. The number of frames tells which form it is.
func parseReplay(frames [][]byte) (m feedMessage, ok bool) {
	if len(frames) > 2 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	m, ok = parseLive(frames)
	m.barrier = ""
	return m, ok
}

// parseFrames parses the parts. A number is 8 bytes, big-endian. Further bytes name the publisher's epoch.
func parseFrames(topic, number, payload []byte) (m feedMessage, ok bool) {
	if len(number) < 8 || len(number) > 8+maxMarkLen {
		return feedMessage{}, false
	}
	m.seq, m.payload = binary.BigEndian.Uint64(number), payload
	m.epoch = string(number[8:])
	for len(topic) > 0 {
		at := bytes.IndexByte(topic, 0)
		if at < 0 {
			break
		}
		topic = topic[at+1:]
		mark, _, _ := bytes.Cut(topic, []byte{0})
		if len(mark) > maxMarkLen {
			return feedMessage{}, false
		}
		if epoch, found := bytes.CutPrefix(mark, []byte(epochPrefix)); found {
			m.epoch = string(epoch)
		}
		if id, found := bytes.CutPrefix(mark, []byte(barrierPrefix)); found {
			m.barrier = string(id)
		}
	}
	if m.seq == 1<<64-1 && len(payload) == 0 {
		m.isEnd = true
		return m, true
	}
	return m, m.seq < 1<<63
}

// payloadStamp distinguishes batches of the same number: a batch starts with its creation time.
type payloadStamp struct {
	size       int
	head, tail uint32
}

func stampPayload(payload []byte) payloadStamp {
	head := payload[:min(len(payload), 64)]
	tail := payload[max(0, len(payload)-64):]
	return payloadStamp{len(payload), crc32.ChecksumIEEE(head), crc32.ChecksumIEEE(tail)}
}

// hasNoEvents reports whether a batch is too short for an event. Some publishers send such batches as
// heartbeats.
func hasNoEvents(payload []byte) bool { return len(payload) < 24 }

// RequestReplay returns the frames which ask for all batches from a number on.
func RequestReplay(from uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, from)}
}
