package kvfeed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Moves were added to the format after labels. An older reader must neither refuse a record with moves nor
// lose count of its events. So a moved event is encoded as an empty removal, which changes nothing, and its
// content follows the events and their labels, where such a reader does not look.

// MaxAccess is the maximum number of workers in the access list of one event. A pool is attached to the hosts
// around one switch, and each has a few ranks.
const MaxAccess = 1024

const (
	flagMoves    = 2                     // of the header's third byte
	moveSize     = 4 + 1 + 1 + 4 + 4 + 4 // which event, state, fields, pool, hashes, workers
	accessSize   = 8 + 4                 // id, rank
	moveHasPool  = 1
	moveHasList  = 2
	moveAllFlags = moveHasPool | moveHasList
)

// moveBytes returns the bytes which ev takes after the events.
func moveBytes(ev *kv.Event) int {
	return moveSize + hashSize*len(ev.Seqs) + accessSize*len(ev.Move.Access)
}

// appendMoves appends an entry for each moved event; there must be at least one.
func appendMoves(dst []byte, events []kv.Event) []byte {
	le := binary.LittleEndian
	last := -1 // offset of the last entry
	for i := range events {
		ev := &events[i]
		if ev.Kind != kv.Moved {
			continue
		}
		if last >= 0 {
			le.PutUint32(dst[last:], le.Uint32(dst[last:])|moreEntries)
		}
		last = len(dst)
		m := &ev.Move
		fields := byte(0)
		if m.HasPool {
			fields |= moveHasPool
		}
		if m.Access != nil {
			fields |= moveHasList
		}
		dst = le.AppendUint32(dst, uint32(i))
		dst = append(dst, byte(m.To), fields)
		dst = le.AppendUint32(dst, uint32(m.Pool))
		dst = le.AppendUint32(dst, uint32(len(ev.Seqs)))
		dst = le.AppendUint32(dst, uint32(len(m.Access)))
		for _, s := range ev.Seqs {
			dst = le.AppendUint64(dst, uint64(s))
		}
		for _, w := range m.Access {
			dst = le.AppendUint64(dst, uint64(w.ID))
			dst = le.AppendUint32(dst, w.Rank)
		}
	}
	return dst
}

// decodeMoves turns the placeholder removals back into moved events, and returns the rest of data, which begins
// with the first entry.
func (r *Record) decodeMoves(data []byte) ([]byte, error) {
	// No slice may grow while events point into it; the size of data bounds them all.
	r.moved = slices.Grow(r.moved[:0], len(data)/hashSize)
	r.access = slices.Grow(r.access[:0], len(data)/accessSize)
	for from, more := 0, true; more; {
		if len(data) < moveSize {
			return nil, errors.New("moves: cut short")
		}
		entry := binary.LittleEndian.Uint32(data)
		more = entry&moreEntries != 0
		i := int(entry &^ moreEntries)
		if i < from || i >= len(r.Events) {
			return nil, fmt.Errorf("moves of event %d: must be one of %d to %d", i, from, len(r.Events)-1)
		}
		ev := &r.Events[i]
		if ev.Kind != kv.Removed || len(ev.Seqs) > 0 || ev.Tier != kv.TierDevice {
			return nil, fmt.Errorf("moves of event %d, which does not stand in for one", i)
		}
		var err error
		if data, err = r.decodeMove(ev, data[4:]); err != nil {
			return nil, fmt.Errorf("moves of event %d: %w", i, err)
		}
		from = i + 1
	}
	return data, nil
}

// decodeMove sets ev to the content of an entry, which starts after its index, and returns the rest.
func (r *Record) decodeMove(ev *kv.Event, data []byte) ([]byte, error) {
	le := binary.LittleEndian
	to, fields := kv.PoolState(data[0]), data[1]
	pool := le.Uint32(data[2:])
	hashes, workers := uint64(le.Uint32(data[6:])), uint64(le.Uint32(data[10:]))
	data = data[moveSize-4:]
	switch {
	case to < kv.LocalGPU || to > kv.Evicted:
		return nil, fmt.Errorf("unknown state %d", to)
	case fields&^moveAllFlags != 0:
		return nil, fmt.Errorf("unknown fields %#x", fields)
	case fields&moveHasPool == 0 && pool != 0:
		return nil, fmt.Errorf("pool %d, which the fields do not name", pool)
	case fields&moveHasList == 0 && workers != 0:
		return nil, fmt.Errorf("%d workers, which the fields do not name", workers)
	case workers > MaxAccess:
		return nil, fmt.Errorf("%d workers, more than %d", workers, MaxAccess)
	case hashes*hashSize+workers*accessSize > uint64(len(data)):
		return nil, errTruncated
	}
	*ev = kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: to, Pool: kv.PoolID(pool), HasPool: fields&moveHasPool != 0}}
	r.moved, ev.Seqs = appendHashes(r.moved, data[:hashes*hashSize])
	data = data[hashes*hashSize:]
	if fields&moveHasList == 0 {
		return data, nil
	}
	from := len(r.access)
	for range workers {
		w := kv.Worker{ID: kv.WorkerID(le.Uint64(data)), Rank: le.Uint32(data[8:])}
		if w.ID > kv.MaxWorkerID {
			return nil, fmt.Errorf("worker id %d is too large", w.ID)
		}
		r.access, data = append(r.access, w), data[accessSize:]
	}
	if ev.Move.Access = r.access[from:len(r.access):len(r.access)]; ev.Move.Access == nil {
		ev.Move.Access = []kv.Worker{} // an empty list differs from none
	}
	return data, nil
}
