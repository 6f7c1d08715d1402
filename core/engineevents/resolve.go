package engineevents

import (
	"slices"

	"penstock/core/kv"
)

// guessContinuation records that the run, which waits as an orphan, continues prompt p: its blocks are
// cached, whatever the hash of their parent is.
func (t *Table) guessContinuation(p *sentRequest, r *orphanRun) {
	if p.lastArrival > 0 && r.arrival > p.lastArrival {
		return
	}
	n, _ := t.matchRun(p, &r.event, p.cached)
	if n = min(n, r.liveBlocks*t.cfg.EngineBlockSize); n == 0 || p.salt.Namespace != "" && !t.saltedPrompts.reported {
		return
	}
	first, end := p.cached/t.cfg.BlockSize, (p.cached+n)/t.cfg.BlockSize
	t.inferred.guessPrefix(t, p, end)
	r.guessed = append(r.guessed, p.chain[first:end]...)
}

// matchRun returns how many tokens of p from an offset on equal the tokens of the run's leading blocks. It
// returns 0 if less than one block is known to match. all says that no block of the run differs.
func (t *Table) matchRun(p *sentRequest, e *Event, from int) (n int, all bool) {
	size := t.cfg.EngineBlockSize
	if from < size || from%size != 0 || from+size > len(p.view) || !t.matchesSalt(p, e) {
		return 0, false
	}
	for n+size <= len(e.Tokens) && from+n < len(p.view) {
		known := min(size, len(p.view)-from-n)
		if !slices.Equal(e.Tokens[n:n+known], p.view[from+n:from+n+known]) {
			return n, false
		}
		if len(p.media) > 0 && t.cfg.Pads == PadsNative && !t.matchesMedia(p, e, n/size, from+n) {
			return n, false
		}
		n += known
	}
	return n, true
}

// matchesSalt reports whether non-first blocks can belong to a prompt, by their adapter and salt. Some
// engines send a prompt's salt with its first block only.
func (t *Table) matchesSalt(p *sentRequest, e *Event) bool {
	salt, named := t.eventSalt(e)
	switch {
	case !named || salt.LoRA != p.salt.LoRA:
		return false
	case salt.Namespace == "" && len(e.Extra) > 0:
		return true
	}
	return salt.Namespace == p.salt.Namespace
}

// matchesMedia reports whether block i of e shows the media which a prompt shows at that offset.
func (t *Table) matchesMedia(p *sentRequest, e *Event, i, from int) bool {
	media, named := t.blockMedia(e, i, p.salt.LoRA)
	inside := t.mediaInRange(p.media, from, from+t.cfg.EngineBlockSize)
	return named && slices.EqualFunc(media, inside, func(a, b kv.Media) bool { return a.Hash == b.Hash })
}

// coversRequest reports whether a run, with the runs which follow its blocks, has everything which the
// engine stored for p from an offset on. The last generated token was not computed on.
func (t *Table) coversRequest(p *sentRequest, r *orphanRun, from int) bool {
	size := t.cfg.EngineBlockSize
	n, _ := t.matchRun(p, &r.event, from)
	if n == 0 {
		return false
	}
	if from += n; from >= (len(p.view)-1)/size*size {
		return true
	}
	for _, next := range t.orphans.byParent[r.event.Hashes[(n-1)/size]] {
		if t.coversRequest(p, next, from) {
			return true
		}
	}
	return false
}

// resolveParent finds the engine hash of the block which ends p's cached tokens, if it is unambiguous: the
// blocks stored for p arrived after p was sent, they follow one hash only, and they cannot have been stored
// for another prompt.
func (t *Table) resolveParent(p *sentRequest) {
	// If everything which can be found was found, the following blocks may have been cached too, and then
	// nothing was stored.
	size := t.cfg.EngineBlockSize
	if p.sentArrival < t.orphans.lostArrival || !p.served || p.cached >= (p.promptLen-1)/size*size {
		return
	}
	var own *orphanRun
	for r := t.orphans.newest; r != nil && r.arrival > p.sentArrival; r = r.older {
		if r.arrival > p.lastArrival || !t.coversRequest(p, r, p.cached) {
			continue
		}
		if own != nil && own.event.Parent != r.event.Parent {
			if !p.ambiguous {
				p.ambiguous = true
				t.stats.Doubtful++
			}
			return
		}
		own = r
	}
	if own == nil || own.liveBlocks == 0 { // the blocks before it may be gone too
		return
	}
	if name, end, ok := t.findRootHash(p, own); ok && t.canAddPrefix(p, name, end) && !t.recordRival(p, own) {
		t.addPrefix(p, name, end)
	}
}

// recordRival reports whether a run can belong to a prompt other than p. It records that prompt: p need not
// be examined again until the other prompt is dropped or the engine has reported its cached tokens.
func (t *Table) recordRival(p *sentRequest, own *orphanRun) bool {
	for _, other := range t.requests.list {
		if other != p && other.sentArrival < own.arrival && t.canExplain(other, p, own) {
			p.rival, p.rivalCached = other.number, other.cached
			return true
		}
	}
	p.rival = 0
	return false
}

