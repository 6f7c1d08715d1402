package engineevents

import (
	"strings"
	"unsafe"

	"penstock/core/kv"
)

// storeEvent stores the blocks of e which can be hashed.
func (t *Table) storeEvent(e *Event) {
	switch {
	case !isFullAttention(e.Spec):
		t.stats.OtherGroup += uint64(len(e.Hashes))
		return
	case t.rejectsGroup(e):
		return
	case t.unusable:
		t.stats.Ambiguous += uint64(len(e.Hashes))
		return
	case e.Bigrams || e.InvalidTokens:
		t.stats.Pairs += uint64(len(e.Hashes))
		return
	case len(e.Tokens) == 0:
		t.addTokenlessCopies(e)
		return
	}
	n := t.countFullBlocks(e)
	if n == 0 {
		return
	}
	if e.Group >= 0 {
		t.group = e.Group
	}
	s := storeOperation{t: t, e: e, tier: eventTier(e)}
	if !s.prepareStore(n) {
		return
	}
	made, stored := s.salt, 0
	for stored < n && s.storeBlock(stored) {
		stored++
	}
	t.salts.dropIfUnused(made)
	if e.Moves != nil {
		t.moveStored(e, stored)
	}
	t.adoptOrphans(e.Hashes[:stored])
}

// isFullAttention reports whether a kind of attention needs all blocks of a prefix, so that the engine has
// all of them or none. Other kinds drop blocks in the middle, and do not say which tokens the others belong
// to.
func isFullAttention(spec string) bool {
	switch spec {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// countFullBlocks returns how many leading blocks of e are full and of the expected size.
func (t *Table) countFullBlocks(e *Event) int {
	n, size := len(e.Hashes), e.BlockSize
	if n == 0 {
		return 0
	}
	if size == 0 {
		size = len(e.Tokens) / n
	}
	short := size*n - len(e.Tokens)
	switch {
	case size == 0, short < 0, short >= size, short > 0 && (e.Group >= 0 || e.Spec != ""), len(e.Extra) > 0 && len(e.Extra) != n:
		t.stats.Misaligned += uint64(n)
		return 0
	}
	t.seenSizes.recordSize(size, n, t.cfg.EngineBlockSize)
	switch {
	case size < t.cfg.EngineBlockSize && n == 1:
		t.stats.Partial++
		return 0
	case size != t.cfg.EngineBlockSize:
		t.stats.OtherBlockSize += uint64(n)
		return 0
	case short > 0:
		t.stats.Partial++
		return n - 1
	}
	return n
}

// addTokenlessCopies counts copies of known blocks which come without tokens.
func (t *Table) addTokenlessCopies(e *Event) {
	tier := eventTier(e)
	for _, name := range e.Hashes {
		id := t.findBlock(name)
		if id == 0 {
			t.stats.Tokenless++
			continue
		}
		seq := kv.SeqHash(0)
		if t.pagesPerBlock == 1 {
			seq = t.blocks.entries.at(id).seq()
		}
		t.countCopy(id, tier, seq, e.Reused)
	}
}

// findBlock returns the id of an engine block, 0 if it is not remembered.
func (t *Table) findBlock(name kv.EngineHash) uint32 {
	if t.pagesPerBlock > 1 {
		return t.pages.findID(name)
	}
	return t.blocks.findID(name)
}

// countCopy counts a copy of a remembered block. seq is the prefix which it ends if it is a Penstock block.
// A repeated report (reused) counts only if it is the first.
func (t *Table) countCopy(id uint32, tier kv.Tier, seq kv.SeqHash, reused bool) {
	had := false
	if t.pagesPerBlock > 1 {
		had = t.pages.entries.at(id).refs[tier] > 0
	} else {
		had = t.blocks.entries.at(id).refs[tier] > 0
	}
	t.stats.Stored++
	if had {
		t.stats.Duplicates++
		if reused {
			return
		}
	}
	if t.pagesPerBlock > 1 {
		t.pages.addCopy(t, id, tier)
	} else {
		t.blocks.addCopy(t, id, tier, seq)
	}
}

// storeOperation stores the blocks of one event.
type storeOperation struct {
	t      *Table
	e      *Event
	tier   kv.Tier
	parent uint32 // the id of the block before, 0 if there is none
	seq    kv.SeqHash
	depth  uint32
	salt   uint16
	lora   string
}

// maxSaltLen bounds the length, in bytes, of the adapter names and salts which a table remembers.
const maxSaltLen = 4096

// prepareStore finds the block before the first of n blocks, and their salt. It reports whether there is
// something to store.
func (s *storeOperation) prepareStore(n int) bool {
	t := s.t
	if !t.sendsOffsets {
		t.sendsOffsets = s.e.hasMediaKeys()
	}
	if len(s.e.Extra) > 0 || s.e.Salt != "" {
		t.saltedPrompts.reported = true
	}
	if s.e.HasParent {
		if _, doubtful := t.ambiguous[s.e.Parent]; doubtful {
			t.markAmbiguous(s.e.Hashes[:n])
			return false
		}
		if s.parent = t.findBlock(s.e.Parent); s.parent == 0 {
			t.stats.Orphans += uint64(n)
			t.addOrphans(s.e, n)
			return false
		}
		if t.partial {
			t.recordKnownLength(s.e, s.parent)
		}
		s.advanceToParent()
		if s.salt != opaqueSalt {
			s.lora = t.salts.entries[s.salt].salt.LoRA
		}
		return true
	}
	salt, named := t.eventSalt(s.e)
	if !named {
		s.salt = opaqueSalt
		return true
	}
	if len(salt.LoRA) > maxSaltLen || len(salt.Namespace) > maxSaltLen {
		s.salt = opaqueSalt
		return true
	}
	if id := t.findBlock(s.e.Hashes[0]); id != 0 && t.blockSaltID(id) == opaqueSalt {
		s.salt = opaqueSalt // as when it was stored first
		return true
	} else if id == 0 && t.suppressEvent(s.e, n) {
		s.salt = opaqueSalt
		return true
	}
	if t.findBlock(s.e.Hashes[0]) == 0 && t.blocks.count+t.pages.count < t.cfg.MaxBlocks {
		t.recordRoot(s.e.Hashes[0], salt, s.e.Tokens[:t.cfg.EngineBlockSize])
	}
	id, ok := t.salts.assignID(salt)
	if !ok {
		t.roots.removeRoot(s.e.Hashes[0])
		t.stats.Refused += uint64(n)
		return false
	}
	s.salt, s.lora = id, salt.LoRA
	return true
}

// advanceToParent sets the position for the next block, which follows s.parent.
func (s *storeOperation) advanceToParent() {
	if s.t.pagesPerBlock > 1 {
		p := s.t.pages.entries.at(s.parent)
		s.depth, s.salt = p.depth+1, p.salt
		return
	}
	b := s.t.blocks.entries.at(s.parent)
	s.seq, s.depth, s.salt = b.seq(), b.depth+1, b.salt
}

// storeBlock stores block i of the event. It reports whether the blocks after it can be stored too.
func (s *storeOperation) storeBlock(i int) bool {
	t := s.t
	id := t.findBlock(s.e.Hashes[i])
	switch {
	case id == 0 && t.blocks.count+t.pages.count >= t.cfg.MaxBlocks:
		t.stats.Refused += uint64(len(s.e.Hashes) - i)
		return false
	case id == 0:
		id = s.addBlock(i)
	case !s.matchesPosition(id):
		t.markAmbiguous(s.e.Hashes[i:])
		return false
	}
	s.parent = id
	s.advanceToParent()
	if s.salt == opaqueSalt {
		t.stats.Nameless++
	}
	unlabelled := s.labelBlock(i, id)
	t.countCopy(id, s.tier, s.seq, s.e.Reused)
	if unlabelled != nil {
		t.emitStored(s.tier, unlabelled, unlabelled.seq())
	}
	return true
}

// matchesPosition reports whether the block known under a hash follows the expected parent.
func (s *storeOperation) matchesPosition(id uint32) bool {
	if s.t.pagesPerBlock > 1 {
		p := s.t.pages.entries.at(id)
		return p.parent == s.parent && p.depth == s.depth && (s.parent != 0 || p.salt == s.salt)
	}
	b := s.t.blocks.entries.at(id)
	return b.prefix == s.seq && b.depth == s.depth && (s.parent != 0 || b.salt == s.salt)
}

// maxAmbiguous is the number of ambiguous hashes at which no hash is trusted any more.
const maxAmbiguous = 64

// markAmbiguous marks hashes which mean several blocks, or which follow such a hash: engines which hash a
// block from its own tokens only (SGLang before it chained its hashes) reuse a hash for equal tokens in
// different places. The first block of a hash stays, because a removal of any of them removes it. Blocks
// reported after such a hash could follow any of them, and are left out. With many such hashes nothing can
// be known.
func (t *Table) markAmbiguous(names []kv.EngineHash) {
	t.stats.Ambiguous += uint64(len(names))
	if t.ambiguous == nil {
		t.ambiguous = make(map[kv.EngineHash]struct{})
	}
	for _, name := range names {
		if len(t.ambiguous) >= maxAmbiguous {
			t.unusable = true
			return
		}
		t.ambiguous[name] = struct{}{}
	}
}

// addBlock remembers block i of the event, which is unknown.
func (s *storeOperation) addBlock(i int) uint32 {
	t, e := s.t, s.e
	media, named := t.blockMedia(e, i, s.lora)
	size := t.cfg.EngineBlockSize
	tokens := e.Tokens[i*size : (i+1)*size]
	if named && s.salt != opaqueSalt && len(e.Extra) == 0 && t.hasUnidentifiedMedia(tokens) {
		t.stats.Faceless++
		named = false
	}
	if !named {
		s.salt = opaqueSalt
	}
	if t.pagesPerBlock > 1 {
		return t.pages.insertPage(t, e.Hashes[i], s.parent, s.depth, s.salt, tokens, media)
	}
	b := blockEntry{prefix: s.seq, depth: s.depth, parent: s.parent, salt: s.salt}
	if s.salt != opaqueSalt {
		b.hash = t.hashBlock(t.salts.entries[s.salt].hasher, s.seq, tokens, media)
	}
	return t.blocks.insertBlock(t, e.Hashes[i], b)
}

// hasMediaKeys reports whether a media object comes with its start offset.
func (e *Event) hasMediaKeys() bool {
	for i := range e.Extra {
		for j := range e.Extra[i].Keys {
			if e.Extra[i].Keys[j].Kind == KeyMedia {
				return true
			}
		}
	}
	return false
}

// eventSalt returns the salt of the first blocks of a prompt. named is false if it cannot be determined.
func (t *Table) eventSalt(e *Event) (salt kv.Salt, named bool) {
	salt = kv.Salt{LoRA: e.LoRA, Namespace: e.Salt}
	if salt.LoRA == "" && len(e.Extra) > 0 {
		for _, k := range e.Extra[0].Keys {
			if k.Kind == KeyLoRA {
				salt.LoRA = string(k.Text)
			}
		}
	}
	if salt.LoRA == "" && e.HasLoRAID {
		name, known := t.cfg.Adapters[e.LoRAID]
		if !known {
			// If there are keys, the adapter's name is the first of them.
			if len(e.Extra) == 0 || len(e.Extra[0].Keys) == 0 || e.Extra[0].Keys[0].Kind != KeyText && e.Extra[0].Keys[0].Kind != KeyLoRA {
				return salt, false
			}
			name = string(e.Extra[0].Keys[0].Text)
		}
		salt.LoRA = name
	}
	if salt.Namespace == "" && len(e.Extra) > 0 {
		if at := t.saltKeyIndex(e, salt.LoRA); at >= 0 {
			salt.Namespace = string(e.Extra[0].Keys[at].Text)
		}
	}
	return salt, true
}

// saltKeyIndex returns the index of the salt among the keys of a prompt's first block, -1 for none. The
// salt is the last text which neither is the adapter's name nor can be a media identifier. Where media
// identifiers come as texts too, 64 hexadecimal digits count as one. A text which is mistaken for the other
// kind gives a hash which no request has.
func (t *Table) saltKeyIndex(e *Event, lora string) int {
	if e.HasParent || len(e.Extra) == 0 {
		return -1
	}
	keys := e.Extra[0].Keys
	for i := len(keys) - 1; i >= 0; i-- {
		switch {
		case keys[i].Kind == KeySalt:
			return i
		case keys[i].Kind != KeyText:
			continue
		case i == 0 && lora != "" && string(keys[i].Text) == lora:
			return -1
		case t.sendsOffsets || string(keys[i].Text) == e.Salt || !isHexDigest(keys[i].Text):
			return i
		}
		return -1
	}
	return -1
}

// isHexDigest reports whether a text looks like a content digest.
func isHexDigest(b []byte) bool {
	if len(b) != 64 {
		return false
	}
	for _, c := range b {
		if _, ok := parseHexDigit(c); !ok {
			return false
		}
	}
	return true
}

// stripLoRAPrefix removes the adapter's name from the front of an identifier. It is there if the adapter
// applies to the encoder too. Adapters have separate hashes for every block anyway.
func stripLoRAPrefix(id, lora string) string {
	if lora == "" {
		return id
	}
	if rest, found := strings.CutPrefix(id, lora+":"); found && rest != "" {
		return rest
	}
	return id
}

// blockMedia returns the media objects which overlap block i of e in the form which the hasher needs.
// Engines list in each block the objects which reach into it, so their start does not matter. named is
// false if the block depends on something else. The next call reuses the slice.
func (t *Table) blockMedia(e *Event, i int, lora string) (media []kv.Media, named bool) {
	if len(e.Extra) == 0 {
		return nil, true
	}
	salt := -1
	if i == 0 {
		salt = t.saltKeyIndex(e, lora)
	}
	t.media = t.media[:0]
	for j, k := range e.Extra[i].Keys {
		if j == salt || j == 0 && k.Kind == KeyText && lora != "" && string(k.Text) == lora {
			continue
		}
		switch k.Kind {
		case KeyOpaque:
			return nil, false
		case KeyLoRA, KeySalt:
			continue
		}
		// The text is not kept, so it need not be copied.
		hash, ok := kv.MediaHash(stripLoRAPrefix(unsafe.String(unsafe.SliceData(k.Text), len(k.Text)), lora))
		if !ok {
			return nil, false
		}
		if len(t.media) == t.cfg.EngineBlockSize {
			return nil, false // more objects than tokens
		}
		t.media = append(t.media, kv.Media{Hash: hash, Start: 0, End: t.cfg.BlockSize})
	}
	return t.media, true
}
