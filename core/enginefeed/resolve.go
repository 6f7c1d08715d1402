package enginefeed

import (
	"slices"

	"penstock/core/kv"
)

// guessContinuation records that the run, which waits as an orphan, continues prompt p: its blocks are
// cached, whatever the hash of their parent is.
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

// matchRun returns how many tokens of p from an offset on equal those of the run's leading blocks. It
// returns 0 if less than one block is known to match. all says that no block of the run differs.
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

// matchesSalt reports whether non-first blocks can belong to a prompt, by their adapter and salt. Some
// engines send a prompt's salt with its first block only.
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

// matchesMedia reports whether block i of e shows the media which a prompt shows at that offset.
func (t *Table) fitsMedia(p *sent, e *Event, i, from int) bool {
	media, named := t.mediaOf(e, i, p.salt.LoRA)
	inside := t.within(p.media, from, from+t.cfg.EngineBlock)
	return named && slices.EqualFunc(media, inside, func(a, b kv.Media) bool { return a.Hash == b.Hash })
}

// coversRequest reports whether a run, with the runs which follow its blocks, has everything which the
// engine stored for p from an offset on. The last generated token was not computed on.
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

// resolveParent finds the engine hash of the block which ends p's cached tokens, if it is unambiguous: the
// blocks stored for p arrived after p was sent, they follow one hash only, and they cannot have been stored
// for another prompt.
func (t *Table) resolve(p *sent) {
	// If everything which can be found was found, the following blocks may have been cached too, and then
	// nothing was stored.
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
	if own == nil || own.live == 0 { // the blocks before it may be gone too
		return
	}
	if name, end, ok := t.root(p, own); ok && t.plantable(p, name, end) && !t.explained(p, own) {
		t.plant(p, name, end)
	}
}

// recordRival reports whether a run can belong to a prompt other than p. It records that prompt: p need not
// be examined again until the other prompt is dropped or the engine has reported its cached tokens.
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

// hasRival reports whether the recorded rival of p still explains what was stored for p.
func (t *Table) rivalled(p *sent) bool {
	if p.rival == 0 {
		return false
	}
	other := t.requests.find(p.rival)
	return other != nil && other.cached == p.rivalCached
}

// recordKnownLength updates, for each request which e continues after a known block, the length up to which
// its blocks are known.
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

// isBlockAt reports whether an engine block is the block of p which ends at token end.
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

// canExplain reports whether a run can belong to another prompt, after tokens which differ from those
// before it in p.
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

// sharesPrefix reports whether two prompts have the same first n tokens and the same media.
func (p *sent) begins(other *sent, n int) bool {
	return p.salt == other.salt && len(p.view) >= n && slices.Equal(p.view[:n], other.view[:n]) && slices.Equal(p.media, other.media)
}

// findRootHash returns the hash which the orphans before a run of p wait for, and the token of p at which
// that block ends.
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

// canAddPrefix reports whether the start of p can become a resolved prefix whose last block ends at end and
// has this hash.
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

// addPrefix makes a resolved prefix of the start of p, and stores the orphans which wait for its hash.
func (t *Table) plant(p *sent, name kv.EngineHash, end int) {
	path := (end - 1) / t.cfg.BlockSize // Penstock blocks before the one which the hash ends
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

// addPrefixPages adds the engine pages of the Penstock block which the resolved page is in, and a stub page
// for everything before them.
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

// forgetDescendants drops an engine block and all blocks which follow it, on all tiers.
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

// removeAllCopies removes all copies of the blocks, the last of names first.
func (t *Table) removeAll(names []kv.EngineHash) {
	for _, name := range slices.Backward(names) {
		for tier := range kv.Tier(tiers) {
			for t.removeFrom(name, tier) {
			}
		}
	}
}
