package poolindex

import (
	"encoding/binary"
	"errors"
	"fmt"

	"penstock/core/kv"
)

// LoadSnapshot fills t, which must be empty, from the output of AppendSnapshot. now is the time on t's clock
// at which the snapshot was written, that is, the present time less its age. Blocks beyond t's bounds are
// refused and counted. After an error t is still empty.
func (t *Table) LoadSnapshot(data []byte, now kv.Mono) error {
	own := newTable(t.cfg)
	if err := own.readSnapshot(snapshotReader{data}, now); err != nil {
		return fmt.Errorf("poolindex: load snapshot of %d bytes: %w", len(data), err)
	}
	own.counts.Moved = 0
	*t = *own
	return nil
}

func (t *Table) readSnapshot(r snapshotReader, now kv.Mono) error {
	version, err := r.readByte()
	if err != nil {
		return err
	}
	if version != snapshotVersion {
		return fmt.Errorf("%w %d", ErrVersion, version)
	}
	pools, err := r.readCount(poolSize)
	if err != nil {
		return err
	}
	slots := map[kv.PoolID]int32{}
	last := int64(-1)
	for range pools {
		id, err := t.loadPool(&r, slots)
		if err != nil {
			return err
		}
		if int64(id) <= last {
			return fmt.Errorf("pool %d after %d", id, last)
		}
		last = int64(id)
	}
	runs, err := r.readCount(runSize)
	if err != nil {
		return err
	}
	for range runs {
		if err := t.loadRun(&r, now, slots); err != nil {
			return err
		}
	}
	if err := t.loadSuspects(&r, now); err != nil {
		return err
	}
	if len(r.data) > 0 {
		return fmt.Errorf("%d bytes too many", len(r.data))
	}
	return t.finishLoad()
}

// loadPool reads a pool and assigns it a slot, noEntry if there is no room.
func (t *Table) loadPool(r *snapshotReader, slots map[kv.PoolID]int32) (kv.PoolID, error) {
	n, err := r.readUint32()
	if err != nil {
		return 0, err
	}
	id := kv.PoolID(n)
	flags, err := r.readByte()
	if err != nil {
		return 0, err
	}
	workers, err := r.readCount(nameSize)
	if err != nil {
		return 0, err
	}
	if flags&^flagAccessKnown != 0 || workers > MaxAccess || workers > 0 && flags&flagAccessKnown == 0 {
		return 0, fmt.Errorf("pool %d: %d workers with flags %#x", id, workers, flags)
	}
	access := make([]kv.Worker, 0, workers)
	for range workers {
		w, err := r.readWorker()
		if err != nil {
			return 0, err
		}
		access = append(access, w)
	}
	slots[id] = t.findOrAddPool(id)
	if slots[id] >= 0 && flags&flagAccessKnown != 0 {
		t.setAccess(slots[id], access, nil)
	}
	return id, nil
}

// loadRun reads and adds a run of blocks with equal state.
func (t *Table) loadRun(r *snapshotReader, now kv.Mono, slots map[kv.PoolID]int32) error {
	id, err := r.readUint32()
	if err != nil {
		return err
	}
	slot, ok := slots[kv.PoolID(id)]
	if !ok {
		return fmt.Errorf("blocks in pool %d, which is none", id)
	}
	state, err := r.readByte()
	if err != nil {
		return err
	}
	flags, err := r.readByte()
	if err != nil {
		return err
	}
	e := poolEntry{pool: slot, state: kv.PoolState(state), suspect: flags&flagSuspect != 0, parked: flags&flagParked != 0}
	if e.state < kv.InTransit || e.state > kv.Evicted || flags > flagParked || flags != 0 && e.state != kv.Pooled {
		return fmt.Errorf("state %d with flags %#x", state, flags)
	}
	w, err := r.readWorker()
	if err != nil {
		return err
	}
	if e.since, err = r.readSince(now); err != nil {
		return err
	}
	n, err := r.readCount(hashSize)
	if err != nil {
		return err
	}
	for range n {
		seq, err := r.readUint64()
		if err != nil {
			return err
		}
		e.seq = kv.SeqHash(seq)
		if err := t.loadBlock(&e, w); err != nil {
			return err
		}
	}
	return nil
}