// hasRival reports whether the recorded rival of p still explains what was stored for p.
func (t *Table) hasRival(p *sentRequest) bool {
	if p.rival == 0 {
		return false
	}
	other := t.requests.findRequest(p.rival)
	return other != nil && other.cached == p.rivalCached
}

// recordKnownLength updates, for each request which e continues after a known block, the length up to which
// its blocks are known.
func (t *Table) recordKnownLength(e *Event, id uint32) {
	var depth uint32
	if t.pagesPerBlock > 1 {
		depth = t.pages.entries.at(id).depth
	} else {
		depth = t.blocks.entries.at(id).depth
	}
	end := (int(depth) + 1) * t.cfg.EngineBlockSize
	for _, p := range t.requests.list {
		if n, _ := t.matchRun(p, e, end); n > 0 && end+n > p.knownTokens && t.isBlockAt(p, id, end) {
			p.knownTokens = end + n
		}
	}
}

// isBlockAt reports whether an engine block is the block of p which ends at token end.
func (t *Table) isBlockAt(p *sentRequest, id uint32, end int) bool {
	size := t.cfg.EngineBlockSize
	if t.pagesPerBlock == 1 {
		at := end/size - 1
		return at < len(p.chain) && t.blocks.entries.at(id).seq() == p.chain[at]
	}
	x := &t.pages
	for ; end > 0; end -= size {
		b := x.entries.at(id)
		if b.endsBlock(t) {
			return b.seq == p.chain[end/t.cfg.BlockSize-1]
		}
		if !slices.Equal(x.tokenIDs[int(id)*size:][:size], p.view[end-size:end]) {
			return false
		}
		id = b.parent
	}
	return true
}

// canExplain reports whether a run can belong to another prompt, after tokens which differ from those
// before it in p.
func (t *Table) canExplain(other, p *sentRequest, r *orphanRun) bool {
	if other.cached != cachedUnreported {
		_, all := t.matchRun(other, &r.event, other.cached)
		return all && !(other.cached == p.cached && other.sharesPrefix(p, p.cached))
	}
	for at := t.cfg.EngineBlockSize; at < len(other.view); at += t.cfg.EngineBlockSize {
		if _, all := t.matchRun(other, &r.event, at); all && !(at == p.cached && other.sharesPrefix(p, at)) {
			return true
		}
	}
	return false
}

// sharesPrefix reports whether two prompts have the same first n tokens and the same media.
func (p *sentRequest) sharesPrefix(other *sentRequest, n int) bool {
	return p.salt == other.salt && len(p.view) >= n && slices.Equal(p.view[:n], other.view[:n]) && slices.Equal(p.media, other.media)
}

// findRootHash returns the hash which the orphans before a run of p wait for, and the token of p at which
// that block ends.
func (t *Table) findRootHash(p *sentRequest, r *orphanRun) (name kv.EngineHash, end int, ok bool) {
	name, end = r.event.Parent, p.cached
	for {
		at, waits := t.orphans.byHash[name]
		if !waits {
			return name, end, true
		}
		before := (at.index + 1) * t.cfg.EngineBlockSize
		if end -= before; end <= 0 {
			return 0, 0, false
		}
		if n, _ := t.matchRun(p, &at.run.event, end); n < before {
			return 0, 0, false
		}
		name = at.run.event.Parent
	}
}

// canAddPrefix reports whether the start of p can become a resolved prefix whose last block ends at end and
// has this hash.
func (t *Table) canAddPrefix(p *sentRequest, name kv.EngineHash, end int) bool {
	_, doubtful := t.ambiguous[name]
	path := (end - 1) / t.cfg.BlockSize
	n := &t.inferred
	switch {
	case end <= 0 || doubtful || t.unusable || t.findBlock(name) != 0 || n.resolved[name] != nil:
		return false
	case n.resolvedBlocks+path > maxResolvedBlocks || t.blocks.count+t.pages.count+t.pagesPerBlock+1 > t.cfg.MaxBlocks:
		return false
	case len(p.salt.LoRA) > maxSaltLen || len(p.salt.Namespace) > maxSaltLen, p.salt.Namespace != "" && !t.saltedPrompts.reported, p.salt.LoRA != "" && !t.adapterPrompts.reported:
		return false
	}
	return p.salt.Namespace != "" || !t.suppressEvent(&Event{Tokens: p.view}, 0)
}

// addPrefix makes a resolved prefix of the start of p, and stores the orphans which wait for its hash.
func (t *Table) addPrefix(p *sentRequest, name kv.EngineHash, end int) {
	path := (end - 1) / t.cfg.BlockSize // Penstock blocks before the one which the hash ends
	n := &t.inferred
	salt, ok := t.salts.assignID(p.salt)
	if !ok {
		return
	}
	if n.resolved == nil {
		n.resolved = make(map[kv.EngineHash]*resolvedPrefix)
	}
	s := &resolvedPrefix{path: slices.Clone(p.chain[:path])}
	n.resolved[name] = s
	n.resolvedBlocks += path
	for i := range path {
		n.inferBlock(t, p, i, false)
	}
	if t.pagesPerBlock > 1 {
		t.addPrefixPages(p, s, name, end, salt)
	} else {
		b := p.blockAt(path)
		b.salt = salt
		t.blocks.addCopy(t, t.blocks.insertBlock(t, name, b), kv.TierDevice, p.chain[path])
	}
	t.salts.dropIfUnused(salt)
	p.knownTokens = end
	t.stats.Resolved++
	t.adoptOrphans([]kv.EngineHash{name})
}

