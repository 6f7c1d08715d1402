package enginefeed

import (
	"slices"

	"penstock/core/kv"
)

// believe notes that the engine has what waits as an orphan and is the continuation of a prompt: its blocks are there,
// whatever their parent's name is.
func (t *Table) believe(p *sent, r *run) {
	if p.closed > 0 && r.arrival > p.closed {
		return
	}
	n, _ := t.fits(p, &r.event, p.cached)
	if n = min(n, r.live*t.cfg.EngineBlock); n == 0 || p.salt.Namespace != "" && !t.veil.told {
		return
	}
	first, end := p.cached/t.cfg.BlockSize, (p.cached+n)/t.cfg.BlockSize
	t.inferred.guess(t, p, end)
	r.told = append(r.told, p.chain[first:end]...)
}

// fits returns how many tokens of p, from a place on, are those of a run's first blocks; 0 if less than a block is known to be.
// all says that no block of the run differs.
func (t *Table) fits(p *sent, e *Event, from int) (n int, all bool) {
	size := t.cfg.EngineBlock
	if from < size || from%size != 0 || from+size > len(p.view) || !t.fitsSalt(p, e) {
		return 0, false
	}
	for n+size <= len(e.Tokens) && from+n < len(p.view) {
		known := min(size, len(p.view)-from-n)
		if !slices.Equal(e.Tokens[n:n+known], p.view[from+n:from+n+known]) {
			return n, false
		}
		if len(p.media) > 0 && t.cfg.Pads == PadsNative && !t.fitsMedia(p, e, n/size, from+n) {
			return n, false
		}
		n += known
	}
	return n, true
}

// fitsSalt reports whether blocks behind others can be of a prompt, by what they say of adapter and salt. Some engines tell a
// prompt's salt with its first block only.
func (t *Table) fitsSalt(p *sent, e *Event) bool {
	salt, named := t.saltOf(e)
	switch {
	case !named || salt.LoRA != p.salt.LoRA:
		return false
	case salt.Namespace == "" && len(e.Extra) > 0:
		return true
	}
	return salt.Namespace == p.salt.Namespace
}

// fitsMedia reports whether block i of e shows what a prompt shows at a place.
func (t *Table) fitsMedia(p *sent, e *Event, i, from int) bool {
	media, named := t.mediaOf(e, i, p.salt.LoRA)
	inside := t.within(p.media, from, from+t.cfg.EngineBlock)
	return named && slices.EqualFunc(media, inside, func(a, b kv.Media) bool { return a.Hash == b.Hash })
}

// covers reports whether a run, and those behind its blocks, have all that the engine stored for p from a place on. The last
// token of an answer was not computed on.
func (t *Table) covers(p *sent, r *run, from int) bool {
	size := t.cfg.EngineBlock
	n, _ := t.fits(p, &r.event, from)
	if n == 0 {
		return false
	}
	if from += n; from >= (len(p.view)-1)/size*size {
		return true
	}
	for _, next := range t.orphans.byParent[r.event.Hashes[(n-1)/size]] {
		if t.covers(p, next, from) {
			return true
		}
	}
	return false
}

// resolve finds the name of the block at the end of p's cached tokens, if there is no doubt: what is stored for p came
// after it was sent, behind one name only, and is nothing that was stored for another prompt.
func (t *Table) resolve(p *sent) {
	// Where all that can be found was found, what follows may have been there too, so that nothing was stored.
	size := t.cfg.EngineBlock
	if p.began < t.orphans.lost || !p.whole || p.cached >= (p.prompt-1)/size*size {
		return
	}
	var own *run
	for r := t.orphans.last; r != nil && r.arrival > p.began; r = r.older {
		if r.arrival > p.closed || !t.covers(p, r, p.cached) {
			continue
		}
		if own != nil && own.event.Parent != r.event.Parent {
			if !p.doubtful {
				p.doubtful = true
				t.stats.Doubtful++
			}
			return
		}
		own = r
	}
	if own == nil || own.live == 0 { // what was before it may be gone too
		return
	}
	if name, end, ok := t.root(p, own); ok && t.plantable(p, name, end) && !t.explained(p, own) {
		t.plant(p, name, end)
	}
}

