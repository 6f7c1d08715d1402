package kvfeed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"penstock/core/kv"
)

// The fixed parts of the section; see docs/format/snapshot.md.
const (
	snapshotVersion = 1
	snapshotHeader  = 8  // version, zero, row size, rows
	snapshotRow     = 40 // worker, rank, state, flags, zeros, epoch, next, seen
	flagLost        = 1  // events are missing and have not arrived
	// maxSnapshotRows bounds what a reader allocates.
	maxSnapshotRows = 1 << 20
)

// AppendSnapshot appends to dst the positions of all feeds, so that another Tracker can continue with the
// record after the last one accepted. It does not include the counts of Health, which are per process, and
// the times of requests.
func (t *Tracker) AppendSnapshot(dst []byte) []byte {
	le := binary.LittleEndian
	dst = append(dst, snapshotVersion, 0)
	dst = le.AppendUint16(dst, snapshotRow)
	dst = le.AppendUint32(dst, uint32(len(t.feeds)))
	for i := range t.feeds {
		f := &t.feeds[i]
		dst = le.AppendUint64(dst, uint64(f.worker.ID))
		dst = le.AppendUint32(dst, f.worker.Rank)
		flags := byte(0)
		if f.lost {
			flags = flagLost
		}
		dst = append(dst, byte(f.state), flags, 0, 0)
		dst = le.AppendUint64(dst, f.epoch)
		dst = le.AppendUint64(dst, f.next)
		dst = le.AppendUint64(dst, f.seen)
	}
	return dst
}

// LoadSnapshot fills t, which must be empty, from the output of AppendSnapshot; after an error it is empty.
// In an index of the same moment, workers whose feeds are being repaired are hidden; the caller hides them if
// its index does not restore that.
func (t *Tracker) LoadSnapshot(now kv.Mono, data []byte) error {
	if len(t.feeds) > 0 {
		return errors.New("kvfeed: load snapshot: the tracker follows workers already")
	}
	if err := t.loadRows(now, data); err != nil {
		t.feeds = nil
		return fmt.Errorf("kvfeed: load snapshot of %d bytes: %w", len(data), err)
	}
	return nil
}

func (t *Tracker) loadRows(now kv.Mono, data []byte) error {
	le := binary.LittleEndian
	if len(data) < snapshotHeader {
		return errTruncated
	}
	size, rows := int(le.Uint16(data[2:])), uint64(le.Uint32(data[4:]))
	switch {
	case data[0] != snapshotVersion:
		return fmt.Errorf("%w %d", ErrVersion, data[0])
	case size < snapshotRow:
		return fmt.Errorf("rows of %d bytes, less than %d", size, snapshotRow)
	case rows > maxSnapshotRows:
		return fmt.Errorf("%d workers, more than %d", rows, maxSnapshotRows)
	case rows*uint64(size) != uint64(len(data)-snapshotHeader):
		return fmt.Errorf("%d rows of %d bytes in %d", rows, size, len(data)-snapshotHeader)
	}
	t.feeds = make([]workerFeed, 0, rows)
	for data = data[snapshotHeader:]; len(data) > 0; data = data[size:] {
		f := newWorkerFeed(now, kv.Worker{ID: kv.WorkerID(le.Uint64(data)), Rank: le.Uint32(data[8:])})
		f.state, f.lost = FeedState(data[12]), data[13]&flagLost != 0
		f.epoch, f.next, f.seen = le.Uint64(data[16:]), le.Uint64(data[24:]), le.Uint64(data[32:])
		f.lastProgress, f.hidden = now, f.state == Repairing
		if f.worker.ID > kv.MaxWorkerID || f.state > Live {
			return fmt.Errorf("worker %v in state %d", f.worker, f.state)
		}
		t.feeds = append(t.feeds, f)
	}
	return t.Check()
}
