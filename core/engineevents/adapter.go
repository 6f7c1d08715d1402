package engineevents

import (
	"penstock/core/kv"
)

// ArrivalMark returns a point in the order of arrivals: everything which is recorded later has a larger
// arrival number.
func (t *Table) ArrivalMark() uint64 {
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
	t.beginCall(out)
	t.dropAdapter(lora, mark)
	return t.finishCall()
}

func (t *Table) dropAdapter(lora string, mark uint64) {
	t.dropAdapterRequests(lora, mark)
	t.orphans.dropAdapterRuns(t, lora, mark)
	t.inferred.dropAdapterGuesses(t, lora, mark)
	var old []kv.EngineHash
	if t.pagesPerBlock > 1 {
		old = t.pages.namesUnderAdapter(t, lora, mark)
	} else {
		old = t.blocks.namesUnderAdapter(t, lora, mark)
	}
	t.removeAllCopies(old)
}

// dropAdapterRequests drops the requests to an adapter which were sent before mark: they resolve no engine
// hashes any more.
func (t *Table) dropAdapterRequests(lora string, mark uint64) {
	q := &t.requests
	for i := len(q.list) - 1; i >= 0; i-- {
		if p := q.list[i]; p.salt.LoRA == lora && p.sentArrival < mark {
			q.dropRequest(i)
		}
	}
	q.changes++
}

// adapterRoots holds the first blocks of the sequences under adapters, for a table with ReloadForgets. The
// engine hashes blocks by the load of their adapter: if it stores the same block under another hash, the
// adapter was loaded again.
type adapterRoots struct {
	byHash map[kv.EngineHash]adapterRoot
	hashes map[rootKey]kv.EngineHash
}

type adapterRoot struct {
	key      rootKey
	storedAt uint64 // when it was stored, as an arrival number
}

// rootKey identifies the content of the first block of a sequence.
type rootKey struct {
	salt   kv.Salt
	digest uint64 // of the tokens
}

func newRootKey(salt kv.Salt, tokens []kv.Token) rootKey {
	key := rootKey{salt: salt}
	for _, token := range tokens {
		key.digest = mixDigest(key.digest, token)
	}
	return key
}

// recordRoot records that the engine stores an unknown block at the start of a sequence. It forgets what is
// known of an earlier load of the adapter.
func (t *Table) recordRoot(name kv.EngineHash, salt kv.Salt, tokens []kv.Token) {
	if !t.cfg.ReloadForgets || salt.LoRA == "" {
		return
	}
	key := newRootKey(salt, tokens)
	if _, known := t.roots.hashes[key]; known {
		t.dropAdapter(salt.LoRA, t.ArrivalMark())
	}
	if t.roots.byHash == nil {
		t.roots = adapterRoots{make(map[kv.EngineHash]adapterRoot), make(map[rootKey]kv.EngineHash)}
	}
	t.roots.byHash[name], t.roots.hashes[key] = adapterRoot{key, t.orphans.arrivals}, name
}

// removeRoot forgets a block which has no copies left.
func (r *adapterRoots) removeRoot(name kv.EngineHash) {
	if at, known := r.byHash[name]; known {
		delete(r.byHash, name)
		delete(r.hashes, at.key)
	}
}

// isUnderAdapter reports whether a salt is of an adapter.
func (s *saltTable) isUnderAdapter(id uint16, lora string) bool {
	return id != opaqueSalt && s.entries[id].salt.LoRA == lora
}

// namesUnderAdapter returns the engine hashes of the blocks under an adapter whose sequences started before
// mark, parents first.
func (x *blockMap) namesUnderAdapter(t *Table, lora string, mark uint64) (old []kv.EngineHash) {
	young := make(map[kv.SeqHash]bool)
	for _, id := range x.idsByDepth() {
		b, name := x.entries.at(id), *x.hashes.at(id)
		switch {
		case !t.salts.isUnderAdapter(b.salt, lora):
		case t.roots.byHash[name].storedAt >= mark, b.depth > 0 && young[b.prefix]:
			young[b.seq()] = true
		default:
			old = append(old, name)
		}
	}
	return old
}

// namesUnderAdapter returns the engine hashes of the pages under an adapter whose sequences started before
// mark, parents first.
func (x *pageTree) namesUnderAdapter(t *Table, lora string, mark uint64) (old []kv.EngineHash) {
	var open []uint32
	for id := uint32(1); id <= x.maxID; id++ {
		p := x.entries.at(id)
		if p.live && p.parent == 0 && t.salts.isUnderAdapter(p.salt, lora) && t.roots.byHash[*x.hashes.at(id)].storedAt < mark {
			open = append(open, id)
		}
	}
	for len(open) > 0 {
		id := open[len(open)-1]
		open = open[:len(open)-1]
		old = append(old, *x.hashes.at(id))
		for child := x.entries.at(id).firstChild; child != 0; child = x.entries.at(child).nextSibling {
			open = append(open, child)
		}
	}
	return old
}

// dropAdapterRuns drops the runs of an adapter which arrived before mark.
func (o *orphanSet) dropAdapterRuns(t *Table, lora string, mark uint64) {
	for r := o.oldest; r != nil && r.arrival < mark; r = r.newer {
		if salt, _ := t.eventSalt(&r.event); salt.LoRA == lora {
			t.inferred.dropGuesses(t, r.guessed)
			o.unlinkRun(r)
		}
	}
}

// dropAdapterGuesses drops the guesses of an adapter which were last used before mark. Resolved prefixes go
// with the blocks which follow them.
func (n *inferredSet) dropAdapterGuesses(t *Table, lora string, mark uint64) {
	var old []*inferredBlock
	for at := n.oldest; at != nil; at = at.newer {
		if at.lora == lora && at.lastUsed < mark {
			old = append(old, at)
		}
	}
	for _, at := range old {
		if n.bySeq[at.seq] == at {
			n.dropBlock(t, at)
		}
	}
}