// loadBlock adds a block with the state of `like`, if there is room.
func (t *Table) loadBlock(like *poolEntry, w kv.Worker) error {
	if like.pool < 0 || !t.hasRoom(like) {
		t.counts.Refused++
		return nil
	}
	if t.findEntry(like.pool, like.seq) != noEntry {
		return fmt.Errorf("block %x is twice in pool %d", uint64(like.seq), t.pools[like.pool].id)
	}
	l := t.stateList(like)
	if l.last != noEntry && t.entries[l.last].since > like.since {
		return errors.New("blocks are not in order of time")
	}
	at := t.addEntry(like.pool, like.seq, w)
	e := &t.entries[at]
	e.state, e.since = like.state, like.since
	t.setSuspect(e, like.suspect)
	t.setParked(e, like.parked)
	t.reorderEntry(at)
	t.pushEntry(l, at, stateLinkOf)
	switch e.state {
	case kv.Pooled:
		t.pooledCount++
	case kv.InTransit:
		t.pools[e.pool].inTransit++
	}
	return nil
}

// hasRoom reports whether a block of a snapshot is within the bounds.
func (t *Table) hasRoom(e *poolEntry) bool {
	if e.state == kv.Evicted {
		return t.evicted.len < t.cfg.MaxEvicted
	}
	full := e.state == kv.Pooled && t.cfg.Capacity > 0 && t.pools[e.pool].pooled.len >= t.cfg.Capacity
	return !full && t.transit.len+t.pooledCount < t.cfg.MaxBlocks
}

// loadSuspects reads the suspect workers.
func (t *Table) loadSuspects(r *snapshotReader, now kv.Mono) error {
	n, err := r.readCount(nameSize + ageSize)
	if err != nil {
		return err
	}
	last := now - maxAge
	for range n {
		w, err := r.readWorker()
		if err != nil {
			return err
		}
		since, err := r.readSince(now)
		if err != nil {
			return err
		}
		if since < last {
			return errors.New("workers in doubt are not in order of time")
		}
		last = since
		if m, ok := t.byWorker[w]; ok && !t.movers[m].suspect {
			t.movers[m].suspect, t.movers[m].since = true, since
			t.suspects = append(t.suspects, m)
		}
	}
	return nil
}

// finishLoad checks what only the whole snapshot shows, and releases empty pools.
func (t *Table) finishLoad() error {
	for i := range t.entries {
		if e := &t.entries[i]; e.suspect && !t.movers[e.mover].suspect {
			return errors.New("a block is in doubt and its worker is not")
		}
	}
	for i := range t.pools {
		t.releasePool(int32(i)) // all of it was refused
	}
	return nil
}

// snapshotReader reads a snapshot from its front.
type snapshotReader struct{ data []byte }

var errShort = errors.New("cut short")

func (r *snapshotReader) readBytes(n int) ([]byte, error) {
	if len(r.data) < n {
		return nil, errShort
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b, nil
}

func (r *snapshotReader) readByte() (byte, error) {
	b, err := r.readBytes(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

func (r *snapshotReader) readUint32() (uint32, error) {
	b, err := r.readBytes(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *snapshotReader) readUint64() (uint64, error) {
	b, err := r.readBytes(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// readCount reads the number of elements of at least size bytes each, and checks that the data can hold
// them.
func (r *snapshotReader) readCount(size int) (int, error) {
	n, err := r.readUint32()
	if err != nil {
		return 0, err
	}
	if uint64(n)*uint64(size) > uint64(len(r.data)) {
		return 0, errShort
	}
	return int(n), nil
}

func (r *snapshotReader) readWorker() (kv.Worker, error) {
	id, err := r.readUint64()
	if err != nil {
		return kv.Worker{}, err
	}
	rank, err := r.readUint32()
	if err != nil {
		return kv.Worker{}, err
	}
	if kv.WorkerID(id) > kv.MaxWorkerID {
		return kv.Worker{}, fmt.Errorf("worker id %d is too large", id)
	}
	return kv.Worker{ID: kv.WorkerID(id), Rank: rank}, nil
}

// readSince reads an age and returns the time.
func (r *snapshotReader) readSince(now kv.Mono) (kv.Mono, error) {
	a, err := r.readUint64()
	if err != nil {
		return 0, err
	}
	if a > maxAge {
		return 0, fmt.Errorf("an age of %d ns", a)
	}
	return now - kv.Mono(a), nil
}

// maxAge is about 73 years, far from an overflow of times.
const maxAge = 1 << 61
