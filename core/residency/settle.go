package residency

import "penstock/core/kv"

// PrefixIndex is the index which effects change; *prefix.Index implements it.
type Index interface {
	// Place returns how many of the blocks have a place in the index.
	Place(p kv.PoolID, seqs []kv.SeqHash) int
	Displace(p kv.PoolID, seqs []kv.SeqHash)
	SetAccess(p kv.PoolID, workers []kv.Worker)
	DropPool(p kv.PoolID)
}

// ApplyEffects applies effects of t to x, and parks the blocks for which x has no place.
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

// parkBlock records that a block waits for its place in the prefix index.
func (t *Table) park(id kv.PoolID, seq kv.SeqHash) {
	pool, ok := t.byID[id]
	if !ok {
		return
	}
	if at := t.find(pool, seq); at != none && t.entries[at].state == kv.Pooled && !t.entries[at].doubt {
		t.setParked(&t.entries[at], true)
	}
}
