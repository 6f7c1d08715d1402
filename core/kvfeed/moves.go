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

// MaxAccess is the maximum number of workers in the access list of one event.
const MaxAccess = kv.MaxAccess

const (
	flagMoves     = 2                     // of the header's third byte
	moveSize      = 4 + 1 + 1 + 4 + 4 + 4 // which event, state, fields, pool, hashes, workers
	accessSize    = 8 + 4                 // id, rank
	moveHasPool   = 1
	moveHasList   = 2
	moveHasLabels = 4 // of moves with access lists of their own only

	flagBlockMoves = 8 // of the header's third byte
)

// moveBytes returns the bytes which ev takes after the events.
func moveBytes(ev *kv.Event) int {
	n := moveSize + hashSize*len(ev.Seqs) + accessSize*len(ev.Move.Access)
	if ev.Move.OfBlocks && hasLabels(ev) {
		n += labelSize * len(ev.Labels)
	}
	return n
}

// appendMoves appends an entry for each moved event whose access list applies to the pool, or with ofBlocks to
// the blocks; there must be at least one. Moves of blocks are apart from the others, because a reader which
// does not know access lists of blocks would let too many workers attach them.
func appendMoves(dst []byte, events []kv.Event, ofBlocks bool) []byte {
	le := binary.LittleEndian
	last := -1 // offset of the last entry
	for i := range events {
		ev := &events[i]
		if ev.Kind != kv.Moved || ev.Move.OfBlocks != ofBlocks {
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
		labelled := ofBlocks && hasLabels(ev)
		if labelled {
			fields |= moveHasLabels
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
		if labelled {
			dst = appendLabelList(dst, ev.Labels)
		}
	}
	return dst
}

// growMoves makes room for the moves in data: no slice may grow while events point into it.
func (r *Record) growMoves(data []byte) {
	r.moved = slices.Grow(r.moved[:0], len(data)/hashSize)
	r.access = slices.Grow(r.access[:0], len(data)/accessSize)
}

// decodeMoves turns the placeholder removals back into moved events, and returns the rest of data, which begins
// with the first entry. ofBlocks says which access lists the entries have.
func (r *Record) decodeMoves(data []byte, ofBlocks bool) ([]byte, error) {
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
		if data, err = r.decodeMove(ev, data[4:], ofBlocks); err != nil {
			return nil, fmt.Errorf("moves of event %d: %w", i, err)
		}
		from = i + 1
	}
	return data, nil
}

// decodeMove sets ev to the content of an entry, which starts after its index, and returns the rest.
func (r *Record) decodeMove(ev *kv.Event, data []byte, ofBlocks bool) ([]byte, error) {
	le := binary.LittleEndian
	known := byte(moveHasPool | moveHasList)
	if ofBlocks {
		known |= moveHasLabels
	}
	to, fields := kv.PoolState(data[0]), data[1]
	pool := le.Uint32(data[2:])
	hashes, workers := uint64(le.Uint32(data[6:])), uint64(le.Uint32(data[10:]))
	data = data[moveSize-4:]
	switch {
	case to < kv.LocalGPU || to > kv.Evicted:
		return nil, fmt.Errorf("unknown state %d", to)
	case fields&^known != 0:
		return nil, fmt.Errorf("unknown fields %#x", fields)
	case fields&moveHasPool == 0 && pool != 0:
		return nil, fmt.Errorf("pool %d, which the fields do not name", pool)
	case fields&moveHasList == 0 && workers != 0:
		return nil, fmt.Errorf("%d workers, which the fields do not name", workers)
	case workers > MaxAccess:
		return nil, fmt.Errorf("%d workers, more than %d", workers, MaxAccess)
	case fields&moveHasLabels != 0 && (hashes == 0 || to == kv.LocalGPU || to == kv.Evicted):
		return nil, errors.New("labels which the move cannot have")
	case hashes*hashSize+workers*accessSize > uint64(len(data)):
		return nil, errTruncated
	}
	*ev = kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: to, Pool: kv.PoolID(pool), HasPool: fields&moveHasPool != 0, OfBlocks: ofBlocks}}
	r.moved, ev.Seqs = appendHashes(r.moved, data[:hashes*hashSize])
	data, err := r.decodeAccess(ev, data[hashes*hashSize:], fields, int(workers))
	if err == nil && fields&moveHasLabels != 0 {
		return r.decodeEventLabels(ev, data)
	}
	return data, err
}

// decodeAccess sets the access list of ev to the list of so many workers at the start of data, if the fields name
// one, and returns the rest.
func (r *Record) decodeAccess(ev *kv.Event, data []byte, fields byte, workers int) ([]byte, error) {
	if fields&moveHasList == 0 {
		return data, nil
	}
	le := binary.LittleEndian
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
