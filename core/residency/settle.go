package residency

import "penstock/core/kv"

// Index is what effects are about; *prefix.Index is one.
type Index interface {
	// Place returns how many of the blocks have a place in the index.
	Place(p kv.PoolID, seqs []kv.SeqHash) int
	Displace(p kv.PoolID, seqs []kv.SeqHash)
	SetAccess(p kv.PoolID, workers []kv.Worker)
	DropPool(p kv.PoolID)
}

// Settle does in x what effects of t ask for, and parks the blocks that x has no place for.
func (t *Table) Settle(x Index, effects []Effect) {
	for i := range effects {
		e := &effects[i]
		switch e.Do {
		case Place:
			t.place(x, e.Pool, e.Seqs)
		case Displace:
			x.Displace(e.Pool, e.Seqs)
		case SetAccess:
			x.SetAccess(e.Pool, e.Access)
		case DropPool:
			x.DropPool(e.Pool)
		}
	}
}

func (t *Table) place(x Index, p kv.PoolID, seqs []kv.SeqHash) {
	if x.Place(p, seqs) == len(seqs) {
		return
	}
	for i := range seqs {
		if x.Place(p, seqs[i:i+1]) == 0 {
			t.park(p, seqs[i])
		}
	}
}

// park notes that a block waits for its place in the index.
func (t *Table) park(id kv.PoolID, seq kv.SeqHash) {
	pool, ok := t.byID[id]
	if !ok {
		return
	}
	if at := t.find(pool, seq); at != none && t.entries[at].state == kv.Pooled && !t.entries[at].doubt {
		t.setParked(&t.entries[at], true)
	}
}
