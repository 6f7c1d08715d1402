package poolindex

import (
	"encoding/binary"
	"errors"

	"penstock/core/kv"
)

// The fixed parts of the format; see docs/format/snapshot.md.
const (
	snapshotVersion = 1

	poolSize = 4 + 1 + 4                 // id, flags, workers
	runSize  = 4 + 1 + 1 + 8 + 4 + 8 + 4 // pool, state, flags, mover's id and rank, age, blocks
	nameSize = 8 + 4
	hashSize = 8
	ageSize  = 8

	flagAccessKnown = 1 // for a pool
	flagSuspect     = 1 // for a run
	flagParked      = 2
)

// ErrVersion is in the chain of LoadSnapshot's error if this build cannot read the snapshot's version.
var ErrVersion = errors.New("unknown version")

// AppendSnapshot appends the whole table to dst. Times become ages at now. Equal tables give equal bytes.
func (t *Table) AppendSnapshot(dst []byte, now kv.Mono) []byte {
	le := binary.LittleEndian
	dst = append(dst, snapshotVersion)
	pools := t.AppendPools(nil)
	dst = le.AppendUint32(dst, uint32(len(pools)))
	for i := range pools {
		p := &pools[i]
		flags := byte(0)
		if p.AccessKnown {
			flags = flagAccessKnown
		}
		dst = append(le.AppendUint32(dst, uint32(p.ID)), flags)
		dst = le.AppendUint32(dst, uint32(len(p.Access)))
		for _, w := range p.Access {
			dst = appendWorker(dst, w)
		}
	}
	dst = t.appendRuns(dst, now, pools)
	dst = le.AppendUint32(dst, uint32(len(t.suspects)))
	for _, m := range t.suspects {
		dst = appendWorker(dst, t.movers[m].worker)
		dst = le.AppendUint64(dst, ageOf(now, t.movers[m].since))
	}
	return dst
}

func ageOf(now, since kv.Mono) uint64 { return uint64(max(0, now-since)) }

func appendWorker(dst []byte, w kv.Worker) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(w.ID))
	return binary.LittleEndian.AppendUint32(dst, w.Rank)
}

// appendRuns appends all blocks in runs of equal state: blocks in transit, pooled blocks pool by pool, and
// evicted blocks, each in list order.
func (t *Table) appendRuns(dst []byte, now kv.Mono, pools []PoolStatus) []byte {
	le := binary.LittleEndian
	counted := len(dst)
	dst = le.AppendUint32(dst, 0)
	runs, blocks := uint32(0), 0 // blocks is the offset of the last run's count
	list := func(l *entryList) {
		var run *poolEntry
		for at := l.first; at != noEntry; at = t.entries[at].stateLink.next {
			e := &t.entries[at]
			if run == nil || !run.sharesRun(e) {
				run = e
				runs++
				dst = le.AppendUint32(dst, uint32(t.pools[e.pool].id))
				dst = append(dst, byte(e.state), e.snapshotFlags())
				dst = appendWorker(dst, t.movers[e.mover].worker)
				dst = le.AppendUint64(dst, ageOf(now, e.since))
				blocks = len(dst)
				dst = le.AppendUint32(dst, 0)
			}
			le.PutUint32(dst[blocks:], le.Uint32(dst[blocks:])+1)
			dst = le.AppendUint64(dst, uint64(e.seq))
		}
	}
	list(&t.transit)
	for i := range pools {
		list(&t.pools[t.byID[pools[i].ID]].pooled)
	}
	list(&t.evicted)
	le.PutUint32(dst[counted:], runs)
	return dst
}

// sharesRun reports whether two blocks can be in one run.
func (e *poolEntry) sharesRun(o *poolEntry) bool {
	return e.pool == o.pool && e.state == o.state && e.mover == o.mover && e.since == o.since && e.snapshotFlags() == o.snapshotFlags()
}

func (e *poolEntry) snapshotFlags() (flags byte) {
	if e.suspect {
		flags |= flagSuspect
	}
	if e.parked {
		flags |= flagParked
	}
	return flags
}
