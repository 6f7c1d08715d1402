package enginefeed

import (
	"strings"
	"unsafe"

	"penstock/core/kv"
)

// store takes in what e says is stored, as far as it has a name of ours.
func (t *Table) store(e *Event) {
	switch {
	case !fullAttention(e.Spec):
		t.stats.OtherGroup += uint64(len(e.Hashes))
		return
	case t.otherGroup(e):
		return
	case t.useless:
		t.stats.Ambiguous += uint64(len(e.Hashes))
		return
	case e.Pairs || e.Odd:
		t.stats.Pairs += uint64(len(e.Hashes))
		return
	case len(e.Tokens) == 0:
		t.tokenless(e)
		return
	}
	n := t.fitting(e)
	if n == 0 {
		return
	}
	if e.Group >= 0 {
		t.group = e.Group
	}
	s := storing{t: t, e: e, tier: tierOf(e)}
	if !s.begin(n) {
		return
	}
	made, stored := s.salt, 0
	for stored < n && s.block(stored) {
		stored++
	}
	t.salts.settle(made)
	t.adopt(e.Hashes[:stored])
}

// fullAttention reports whether a kind of attention needs all blocks of a prefix, so that the
// engine has them or has them not: others drop blocks in the middle, and do not say to which tokens the rest belongs.
func fullAttention(spec string) bool {
	switch spec {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// fitting returns how many blocks of e, from the first one, are full and of the size that is expected.
func (t *Table) fitting(e *Event) int {
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
	t.seen.note(size, n, t.cfg.EngineBlock)
	switch {
	case size < t.cfg.EngineBlock && n == 1:
		t.stats.Partial++
		return 0
	case size != t.cfg.EngineBlock:
		t.stats.OtherBlockSize += uint64(n)
		return 0
	case short > 0:
		t.stats.Partial++
		return n - 1
	}
	return n
}

// tokenless counts copies of blocks that are known by name only.
func (t *Table) tokenless(e *Event) {
	tier := tierOf(e)
	for _, name := range e.Hashes {
		id := t.find(name)
		if id == 0 {
			t.stats.Tokenless++
			continue
		}
		seq := kv.SeqHash(0)
		if t.per == 1 {
			seq = t.blocks.all.at(id).seq()
		}
		t.copied(id, tier, seq, e.Reused)
	}
}

// find returns the number that an engine's block is remembered by, 0 if it is not.
func (t *Table) find(name kv.EngineHash) uint32 {
	if t.per > 1 {
		return t.pieces.find(name)
	}
	return t.blocks.find(name)
}

// copied counts a copy of a block that is remembered, which ends seq if it is one of ours. One that the engine only repeats is counted if it is the first.
func (t *Table) copied(id uint32, tier kv.Tier, seq kv.SeqHash, reused bool) {
	had := false
	if t.per > 1 {
		had = t.pieces.all.at(id).refs[tier] > 0
	} else {
		had = t.blocks.all.at(id).refs[tier] > 0
	}
	t.stats.Stored++
	if had {
		t.stats.Duplicates++
		if reused {
			return
		}
	}
	if t.per > 1 {
		t.pieces.ref(t, id, tier)
	} else {
		t.blocks.ref(t, id, tier, seq)
	}
}

// storing is a store on its way in.
type storing struct {
	t      *Table
	e      *Event
	tier   kv.Tier
	parent uint32 // the number of the block before, 0 if there is none
	seq    kv.SeqHash
	depth  uint32
	salt   uint16
	lora   string
}

// maxSalt is how long an adapter's name or a salt may be for a table to remember it, in bytes.
const maxSalt = 4096

// begin finds the block before the first one of n, and what they are all under. It reports whether there is something to store.
func (s *storing) begin(n int) bool {
	t := s.t
	if !t.pairs {
		t.pairs = s.e.hasPairs()
	}
	if len(s.e.Extra) > 0 || s.e.Salt != "" {
		t.veil.told = true
	}
	if s.e.HasParent {
		if _, doubtful := t.doubtful[s.e.Parent]; doubtful {
			t.doubt(s.e.Hashes[:n])
			return false
		}
		if s.parent = t.find(s.e.Parent); s.parent == 0 {
			t.stats.Orphans += uint64(n)
			t.orphan(s.e, n)
			return false
		}
		if t.partial {
			t.located(s.e, s.parent)
		}
		s.follow()
		if s.salt != opaque {
			s.lora = t.salts.uses[s.salt].salt.LoRA
		}
		return true
	}
	salt, named := t.saltOf(s.e)
	if !named {
		s.salt = opaque
		return true
	}
	if len(salt.LoRA) > maxSalt || len(salt.Namespace) > maxSalt {
		s.salt = opaque
		return true
	}
	if id := t.find(s.e.Hashes[0]); id != 0 && t.saltOfBlock(id) == opaque {
		s.salt = opaque // what it was taken for at first
		return true
	} else if id == 0 && t.veiled(s.e, n) {
		s.salt = opaque
		return true
	}
	if t.find(s.e.Hashes[0]) == 0 && t.blocks.n+t.pieces.n < t.cfg.MaxBlocks {
		t.noteRoot(s.e.Hashes[0], salt, s.e.Tokens[:t.cfg.EngineBlock])
	}
	id, ok := t.salts.of(salt)
	if !ok {
		t.roots.drop(s.e.Hashes[0])
		t.stats.Refused += uint64(n)
		return false
	}
	s.salt, s.lora = id, salt.LoRA
	return true
}

// follow makes the next block the one behind parent.
func (s *storing) follow() {
	if s.t.per > 1 {
		p := s.t.pieces.all.at(s.parent)
		s.depth, s.salt = p.depth+1, p.salt
		return
	}
	b := s.t.blocks.all.at(s.parent)
	s.seq, s.depth, s.salt = b.seq(), b.depth+1, b.salt
}

// block stores block i of the event. It reports whether those behind it can be stored too.
func (s *storing) block(i int) bool {
	t := s.t
	id := t.find(s.e.Hashes[i])
	switch {
	case id == 0 && t.blocks.n+t.pieces.n >= t.cfg.MaxBlocks:
		t.stats.Refused += uint64(len(s.e.Hashes) - i)
		return false
	case id == 0:
		id = s.make(i)
	case !s.fits(id):
		t.doubt(s.e.Hashes[i:])
		return false
	}
	s.parent = id
	s.follow()
	if s.salt == opaque {
		t.stats.Nameless++
	}
	t.copied(id, s.tier, s.seq, s.e.Reused)
	return true
}

// fits reports whether the block that is known by a name follows what it should.
func (s *storing) fits(id uint32) bool {
	if s.t.per > 1 {
		p := s.t.pieces.all.at(id)
		return p.parent == s.parent && p.depth == s.depth && (s.parent != 0 || p.salt == s.salt)
	}
	b := s.t.blocks.all.at(id)
	return b.prev == s.seq && b.depth == s.depth && (s.parent != 0 || b.salt == s.salt)
}

// maxDoubtful is how many names may mean several blocks until no name is trusted.
const maxDoubtful = 64

// doubt notes that names mean several blocks, or are behind such a one: engines that name a block by its own tokens
// (SGLang before it chained its hashes) use one name for equal tokens in different places. The first block of a name stays, since
// a removal of any takes it away; what is said to follow the name could follow any of them, and is left out. Where there are many
// such names nothing can be known.
func (t *Table) doubt(names []kv.EngineHash) {
	t.stats.Ambiguous += uint64(len(names))
	if t.doubtful == nil {
		t.doubtful = make(map[kv.EngineHash]struct{})
	}
	for _, name := range names {
		if len(t.doubtful) >= maxDoubtful {
			t.useless = true
			return
		}
		t.doubtful[name] = struct{}{}
	}
}

// make remembers block i of the event, which is not known.
func (s *storing) make(i int) uint32 {
	t, e := s.t, s.e
	media, named := t.mediaOf(e, i, s.lora)
	size := t.cfg.EngineBlock
	tokens := e.Tokens[i*size : (i+1)*size]
	if named && s.salt != opaque && len(e.Extra) == 0 && t.faceless(tokens) {
		t.stats.Faceless++
		named = false
	}
	if !named {
		s.salt = opaque
	}
	if t.per > 1 {
		return t.pieces.put(t, e.Hashes[i], s.parent, s.depth, s.salt, tokens, media)
	}
	b := block{prev: s.seq, depth: s.depth, parent: s.parent, salt: s.salt}
	if s.salt != opaque {
		b.hash = t.name(t.salts.uses[s.salt].hasher, s.seq, tokens, media)
	}
	return t.blocks.put(t, e.Hashes[i], b)
}

// hasPairs reports whether a media object is given with where it begins.
func (e *Event) hasPairs() bool {
	for i := range e.Extra {
		for j := range e.Extra[i].Keys {
			if e.Extra[i].Keys[j].Kind == KeyMedia {
				return true
			}
		}
	}
	return false
}

// saltOf returns what the blocks of a prompt's beginning are under. named is false if that cannot be said.
func (t *Table) saltOf(e *Event) (salt kv.Salt, named bool) {
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
			// Where there are keys, the adapter's name is the first of them.
			if len(e.Extra) == 0 || len(e.Extra[0].Keys) == 0 || e.Extra[0].Keys[0].Kind != KeyText && e.Extra[0].Keys[0].Kind != KeyLoRA {
				return salt, false
			}
			name = string(e.Extra[0].Keys[0].Text)
		}
		salt.LoRA = name
	}
	if salt.Namespace == "" && len(e.Extra) > 0 {
		if at := t.saltKey(e, salt.LoRA); at >= 0 {
			salt.Namespace = string(e.Extra[0].Keys[at].Text)
		}
	}
	return salt, true
}

