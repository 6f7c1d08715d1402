package enginefeed

import (
	"fmt"

	"penstock/core/kv"
)

// ArrivalMark returns a point in the order of arrivals: everything which is recorded later has a larger
// arrival number.
func (t *Table) Mark() uint64 {
	t.orphans.arrivals++
	return t.orphans.arrivals
}

// ForgetAdapter drops everything recorded under an adapter, with any salt, before mark, and appends the
// changes to out. It is called when the engine unloaded the adapter, because the engine finds none of those
// blocks after it loads the adapter again. A block is as old as the first block of its sequence. Without
// Config.ReloadForgets it does nothing.
func (t *Table) ForgetAdapter(lora string, mark uint64, out []kv.Event) []kv.Event {
	if !t.cfg.ReloadForgets || lora == "" {
		return out
	}
	t.begin(out)
	t.forgetAdapter(lora, mark)
	return t.done()
}

func (t *Table) forgetAdapter(lora string, mark uint64) {
	t.forgetSent(lora, mark)
	t.orphans.forgetAdapter(t, lora, mark)
	t.inferred.forgetAdapter(t, lora, mark)
	var old []kv.EngineHash
	if t.per > 1 {
		old = t.pieces.ofAdapter(t, lora, mark)
	} else {
		old = t.blocks.ofAdapter(t, lora, mark)
	}
	t.removeAll(old)
}

// dropAdapterRequests drops the requests to an adapter which were sent before mark: they resolve no engine
// hashes any more.
func (t *Table) forgetSent(lora string, mark uint64) {
	q := &t.requests
	for i := len(q.list) - 1; i >= 0; i-- {
		if p := q.list[i]; p.salt.LoRA == lora && p.began < mark {
			q.drop(i)
		}
	}
	q.changes++
}

// adapterRoots holds the first blocks of the sequences under adapters, for a table with ReloadForgets. The
// engine hashes blocks by the load of their adapter: if it stores the same block under another hash, the
// adapter was loaded again.
type roots struct {
	byName map[kv.EngineHash]root
	names  map[rootKey]kv.EngineHash
}

type root struct {
	key rootKey
	at  uint64 // when it was stored, as an arrival number
}

// rootKey identifies the content of the first block of a sequence.
type rootKey struct {
	salt   kv.Salt
	digest uint64 // of the tokens
}

func rootKeyOf(salt kv.Salt, tokens []kv.Token) rootKey {
	key := rootKey{salt: salt}
	for _, token := range tokens {
		key.digest = further(key.digest, token)
	}
	return key
}

// recordRoot records that the engine stores an unknown block at the start of a sequence. It forgets what is
// known of an earlier load of the adapter.
func (t *Table) noteRoot(name kv.EngineHash, salt kv.Salt, tokens []kv.Token) {
	if !t.cfg.ReloadForgets || salt.LoRA == "" {
		return
	}
	key := rootKeyOf(salt, tokens)
	if _, known := t.roots.names[key]; known {
		t.forgetAdapter(salt.LoRA, t.Mark())
	}
	if t.roots.byName == nil {
		t.roots = roots{make(map[kv.EngineHash]root), make(map[rootKey]kv.EngineHash)}
	}
	t.roots.byName[name], t.roots.names[key] = root{key, t.orphans.arrivals}, name
}

// removeRoot forgets a block which has no copies left.
func (r *roots) drop(name kv.EngineHash) {
	if at, known := r.byName[name]; known {
		delete(r.byName, name)
		delete(r.names, at.key)
	}
}

// check verifies that both maps agree with each other and with the table.
func (r *roots) check(t *Table) error {
	for name, at := range r.byName {
		if t.find(name) == 0 || r.names[at.key] != name {
			return fmt.Errorf("block %x begins a sequence of adapter %q, and is not known", name, at.key.salt.LoRA)
		}
	}
	if len(r.byName) != len(r.names) {
		return fmt.Errorf("%d blocks begin %d sequences of adapters", len(r.byName), len(r.names))
	}
	return nil
}

// isUnderAdapter reports whether a salt is of an adapter.
func (s *salts) under(id uint16, lora string) bool {
	return id != opaque && s.uses[id].salt.LoRA == lora
}

// namesUnderAdapter returns the engine hashes of the blocks under an adapter whose sequences started before
// mark, parents first.
func (x *blocks) ofAdapter(t *Table, lora string, mark uint64) (old []kv.EngineHash) {
	young := make(map[kv.SeqHash]bool)
	for _, id := range x.byDepth() {
		b, name := x.all.at(id), *x.names.at(id)
		switch {
		case !t.salts.under(b.salt, lora):
		case t.roots.byName[name].at >= mark, b.depth > 0 && young[b.prev]:
			young[b.seq()] = true
		default:
			old = append(old, name)
		}
	}
	return old
}

// namesUnderAdapter returns the engine hashes of the pages under an adapter whose sequences started before
// mark, parents first.
func (x *pieces) ofAdapter(t *Table, lora string, mark uint64) (old []kv.EngineHash) {
	var open []uint32
	for id := uint32(1); id <= x.top; id++ {
		p := x.all.at(id)
		if p.live && p.parent == 0 && t.salts.under(p.salt, lora) && t.roots.byName[*x.names.at(id)].at < mark {
			open = append(open, id)
		}
	}
	for len(open) > 0 {
		id := open[len(open)-1]
		open = open[:len(open)-1]
		old = append(old, *x.names.at(id))
		for child := x.all.at(id).child; child != 0; child = x.all.at(child).next {
			open = append(open, child)
		}
	}
	return old
}

// dropAdapterRuns drops the runs of an adapter which arrived before mark.
func (o *orphans) forgetAdapter(t *Table, lora string, mark uint64) {
	for r := o.first; r != nil && r.arrival < mark; r = r.newer {
		if salt, _ := t.saltOf(&r.event); salt.LoRA == lora {
			t.inferred.dropGuesses(t, r.told)
			o.unlink(r)
		}
	}
}

// dropAdapterGuesses drops the guesses of an adapter which were last used before mark. Resolved prefixes go
// with the blocks which follow them.
func (n *inferred) forgetAdapter(t *Table, lora string, mark uint64) {
	var old []*node
	for at := n.oldest; at != nil; at = at.newer {
		if at.lora == lora && at.used < mark {
			old = append(old, at)
		}
	}
	for _, at := range old {
		if n.nodes[at.seq] == at {
			n.drop(t, at)
		}
	}
}
