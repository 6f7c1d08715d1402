package poolindex

import "penstock/core/kv"

// PrefixIndex is the index which effects change; *prefix.Index implements it.
type PrefixIndex interface {
	// AddToPool returns how many of the blocks have a place in the index. labels are as in Effect.
	AddToPool(p kv.PoolID, seqs []kv.SeqHash, labels []kv.MoELabel) int
	RemoveFromPool(p kv.PoolID, seqs []kv.SeqHash)
	SetAccess(p kv.PoolID, workers []kv.Worker)
	DropPool(p kv.PoolID)
}

// ApplyEffects applies effects of t to x, and parks the blocks for which x has no place.
func (t *Table) ApplyEffects(x PrefixIndex, effects []Effect) {
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case Place:
			t.placeBlocks(x, e)
		case Displace:
			x.RemoveFromPool(e.Pool, e.Seqs)
		case SetAccess:
			x.SetAccess(e.Pool, e.Access)
		case DropPool:
			x.DropPool(e.Pool)
		}
	}
}

func (t *Table) placeBlocks(x PrefixIndex, e *Effect) {
	if x.AddToPool(e.Pool, e.Seqs, e.Labels) == len(e.Seqs) {
		return
	}
	for i := range e.Seqs {
		labels := e.Labels
		if labels != nil {
			labels = labels[i : i+1]
		}
		if x.AddToPool(e.Pool, e.Seqs[i:i+1], labels) == 0 {
			t.parkBlock(e.Pool, e.Seqs[i])
		}
	}
}

// parkBlock records that a block waits for its place in the prefix index.
func (t *Table) parkBlock(id kv.PoolID, seq kv.SeqHash) {
	pool, ok := t.byID[id]
	if !ok {
		return
	}
	if at := t.findEntry(pool, seq); at != noEntry && t.entries[at].state == kv.Pooled && !t.entries[at].suspect {
		t.setParked(&t.entries[at], true)
	}
}
