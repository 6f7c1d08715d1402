package enginefeed

import (
	"slices"

	"penstock/core/kv"
)

// believe notes that the engine has what waits as an orphan and is the continuation of a prompt: its blocks are there,
// whatever their parent's name is.
func (t *Table) believe(p *sent, r *run) {
	if r.told != nil {
		return
	}
	n := t.fits(p, r, p.cached)
	if n == 0 {
		return
	}
	first, end := p.cached/t.cfg.BlockSize, (p.cached+n)/t.cfg.BlockSize
	t.inferred.guess(t, p, end)
	r.told = slices.Clone(p.chain[first:end])
}

// fits returns how many tokens of p, from a place on, are those of a run; 0 if they differ, or less than a block
// of p is known there.
func (t *Table) fits(p *sent, r *run, from int) int {
	size := t.cfg.EngineBlock
	if from < size || from%size != 0 || from+size > len(p.view) || !t.fitsSalt(p, &r.event) {
		return 0
	}
	tokens := r.event.Tokens
	n := min(len(tokens), len(p.view)-from)
	if !slices.Equal(tokens[:n], p.view[from:from+n]) {
		return 0
	}
	if len(p.media) > 0 && t.cfg.Pads == PadsNative {
		for i := range n / size {
			if !t.fitsMedia(p, &r.event, i, from+i*size) {
				return 0
			}
		}
	}
	return n
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

// covers reports whether a run, and those behind it, are what the engine stored for p from a place on, up to the end
// of its prompt.
func (t *Table) covers(p *sent, r *run, from int) bool {
	size := t.cfg.EngineBlock
	for {
		if t.fits(p, r, from) == 0 {
			return false
		}
		from += len(r.event.Tokens)
		if from >= p.prompt/size*size {
			return true
		}
		next := (*run)(nil)
		for _, behind := range t.orphans.byParent[r.event.Hashes[len(r.event.Hashes)-1]] {
			if t.fits(p, behind, from) > 0 {
				next = behind
				break
			}
		}
		if next == nil {
			return false
		}
		r = next
	}
}

// resolve finds the name of the block at the end of p's cached tokens, if there is no doubt: what is stored for p came
// after it was sent, behind one name only, and is nothing that was stored for another prompt.
func (t *Table) resolve(p *sent) {
	var own *run
	for r := t.orphans.last; r != nil && r.arrival > p.began; r = r.older {
		if !t.covers(p, r, p.cached) {
			continue
		}
		if own != nil && own.event.Parent != r.event.Parent {
			t.stats.Doubtful++
			return
		}
		own = r
	}
	if own == nil {
		return
	}
	for _, other := range t.requests.list {
		if other != p && other.began < own.arrival && t.explains(other, p, own) {
			return
		}
	}
	if name, end, ok := t.root(p, own); ok {
		t.plant(p, name, end)
	}
}

// explains reports whether a run can be of another prompt, behind other tokens than those before it in p.
func (t *Table) explains(other, p *sent, r *run) bool {
	if other.cached != unreported {
		return t.fits(other, r, other.cached) > 0 && !(other.cached == p.cached && other.begins(p, p.cached))
	}
	for at := t.cfg.EngineBlock; at < len(other.view); at += t.cfg.EngineBlock {
		if t.fits(other, r, at) > 0 && !(at == p.cached && other.begins(p, at)) {
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
		if end -= before; end <= 0 || t.fits(p, at.run, end) < before {
			return 0, 0, false
		}
		name = at.run.event.Parent
	}
}

// plant makes a stem of the beginning of p: its block that ends at end has a name. What waits for that is stored.
func (t *Table) plant(p *sent, name kv.EngineHash, end int) {
	_, doubtful := t.doubtful[name]
	path := (end - 1) / t.cfg.BlockSize // blocks of ours before the one with the name
	n := &t.inferred
	switch {
	case end <= 0 || doubtful || t.useless || t.find(name) != 0 || n.stems[name] != nil:
		return
	case n.held+path > maxStemBlocks || t.blocks.n+t.pieces.n+t.per+1 > t.cfg.MaxBlocks:
		return
	case len(p.salt.LoRA) > maxSalt || len(p.salt.Namespace) > maxSalt, p.salt.Namespace != "" && !t.veil.told:
		return
	case p.salt.Namespace == "" && t.veil.hides(&Event{Tokens: p.view}, t.cfg.EngineBlock):
		return
	}
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
		n.hold(t, p.block(i), p.chain[i], false)
	}
	if t.per > 1 {
		t.plantPieces(p, s, name, end, salt)
	} else {
		b := p.block(path)
		b.salt = salt
		t.blocks.ref(t, t.blocks.put(t, name, b), kv.TierDevice, p.chain[path])
	}
	t.salts.settle(salt)
	p.named = true
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
	for _, name := range slices.Backward(names) {
		for tier := range kv.Tier(tiers) {
			for t.removeFrom(name, tier) {
			}
		}
	}
}