// explained reports whether a run can be of another prompt than p. Which one is noted: until it has left, or the engine
// has said what of it was cached, p need not be looked at again.
func (t *Table) explained(p *sent, own *run) bool {
	for _, other := range t.requests.list {
		if other != p && other.began < own.arrival && t.explains(other, p, own) {
			p.rival, p.rivalCached = other.number, other.cached
			return true
		}
	}
	p.rival = 0
	return false
}

// rivalled reports whether the prompt that explained what was stored for p still does.
func (t *Table) rivalled(p *sent) bool {
	if p.rival == 0 {
		return false
	}
	other := t.requests.find(p.rival)
	return other != nil && other.cached == p.rivalCached
}

// located notes, of the requests of which e is a part behind a block that is known, up to where their blocks are known.
func (t *Table) located(e *Event, id uint32) {
	var depth uint32
	if t.per > 1 {
		depth = t.pieces.all.at(id).depth
	} else {
		depth = t.blocks.all.at(id).depth
	}
	end := (int(depth) + 1) * t.cfg.EngineBlock
	for _, p := range t.requests.list {
		if n, _ := t.fits(p, e, end); n > 0 && end+n > p.known && t.endsAt(p, id, end) {
			p.known = end + n
		}
	}
}

// endsAt reports whether an engine's block is the one of p at whose end so many tokens are.
func (t *Table) endsAt(p *sent, id uint32, end int) bool {
	size := t.cfg.EngineBlock
	if t.per == 1 {
		at := end/size - 1
		return at < len(p.chain) && t.blocks.all.at(id).seq() == p.chain[at]
	}
	x := &t.pieces
	for ; end > 0; end -= size {
		b := x.all.at(id)
		if b.ends(t) {
			return b.seq == p.chain[end/t.cfg.BlockSize-1]
		}
		if !slices.Equal(x.ids[int(id)*size:][:size], p.view[end-size:end]) {
			return false
		}
		id = b.parent
	}
	return true
}

// explains reports whether a run can be of another prompt, behind other tokens than those before it in p.
func (t *Table) explains(other, p *sent, r *run) bool {
	if other.cached != unreported {
		_, all := t.fits(other, &r.event, other.cached)
		return all && !(other.cached == p.cached && other.begins(p, p.cached))
	}
	for at := t.cfg.EngineBlock; at < len(other.view); at += t.cfg.EngineBlock {
		if _, all := t.fits(other, &r.event, at); all && !(at == p.cached && other.begins(p, at)) {
			return true
		}
	}
	return false
}

// begins reports whether two prompts have the same first tokens, and what they show.
func (p *sent) begins(other *sent, n int) bool {
	return p.salt == other.salt && len(p.view) >= n && slices.Equal(p.view[:n], other.view[:n]) && slices.Equal(p.media, other.media)
}

// root returns the name which the orphans before a run of p wait for, and where in p its block ends.
func (t *Table) root(p *sent, r *run) (name kv.EngineHash, end int, ok bool) {
	name, end = r.event.Parent, p.cached
	for {
		at, waits := t.orphans.at[name]
		if !waits {
			return name, end, true
		}
		before := (at.index + 1) * t.cfg.EngineBlock
		if end -= before; end <= 0 {
			return 0, 0, false
		}
		if n, _ := t.fits(p, &at.run.event, end); n < before {
			return 0, 0, false
		}
		name = at.run.event.Parent
	}
}

