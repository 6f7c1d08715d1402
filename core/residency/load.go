package residency

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
	own := empty(t.cfg)
	if err := own.load(reader{data}, now); err != nil {
		return fmt.Errorf("residency: load snapshot of %d bytes: %w", len(data), err)
	}
	own.counts.Moved = 0
	*t = *own
	return nil
}

func (t *Table) load(r reader, now kv.Mono) error {
	version, err := r.byte()
	if err != nil {
		return err
	}
	if version != snapshotVersion {
		return fmt.Errorf("%w %d", ErrVersion, version)
	}
	pools, err := r.count(poolSize)
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
	runs, err := r.count(runSize)
	if err != nil {
		return err
	}
	for range runs {
		if err := t.loadRun(&r, now, slots); err != nil {
			return err
		}
	}
	if err := t.loadDoubts(&r, now); err != nil {
		return err
	}
	if len(r.data) > 0 {
		return fmt.Errorf("%d bytes too many", len(r.data))
	}
	return t.loaded()
}

// loadPool reads a pool and assigns it a slot, noEntry if there is no room.
func (t *Table) loadPool(r *reader, slots map[kv.PoolID]int32) (kv.PoolID, error) {
	n, err := r.uint32()
	if err != nil {
		return 0, err
	}
	id := kv.PoolID(n)
	flags, err := r.byte()
	if err != nil {
		return 0, err
	}
	workers, err := r.count(nameSize)
	if err != nil {
		return 0, err
	}
	if flags&^flagSaid != 0 || workers > MaxAccess || workers > 0 && flags&flagSaid == 0 {
		return 0, fmt.Errorf("pool %d: %d workers with flags %#x", id, workers, flags)
	}
	access := make([]kv.Worker, 0, workers)
	for range workers {
		w, err := r.worker()
		if err != nil {
			return 0, err
		}
		access = append(access, w)
	}
	slots[id] = t.pool(id)
	if slots[id] >= 0 && flags&flagSaid != 0 {
		t.setAccess(slots[id], access, nil)
	}
	return id, nil
}

// loadRun reads and adds a run of blocks with equal state.
func (t *Table) loadRun(r *reader, now kv.Mono, slots map[kv.PoolID]int32) error {
	id, err := r.uint32()
	if err != nil {
		return err
	}
	slot, ok := slots[kv.PoolID(id)]
	if !ok {
		return fmt.Errorf("blocks in pool %d, which is none", id)
	}
	state, err := r.byte()
	if err != nil {
		return err
	}
	flags, err := r.byte()
	if err != nil {
		return err
	}
	e := entry{pool: slot, state: kv.PoolState(state), doubt: flags&flagDoubt != 0, parked: flags&flagParked != 0}
	if e.state < kv.InTransit || e.state > kv.Evicted || flags > flagParked || flags != 0 && e.state != kv.Pooled {
		return fmt.Errorf("state %d with flags %#x", state, flags)
	}
	w, err := r.worker()
	if err != nil {
		return err
	}
	if e.since, err = r.since(now); err != nil {
		return err
	}
	n, err := r.count(hashSize)
	if err != nil {
		return err
	}
	for range n {
		seq, err := r.uint64()
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
func (t *Table) loadBlock(like *entry, w kv.Worker) error {
	if like.pool < 0 || !t.hasRoom(like) {
		t.counts.Refused++
		return nil
	}
	if t.find(like.pool, like.seq) != none {
		return fmt.Errorf("block %x is twice in pool %d", uint64(like.seq), t.pools[like.pool].id)
	}
	l := t.stateList(like)
	if l.last != none && t.entries[l.last].since > like.since {
		return errors.New("blocks are not in order of time")
	}
	at := t.add(like.pool, like.seq, w)
	e := &t.entries[at]
	e.state, e.since = like.state, like.since
	t.uncertain(e, like.doubt)
	t.setParked(e, like.parked)
	t.raise(at)
	t.push(l, at, ring)
	switch e.state {
	case kv.Pooled:
		t.pooled++
	case kv.InTransit:
		t.pools[e.pool].moving++
	}
	return nil
}

// hasRoom reports whether a block of a snapshot is within the bounds.
func (t *Table) hasRoom(e *entry) bool {
	if e.state == kv.Evicted {
		return t.evicted.len < t.cfg.MaxEvicted
	}
	full := e.state == kv.Pooled && t.cfg.Capacity > 0 && t.pools[e.pool].pooled.len >= t.cfg.Capacity
	return !full && t.transit.len+t.pooled < t.cfg.MaxBlocks
}

// loadSuspects reads the suspect workers.
func (t *Table) loadDoubts(r *reader, now kv.Mono) error {
	n, err := r.count(nameSize + ageSize)
	if err != nil {
		return err
	}
	last := now - maxAge
	for range n {
		w, err := r.worker()
		if err != nil {
			return err
		}
		since, err := r.since(now)
		if err != nil {
			return err
		}
		if since < last {
			return errors.New("workers in doubt are not in order of time")
		}
		last = since
		if m, ok := t.byName[w]; ok && !t.movers[m].doubt {
			t.movers[m].doubt, t.movers[m].since = true, since
			t.doubts = append(t.doubts, m)
		}
	}
	return nil
}

// finishLoad checks what only the whole snapshot shows, and releases empty pools.
func (t *Table) loaded() error {
	for i := range t.entries {
		if e := &t.entries[i]; e.doubt && !t.movers[e.mover].doubt {
			return errors.New("a block is in doubt and its worker is not")
		}
	}
	for i := range t.pools {
		t.leave(int32(i)) // all of it was refused
	}
	return nil
}

// snapshotReader reads a snapshot from its front.
type reader struct{ data []byte }

var errShort = errors.New("cut short")

func (r *reader) take(n int) ([]byte, error) {
	if len(r.data) < n {
		return nil, errShort
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b, nil
}

func (r *reader) byte() (byte, error) {
	b, err := r.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

func (r *reader) uint32() (uint32, error) {
	b, err := r.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *reader) uint64() (uint64, error) {
	b, err := r.take(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// readCount reads the number of elements of at least size bytes each, and checks that the data can hold
// them.
func (r *reader) count(size int) (int, error) {
	n, err := r.uint32()
	if err != nil {
		return 0, err
	}
	if uint64(n)*uint64(size) > uint64(len(r.data)) {
		return 0, errShort
	}
	return int(n), nil
}

func (r *reader) worker() (kv.Worker, error) {
	id, err := r.uint64()
	if err != nil {
		return kv.Worker{}, err
	}
	rank, err := r.uint32()
	if err != nil {
		return kv.Worker{}, err
	}
	if kv.WorkerID(id) > kv.MaxWorkerID {
		return kv.Worker{}, fmt.Errorf("worker id %d is too large", id)
	}
	return kv.Worker{ID: kv.WorkerID(id), Rank: rank}, nil
}

// readSince reads an age and returns the time.
func (r *reader) since(now kv.Mono) (kv.Mono, error) {
	a, err := r.uint64()
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