// addPrefixPages adds the engine pages of the Penstock block which the resolved page is in, and a stub page
// for everything before them.
func (t *Table) addPrefixPages(p *sentRequest, s *resolvedPrefix, name kv.EngineHash, end int, salt uint16) {
	size, x, path := t.cfg.EngineBlockSize, &t.pages, len(s.path)
	parent := uint32(0)
	if path > 0 {
		parent = x.insertStub(t, t.inferred.newAlias(t), uint32(path*t.pagesPerBlock-1), salt, p.blocks[path-1], p.chain[path-1])
	}
	for i := path * t.pagesPerBlock; i < end/size; i++ {
		next := name
		if i < end/size-1 {
			next = t.inferred.newAlias(t)
			s.aliases = append(s.aliases, next)
		}
		var media []kv.Media
		if t.cfg.Pads == PadsNative {
			media = t.mediaInRange(p.media, i*size, (i+1)*size)
		}
		parent = x.insertPage(t, next, parent, uint32(i), salt, p.view[i*size:(i+1)*size], media)
		x.addCopy(t, parent, kv.TierDevice)
	}
}

// forgetDescendants drops an engine block and all blocks which follow it, on all tiers.
func (t *Table) forgetDescendants(name kv.EngineHash) {
	id := t.findBlock(name)
	if id == 0 {
		return
	}
	names := []kv.EngineHash{name}
	if t.pagesPerBlock > 1 {
		for open := []uint32{id}; len(open) > 0; {
			child := t.pages.entries.at(open[len(open)-1]).firstChild
			open = open[:len(open)-1]
			for ; child != 0; child = t.pages.entries.at(child).nextSibling {
				names, open = append(names, *t.pages.hashes.at(child)), append(open, child)
			}
		}
	} else {
		x := &t.blocks
		behind := map[kv.SeqHash]bool{x.entries.at(id).seq(): true}
		for _, id := range x.idsByDepth() {
			if b := x.entries.at(id); b.depth > 0 && behind[b.prefix] {
				behind[b.seq()] = true
				names = append(names, *x.hashes.at(id))
			}
		}
	}
	t.removeAllCopies(names)
}

// removeAllCopies removes all copies of the blocks, the last of names first.
func (t *Table) removeAllCopies(names []kv.EngineHash) {
	for _, name := range slices.Backward(names) {
		for tier := range kv.Tier(tierCount) {
			for t.removeCopy(name, tier) {
			}
		}
	}
}

// opaqueSalt is the salt id of blocks which cannot be hashed. They are remembered so that the blocks which
// follow them are not taken for orphans. They are never announced.
const opaqueSalt = 1<<16 - 1

// saltTable assigns ids to the pairs of adapter and namespace in use by blocks.
type saltTable struct {
	blockSize int // tokens in a Penstock block
	entries   []saltUse
	free      []uint16
	ids       map[kv.Salt]uint16
}

type saltUse struct {
	salt   kv.Salt
	hasher kv.Hasher
	blocks int
}

// assignID returns the id of a salt. ok is false if there are too many salts. The caller must call
// dropIfUnused after it.
func (s *saltTable) assignID(salt kv.Salt) (id uint16, ok bool) {
	if id, ok := s.ids[salt]; ok {
		return id, true
	}
	h, err := kv.NewHasher(s.blockSize, salt)
	if err != nil {
		return 0, false // the size was checked before
	}
	use := saltUse{salt: salt, hasher: h}
	switch k := len(s.free); {
	case k > 0:
		id, s.free = s.free[k-1], s.free[:k-1]
		s.entries[id] = use
	case len(s.entries) == opaqueSalt:
		return 0, false
	default:
		id = uint16(len(s.entries))
		s.entries = append(s.entries, use)
	}
	if s.ids == nil {
		s.ids = make(map[kv.Salt]uint16)
	}
	s.ids[salt] = id
	return id, true
}

// retain counts one more block under a salt; release counts one less.
func (s *saltTable) retain(id uint16) {
	if id != opaqueSalt {
		s.entries[id].blocks++
	}
}

func (s *saltTable) release(id uint16) {
	if id != opaqueSalt {
		s.entries[id].blocks--
		s.dropIfUnused(id)
	}
}

// dropIfUnused drops a salt without blocks.
func (s *saltTable) dropIfUnused(id uint16) {
	if id == opaqueSalt || s.entries[id].blocks > 0 {
		return
	}
	delete(s.ids, s.entries[id].salt)
	s.entries[id] = saltUse{}
	s.free = append(s.free, id)
}

func (s *saltTable) clearSalts() { *s = saltTable{blockSize: s.blockSize} }

func (s *saltTable) sizeBytes() int { return len(s.entries) * 160 }