// saltKey returns which key of a prompt's first block is its salt, -1 if none is: the last text that
// neither is the adapter's name nor can be a media object's identifier. Where those come as texts too,
// 64 hexadecimal digits are taken for one. A text that is taken for the wrong one of the two gives a name that no request has.
func (t *Table) saltKey(e *Event, lora string) int {
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
		case t.pairs || string(keys[i].Text) == e.Salt || !isDigest(keys[i].Text):
			return i
		}
		return -1
	}
	return -1
}

// isDigest reports whether a text looks like the digest of some content.
func isDigest(b []byte) bool {
	if len(b) != 64 {
		return false
	}
	for _, c := range b {
		if _, ok := hexDigit(c); !ok {
			return false
		}
	}
	return true
}

// withoutLoRA returns an identifier without the adapter's name before it, which is there where the adapter is of the
// encoder too: adapters have names of their own for whatever block.
func withoutLoRA(id, lora string) string {
	if lora == "" {
		return id
	}
	if rest, found := strings.CutPrefix(id, lora+":"); found && rest != "" {
		return rest
	}
	return id
}

// mediaOf returns the media objects that overlap block i of e, as the hasher wants them: engines name
// in each block those that reach into it, so that where they begin does not matter. named is false if the
// block depends on something else. The slice is used again.
func (t *Table) mediaOf(e *Event, i int, lora string) (media []kv.Media, named bool) {
	if len(e.Extra) == 0 {
		return nil, true
	}
	salt := -1
	if i == 0 {
		salt = t.saltKey(e, lora)
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
		// The text is not kept: it need not be copied.
		hash, ok := kv.MediaHash(withoutLoRA(unsafe.String(unsafe.SliceData(k.Text), len(k.Text)), lora))
		if !ok {
			return nil, false
		}
		if len(t.media) == t.cfg.EngineBlock {
			return nil, false // more than it has tokens
		}
		t.media = append(t.media, kv.Media{Hash: hash, Start: 0, End: t.cfg.BlockSize})
	}
	return t.media, true
}
