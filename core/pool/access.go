package pool

import (
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// The access list has one word for each worker: 1 + its id, 0 is none. A worker which is not in it cannot join, and one
// which is removed leaves when it renews. It keeps no process from reading memory which it has mapped.

// AllowOnly restricts access to some workers, at most 512. A process which dies here leaves a list with workers of the
// old one or of the new one.
func (p *View) AllowOnly(workers []kv.WorkerID) error {
	for _, id := range workers {
		if !p.allowWorker(id) {
			return fault.New(fault.Overloaded, "pool: the access list of the pool is full with %d workers", maxAllowed)
		}
	}
	p.words.Store(wordRestricted, 1)
	for at := accessAt; at < accessAt+8*maxAllowed; at += 8 {
		if v := p.words.Load(at); v != 0 && !slices.Contains(workers, kv.WorkerID(v-1)) {
			p.words.CompareAndSwap(at, v, 0) // otherwise another process has changed it
		}
	}
	return nil
}

// allowWorker adds a worker to the list, and reports whether it is there.
func (p *View) allowWorker(id kv.WorkerID) bool {
	if p.findAllowed(id) {
		return true
	}
	for at := accessAt; at < accessAt+8*maxAllowed; at += 8 {
		if p.words.Load(at) == 0 && p.words.CompareAndSwap(at, 0, uint64(id)+1) {
			return true
		}
	}
	return false
}

// AllowAll ends the restriction of access.
func (p *View) AllowAll() { p.words.Store(wordRestricted, 0) }

// AppendAllowed appends the workers which may attach the pool to dst. Without a restriction, restricted is false and all
// workers may.
func (p *View) AppendAllowed(dst []kv.WorkerID) (allowed []kv.WorkerID, restricted bool) {
	if p.words.Load(wordRestricted) == 0 {
		return dst, false
	}
	for at := accessAt; at < accessAt+8*maxAllowed; at += 8 {
		if v := p.words.Load(at); v != 0 {
			dst = append(dst, kv.WorkerID(v-1))
		}
	}
	return dst, true
}

func (p *View) isAllowed(id kv.WorkerID) bool {
	return p.words.Load(wordRestricted) == 0 || p.findAllowed(id)
}

func (p *View) findAllowed(id kv.WorkerID) bool {
	for at := accessAt; at < accessAt+8*maxAllowed; at += 8 {
		if p.words.Load(at) == uint64(id)+1 {
			return true
		}
	}
	return false
}
