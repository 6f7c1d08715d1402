package engineevents

import (
	"errors"
	"math"
	"strconv"

	"penstock/core/kv"
)

// Snapshot is SGLang's answer to a request for the hashes in its cache. It has no tokens, so it confirms or
// trims the known state and adds nothing. The zero value is ready for the first message.
type Snapshot struct {
	Header SnapshotHeader

	hasHeader, complete bool
	records             int
	hashes              map[kv.EngineHash]struct{}
}

// SnapshotHeader says at which point of the feed a snapshot was taken.
type SnapshotHeader struct {
	Epoch       string // of the publisher
	Rank        int64
	Resume      uint64 // the number of the first batch after the snapshot
	Barrier     uint64 // the number of the message which marks it in the feed
	BarrierID   string // the id in that message
	RecordCount int
}

// The bounds of a snapshot.
const (
	maxSnapshotHashes = 16 << 20
	maxSnapshotText   = 256
)

// The errors of AddMessage.
var (
	errSnapshotBytes = errors.New("read snapshot: a message is none of the engine's protocol (snapshot-v1)")
	errSnapshotSize  = errors.New("read snapshot: there are more hashes than any cache has")
	errSnapshotShort = errors.New("read snapshot: it ended before all of its records came")
	// ErrSnapshotRefused is returned when the engine answers with an error.
	ErrSnapshotRefused = errors.New("read snapshot: the engine could not take one")
)

// SnapshotRequest returns the frames which ask for a snapshot.
func SnapshotRequest() [][]byte { return [][]byte{nil, []byte("snapshot-v1")} }

// AddMessage adds the frames of the next message. done says that the snapshot is complete. Nothing may be
// added after that, or after an error.
func (s *Snapshot) AddMessage(frames [][]byte) (done bool, err error) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	if len(frames) < 2 || s.complete {
		return false, errSnapshotBytes
	}
	switch body := frames[1]; string(frames[0]) {
	case "header":
		return false, s.parseHeader(body)
	case "chunk":
		return false, s.parseChunk(body)
	case "end":
		if !s.hasHeader || s.records != s.Header.RecordCount {
			return false, errSnapshotShort
		}
		s.complete = true
		return true, nil
	case "error":
		return false, ErrSnapshotRefused
	}
	return false, errSnapshotBytes
}

// parseHeader parses [version, epoch, rank, resume, barrier, barrier id, records].
func (s *Snapshot) parseHeader(body []byte) error {
	r := msgpackReader{buf: body}
	n, ok := r.readArrayHeader()
	if s.hasHeader || !ok || n < 7 {
		return errSnapshotBytes
	}
	version, _, ok := r.readInteger()
	if !ok || version != 1 {
		return errSnapshotBytes
	}
	h, good := SnapshotHeader{}, true
	h.Epoch, ok = r.readLabel()
	good = good && ok
	if !r.readNil() {
		h.Rank, _, ok = r.readInteger()
		good = good && ok
	}
	h.Resume, ok = r.readCount(math.MaxInt64)
	good = good && ok
	h.Barrier, ok = r.readCount(math.MaxInt64)
	good = good && ok
	h.BarrierID, ok = r.readLabel()
	good = good && ok
	records, ok := r.readCount(maxSnapshotHashes)
	if !good || !ok {
		return errSnapshotBytes
	}
	h.RecordCount = int(records)
	s.Header, s.hasHeader, s.hashes = h, true, make(map[kv.EngineHash]struct{})
	return nil
}

// parseChunk parses [[parent, [hash, ...]], ...].
func (s *Snapshot) parseChunk(body []byte) error {
	r := msgpackReader{buf: body}
	n, ok := r.readArrayHeader()
	if !s.hasHeader || !ok {
		return errSnapshotBytes
	}
	if s.records += n; s.records > s.Header.RecordCount {
		return errSnapshotBytes
	}
	for range n {
		fields, ok := r.readArrayHeader()
		if !ok || fields < 2 || !r.skipValue() {
			return errSnapshotBytes
		}
		hashes, ok := r.readArrayHeader()
		if !ok {
			return errSnapshotBytes
		}
		if hashes > maxSnapshotHashes-len(s.hashes) {
			return errSnapshotSize
		}
		for range hashes {
			h, ok := r.readHash()
			if !ok {
				return errSnapshotBytes
			}
			s.hashes[h] = struct{}{}
		}
		for range fields - 2 {
			if !r.skipValue() {
				return errSnapshotBytes
			}
		}
	}
	if r.remaining() != 0 {
		return errSnapshotBytes
	}
	return nil
}

// readLabel reads a short name: a text, or a number, which becomes its decimal digits.
func (r *msgpackReader) readLabel() (string, bool) {
	if r.isString() {
		b, ok := r.readString()
		return string(b), ok && len(b) <= maxSnapshotText
	}
	if r.readNil() {
		return "", true
	}
	v, high, ok := r.readInteger()
	if !ok || high {
		return "", false
	}
	return strconv.FormatInt(v, 10), true
}

// readCount reads an integer from 0 to most.
func (r *msgpackReader) readCount(most int64) (uint64, bool) {
	v, high, ok := r.readInteger()
	return uint64(v), ok && !high && v >= 0 && v <= most
}

// Has reports whether the snapshot has a block. The snapshot must be complete.
func (s *Snapshot) Has(h kv.EngineHash) bool {
	_, ok := s.hashes[h]
	return ok
}

// Len returns the number of blocks in the snapshot.
func (s *Snapshot) Len() int { return len(s.hashes) }

// TrimToSnapshot removes from the engine's device tier what s does not have, and appends the changes to
// out. s must be complete, and must have been taken exactly at the last applied point of the feed: when
// [Machine.Next] is its Resume, or at its [Barrier]. A snapshot does not give copy counts: from here on
// each block has one copy, so that the next removal counts.
func (t *Table) TrimToSnapshot(s *Snapshot, out []kv.Event) []kv.Event {
	if !s.complete {
		return out
	}
	t.beginCall(out)
	x, refs := &t.blocks.hashIndex, func(id uint32) *[tierCount]uint16 { return &t.blocks.entries.at(id).refs }
	remove := func(name kv.EngineHash) { t.blocks.removeCopy(t, name, kv.TierDevice) }
	if t.pagesPerBlock > 1 {
		x, refs = &t.pages.hashIndex, func(id uint32) *[tierCount]uint16 { return &t.pages.entries.at(id).refs }
		remove = func(name kv.EngineHash) { t.pages.removeCopy(t, name, kv.TierDevice) }
	}
	for id := uint32(1); id <= x.maxID; id++ {
		r := refs(id)
		name := *x.hashes.at(id)
		if r[kv.TierDevice] == 0 {
			continue
		}
		r[kv.TierDevice] = 1
		if s.Has(name) {
			continue
		}
		remove(name)
		t.stats.Trimmed++
	}
	return t.finishCall()
}
