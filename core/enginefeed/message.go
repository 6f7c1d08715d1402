package enginefeed

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strconv"
)

// feedMessage is a batch with the other contents of its frames.
type message struct {
	seq     uint64
	payload []byte
	// epoch names the publisher's incarnation, "" if the frames do not give it.
	life string
	// barrier is the snapshot which the message marks, "" for none.
	barrier string
	// isEnd marks the end of a replay.
	end bool
}

// What SGLang appends to the topic, after a NUL.
const (
	epochMark   = "sgl-kv-epoch="
	barrierMark = "sgl-kv-snapshot="
	maxMark     = 256
)

// parseLive parses topic, number and batch.
func liveMessage(frames [][]byte) (m message, ok bool) {
	if len(frames) == 2 {
		return numbered(nil, frames[0], frames[1])
	}
	if len(frames) < 3 {
		return message{}, false
	}
	return numbered(frames[0], frames[1], frames[2])
}

// parseReplay parses an answer: an empty frame, then number and batch; newer builds put the topic before
// them. The number of frames tells which form it is.
func replayMessage(frames [][]byte) (m message, ok bool) {
	if len(frames) > 2 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	m, ok = liveMessage(frames)
	m.barrier = ""
	return m, ok
}

// parseFrames parses the parts. A number is 8 bytes, big-endian. Further bytes name the publisher's epoch.
func numbered(topic, number, payload []byte) (m message, ok bool) {
	if len(number) < 8 || len(number) > 8+maxMark {
		return message{}, false
	}
	m.seq, m.payload = binary.BigEndian.Uint64(number), payload
	m.life = string(number[8:])
	for len(topic) > 0 {
		at := bytes.IndexByte(topic, 0)
		if at < 0 {
			break
		}
		topic = topic[at+1:]
		mark, _, _ := bytes.Cut(topic, []byte{0})
		if len(mark) > maxMark {
			return message{}, false
		}
		if epoch, found := bytes.CutPrefix(mark, []byte(epochMark)); found {
			m.life = string(epoch)
		}
		if id, found := bytes.CutPrefix(mark, []byte(barrierMark)); found {
			m.barrier = string(id)
		}
	}
	if m.seq == 1<<64-1 && len(payload) == 0 {
		m.end = true
		return m, true
	}
	return m, m.seq < 1<<63
}

// payloadStamp distinguishes batches of the same number: a batch starts with its creation time.
type stamp struct {
	size       int
	head, tail uint32
}

func stampOf(payload []byte) stamp {
	head := payload[:min(len(payload), 64)]
	tail := payload[max(0, len(payload)-64):]
	return stamp{len(payload), crc32.ChecksumIEEE(head), crc32.ChecksumIEEE(tail)}
}

// hasNoEvents reports whether a batch is too short for an event. Some publishers send such batches as
// heartbeats.
func bare(payload []byte) bool { return len(payload) < 24 }

// RequestReplay returns the frames which ask for all batches from a number on.
func RequestReplay(from uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, from)}
}

func digits(v int64) string { return strconv.FormatInt(v, 10) }