// plantable reports whether the beginning of p can be made a stem: its block that ends at end has a name.
func (t *Table) plantable(p *sent, name kv.EngineHash, end int) bool {
	_, doubtful := t.doubtful[name]
	path := (end - 1) / t.cfg.BlockSize
	n := &t.inferred
	switch {
	case end <= 0 || doubtful || t.useless || t.find(name) != 0 || n.stems[name] != nil:
		return false
	case n.held+path > maxStemBlocks || t.blocks.n+t.pieces.n+t.per+1 > t.cfg.MaxBlocks:
		return false
	case len(p.salt.LoRA) > maxSalt || len(p.salt.Namespace) > maxSalt, p.salt.Namespace != "" && !t.veil.told, p.salt.LoRA != "" && !t.adapters.told:
		return false
	}
	return p.salt.Namespace != "" || !t.veiled(&Event{Tokens: p.view}, 0)
}

// plant makes a stem of the beginning of p. What waits for the name is stored.
func (t *Table) plant(p *sent, name kv.EngineHash, end int) {
	path := (end - 1) / t.cfg.BlockSize // blocks of ours before the one with the name
	n := &t.inferred
	salt, ok := t.salts.of(p.salt)
	if !ok {
		return
	}
	if n.stems == nil {
		n.stems = make(map[kv.EngineHash]*stem)
	}
	s := &stem{path: slices.Clone(p.chain[:path])}
	n.stems[name] = s
	n.held += path
	for i := range path {
		n.hold(t, p, i, false)
	}
	if t.per > 1 {
		t.plantPieces(p, s, name, end, salt)
	} else {
		b := p.block(path)
		b.salt = salt
		t.blocks.ref(t, t.blocks.put(t, name, b), kv.TierDevice, p.chain[path])
	}
	t.salts.settle(salt)
	p.known = end
	t.stats.Resolved++
	t.adopt([]kv.EngineHash{name})
}

// plantPieces makes the engine's blocks of the block of ours that the named one is in, and the one before those, which
// stands for all before it.
func (t *Table) plantPieces(p *sent, s *stem, name kv.EngineHash, end int, salt uint16) {
	size, x, path := t.cfg.EngineBlock, &t.pieces, len(s.path)
	parent := uint32(0)
	if path > 0 {
		parent = x.stub(t, t.inferred.alias(t), uint32(path*t.per-1), salt, p.blocks[path-1], p.chain[path-1])
	}
	for i := path * t.per; i < end/size; i++ {
		next := name
		if i < end/size-1 {
			next = t.inferred.alias(t)
			s.aliases = append(s.aliases, next)
		}
		var media []kv.Media
		if t.cfg.Pads == PadsNative {
			media = t.within(p.media, i*size, (i+1)*size)
		}
		parent = x.put(t, next, parent, uint32(i), salt, p.view[i*size:(i+1)*size], media)
		x.ref(t, parent, kv.TierDevice)
	}
}

// forgetBehind forgets an engine's block and all behind it, on all tiers.
func (t *Table) forgetBehind(name kv.EngineHash) {
	id := t.find(name)
	if id == 0 {
		return
	}
	names := []kv.EngineHash{name}
	if t.per > 1 {
		for open := []uint32{id}; len(open) > 0; {
			child := t.pieces.all.at(open[len(open)-1]).child
			open = open[:len(open)-1]
			for ; child != 0; child = t.pieces.all.at(child).next {
				names, open = append(names, *t.pieces.names.at(child)), append(open, child)
			}
		}
	} else {
		x := &t.blocks
		behind := map[kv.SeqHash]bool{x.all.at(id).seq(): true}
		for _, id := range x.byDepth() {
			if b := x.all.at(id); b.depth > 0 && behind[b.prev] {
				behind[b.seq()] = true
				names = append(names, *x.names.at(id))
			}
		}
	}
	t.removeAll(names)
}

// removeAll takes all copies of blocks away, the last of names first.
func (t *Table) removeAll(names []kv.EngineHash) {
	for _, name := range slices.Backward(names) {
		for tier := range kv.Tier(tiers) {
			for t.removeFrom(name, tier) {
			}
		}
	}
}
