package enginefeed

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strconv"
)

// message is what the frames of one batch say beside the batch.
type message struct {
	seq     uint64
	payload []byte
	// life names the publisher's life, "" if the frames do not.
	life string
	// barrier is the snapshot that the message marks, "" for none.
	barrier string
	// end says that it is the end of what was asked for.
	end bool
}

// What SGLang appends to the topic, behind a NUL.
const (
	epochMark   = "sgl-kv-epoch="
	barrierMark = "sgl-kv-snapshot="
	maxMark     = 256
)

// liveMessage reads topic, number and batch.
func liveMessage(frames [][]byte) (m message, ok bool) {
	if len(frames) == 2 {
		return numbered(nil, frames[0], frames[1])
	}
	if len(frames) < 3 {
		return message{}, false
	}
	return numbered(frames[0], frames[1], frames[2])
}

// replayMessage reads an answer: behind an empty frame number and batch, in newer builds with
// the topic before them. Which it is is told by the number of frames.
func replayMessage(frames [][]byte) (m message, ok bool) {
	if len(frames) > 2 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	m, ok = liveMessage(frames)
	m.barrier = ""
	return m, ok
}

// numbered reads the parts. A number is 8 bytes, most significant first; what follows it there names the publisher's life.
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

// stamp tells batches of the same number apart: they begin with the time at which they were made.
type stamp struct {
	size       int
	head, tail uint32
}

func stampOf(payload []byte) stamp {
	head := payload[:min(len(payload), 64)]
	tail := payload[max(0, len(payload)-64):]
	return stamp{len(payload), crc32.ChecksumIEEE(head), crc32.ChecksumIEEE(tail)}
}

// bare reports whether a batch is too short to have an event: some publishers send such ones to be seen alive.
func bare(payload []byte) bool { return len(payload) < 24 }

// RequestReplay returns the frames that ask for all batches from a number on.
func RequestReplay(from uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, from)}
}

func digits(v int64) string { return strconv.FormatInt(v, 10) }
