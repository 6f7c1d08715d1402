package engineevents

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
)

// engine is a naive simulation of an engine's prefix cache: it stores blocks of sequences, evicts, loads
// and clears, and reports it in the events of one dialect. It knows the truth: which prefixes are on which
// tier.
type engine struct {
	*rand.Rand
	block   int // tokens in the engine's blocks
	ours    int
	salts   []kv.Salt
	bare    bool // media objects without offsets
	salted  int  // how a salt is reported: 0 in extra_keys, 1 in a field
	negate  bool // hashes are negative
	cached  []cachedBlock
	hashes  map[string]kv.EngineHash
	waiting []Event
	clears  ClearScope
	// unchained says that a block's hash depends only on its own tokens.
	unchained bool
}

// cachedBlock is one copy of one block.
type cachedBlock struct {
	tier   kv.Tier
	prefix string // everything which it depends on
	hash   kv.EngineHash
	seq    []kv.SeqHash // of our blocks up to and including this one, from our hasher over the whole prompt
	depth  int
	parent kv.EngineHash
	event  Event // the event which announced it, of one block
}

// prompt is a request's prompt, with everything on which its blocks depend.
type prompt struct {
	tokens []kv.Token
	salt   kv.Salt
	media  []kv.Media
	ids    []string // media ids
}

func (g *engine) prompt() prompt {
	p := prompt{salt: g.salts[g.IntN(len(g.salts))]}
	n := g.IntN(6 * g.ours)
	for range n {
		p.tokens = append(p.tokens, kv.Token(g.IntN(2))) // so that prompts share prefixes
	}
	if len(g.salts) > 1 {
		// The tokens show where an object starts: our hash covers the tokens and the media which overlap a
		// block, the engine's covers the offsets too.
		at := 0
		for range g.IntN(3) {
			which := g.IntN(2) + 1
			m := kv.Media{Start: at + g.IntN(g.ours)}
			m.End = min(n, m.Start+1+g.IntN(2*g.ours))
			if m.Start >= m.End {
				break
			}
			id := fmt.Sprintf("%d%063x", which, 0)
			m.Hash, _ = kv.MediaHash(id)
			for i := m.Start; i < m.End; i++ {
				p.tokens[i] = 100
			}
			p.tokens[m.Start] = 101
			p.media, p.ids = append(p.media, m), append(p.ids, id)
			at = m.End
		}
	}
	return p
}

// keys returns the extra keys of one block in vLLM's order.
func (g *engine) keys(p *prompt, i int) Extra {
	var x Extra
	if p.salt.LoRA != "" {
		x.Keys = append(x.Keys, ExtraKey{Kind: KeyText, Text: []byte(p.salt.LoRA)})
	}
	for j, m := range p.media {
		if m.Start < (i+1)*g.block && m.End > i*g.block && m.Start < m.End {
			k := ExtraKey{Kind: KeyMedia, Text: []byte(p.ids[j]), Offset: int64(m.Start - i*g.block)}
			if g.bare {
				k.Kind, k.Offset = KeyText, 0
			}
			x.Keys = append(x.Keys, k)
		}
	}
	if i == 0 && p.salt.Namespace != "" && g.salted == 0 {
		x.Keys = append(x.Keys, ExtraKey{Kind: KeyText, Text: []byte(p.salt.Namespace)})
	}
	return x
}

// identity returns everything on which a block depends.
func (g *engine) identity(p *prompt, i int) string {
	s := fmt.Sprint(p.salt, p.tokens[:(i+1)*g.block])
	for j := range i + 1 {
		s += fmt.Sprint(g.keys(p, j))
	}
	return s
}

func (g *engine) hash(identity string) kv.EngineHash {
	h, ok := g.hashes[identity]
	if !ok {
		h = kv.EngineHash(g.Uint64() | 1)
		if g.negate {
			h |= 1 << 63
		}
		g.hashes[identity] = h
	}
	return h
}

func (g *engine) holds(tier kv.Tier, prefix string) bool {
	return slices.ContainsFunc(g.cached, func(c cachedBlock) bool { return c.tier == tier && c.prefix == prefix })
}

// serve caches a prompt: it uses cached blocks and stores the others, sometimes as an additional copy.
func (g *engine) serve() {
	p := g.prompt()
	h, err := kv.NewHasher(g.ours, p.salt)
	if err != nil {
		panic(err)
	}
	chain := h.AppendSeqHashes(nil, p.tokens, p.media)
	copies := g.IntN(8) == 0
	var e *Event
	parent := kv.EngineHash(0)
	for i := range len(p.tokens) / g.block {
		id := g.identity(&p, i)
		hash := g.hash(id)
		if g.unchained {
			hash = g.hash(fmt.Sprint(p.tokens[i*g.block : (i+1)*g.block]))
		}
		if g.holds(kv.TierDevice, id) && !copies {
			parent, e = hash, nil
			continue
		}
		one := Event{Kind: Stored, Hashes: []kv.EngineHash{hash}, Parent: parent, HasParent: i > 0, Tokens: p.tokens[i*g.block : (i+1)*g.block], BlockSize: g.block, LoRA: p.salt.LoRA, Group: -1}
		one.Extra = []Extra{g.keys(&p, i)}
		if g.salted == 1 {
			one.Salt = p.salt.Namespace
		}
		g.cached = append(g.cached, cachedBlock{prefix: id, hash: hash, seq: chain[:min(len(chain), (i+1)*g.block/g.ours)], depth: i, parent: parent, event: one})
		if e == nil || g.IntN(9) == 0 {
			g.waiting = append(g.waiting, one)
			e = &g.waiting[len(g.waiting)-1]
		} else {
			e.Hashes = append(slices.Clone(e.Hashes), hash)
			e.Tokens = append(slices.Clone(e.Tokens), one.Tokens...)
			e.Extra = append(slices.Clone(e.Extra), one.Extra...)
		}
		parent = hash
	}
}

// evict drops some copy.
func (g *engine) evict() {
	if len(g.cached) == 0 {
		return
	}
	i := g.IntN(len(g.cached))
	c := g.cached[i]
	g.cached = slices.Delete(g.cached, i, i+1)
	g.waiting = append(g.waiting, Event{Kind: Removed, Hashes: []kv.EngineHash{c.hash}, Tier: c.tier, Medium: levelMedium(int(c.tier)), Group: -1})
}

// offload copies a block from the device to a slower tier, with or without its tokens.
func (g *engine) offload() {
	if len(g.cached) == 0 {
		return
	}
	c := g.cached[g.IntN(len(g.cached))]
	c.tier = kv.Tier(1 + g.IntN(2))
	g.cached = append(g.cached, c)
	g.waiting = append(g.waiting, Event{Kind: Stored, Hashes: []kv.EngineHash{c.hash}, Tier: c.tier, Medium: levelMedium(int(c.tier)), Group: -1})
}

func (g *engine) clear() {
	g.cached = slices.DeleteFunc(g.cached, func(c cachedBlock) bool { return c.tier == kv.TierDevice || g.clears == ClearsAll })
	g.waiting = append(g.waiting, Event{Kind: Cleared, Group: -1})
}

// tierPrefixes is a set of prefixes by tier.
type tierPrefixes map[kv.Tier]map[kv.SeqHash]bool

func (w tierPrefixes) add(tier kv.Tier, seq kv.SeqHash) {
	if w[tier] == nil {
		w[tier] = map[kv.SeqHash]bool{}
	}
	w[tier][seq] = true
}

func (w tierPrefixes) same(o tierPrefixes) bool {
	for tier := range kv.Tier(kv.Tiers) {
		if len(w[tier]) != len(o[tier]) {
			return false
		}
		for seq := range w[tier] {
			if !o[tier][seq] {
				return false
			}
		}
	}
	return true
}

// truth returns which of our blocks are complete on which tier.
func (g *engine) truth() tierPrefixes {
	w := tierPrefixes{}
	per := g.ours / g.block
	for _, c := range g.cached {
		if (c.depth+1)%per != 0 {
			continue
		}
		whole, at := true, c
		for range per - 1 {
			i := slices.IndexFunc(g.cached, func(o cachedBlock) bool { return o.hash == at.parent && o.tier == c.tier })
			if i < 0 {
				whole = false
				break
			}
			at = g.cached[i]
		}
		if whole {
			w.add(c.tier, c.seq[len(c.seq)-1])
		}
	}
	return w
}

// follower applies our events, and checks their contract.
type follower struct {
	tierPrefixes
	t *testing.T
}

func (f *follower) apply(events []kv.Event) {
	for _, ev := range events {
		switch ev.Kind {
		case kv.Cleared:
			f.tierPrefixes = tierPrefixes{}
		case kv.Stored:
			seq := ev.Parent
			for i, b := range ev.Blocks {
				seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
				if f.tierPrefixes[ev.Tier][seq] {
					f.t.Fatalf("%v block %x is stored twice", ev.Tier, seq)
				}
				f.add(ev.Tier, seq)
			}
		case kv.Removed:
			for _, seq := range ev.Seqs {
				if !f.tierPrefixes[ev.Tier][seq] {
					f.t.Fatalf("%v block %x is removed and was not there", ev.Tier, seq)
				}
				delete(f.tierPrefixes[ev.Tier], seq)
			}
		default:
			f.t.Fatalf("an event of kind %v", ev.Kind)
		}
	}
}

// flush returns the pending changes as a batch in some dialect.
func (g *engine) flush(form int) []byte {
	e := encoder{draw: g.Rand}
	e.array(3)
	e.float(1.5)
	e.array(len(g.waiting))
	for i := range g.waiting {
		if form == 0 {
			e.positionalEvent(&g.waiting[i])
		} else {
			e.namedEvent(&g.waiting[i])
		}
	}
	e.uint(0)
	g.waiting = nil
	return e.b
}

func (e *encoder) text(s string) {
	if s == "" {
		e.nil()
		return
	}
	e.str(s)
}

func (e *encoder) hashes(hs []kv.EngineHash) {
	e.array(len(hs))
	for _, h := range hs {
		e.hash(h)
	}
}

func (e *encoder) hash(h kv.EngineHash) {
	if h>>63 == 1 {
		e.int(int64(h))
		return
	}
	e.uint(uint64(h))
}

func (e *encoder) parent(ev *Event) {
	if !ev.HasParent {
		e.nil()
		return
	}
	e.hash(ev.Parent)
}

func (e *encoder) tokenIDs(tokens []kv.Token) {
	e.array(len(tokens))
	for _, t := range tokens {
		e.uint(uint64(t))
	}
}

func (e *encoder) extraKeys(x []Extra) {
	if x == nil {
		e.nil()
		return
	}
	e.array(len(x))
	for _, b := range x {
		if len(b.Keys) == 0 {
			e.nil()
			continue
		}
		e.array(len(b.Keys))
		for _, k := range b.Keys {
			switch k.Kind {
			case KeyText:
				e.str(string(k.Text))
			case KeyMedia:
				e.array(2)
				e.str(string(k.Text))
				e.int(k.Offset)
			default:
				e.bin("digest")
			}
		}
	}
}

// positionalEvent writes an event as an array of vLLM's fields, with a salt in a map at the end.
func (e *encoder) positionalEvent(ev *Event) {
	switch ev.Kind {
	case Stored:
		n := 9
		if ev.Salt != "" {
			n++
		}
		e.array(n)
		e.str("BlockStored")
		e.hashes(ev.Hashes)
		e.parent(ev)
		e.tokenIDs(ev.Tokens)
		e.uint(uint64(ev.BlockSize))
		e.nil()
		e.text(ev.Medium)
		e.text(ev.LoRA)
		e.extraKeys(ev.Extra)
		if ev.Salt != "" {
			e.fields(1)
			e.str("cache_salt")
			e.str(ev.Salt)
		}
	case Removed:
		e.array(3)
		e.str("BlockRemoved")
		e.hashes(ev.Hashes)
		e.text(ev.Medium)
	default:
		e.array(1)
		e.str("AllBlocksCleared")
	}
}

func (e *encoder) namedEvent(ev *Event) {
	switch ev.Kind {
	case Stored:
		e.fields(9)
		e.str("extra_keys")
		e.extraKeys(ev.Extra)
		e.str("type")
		e.str("BlockStored")
		e.str("block_hashes")
		e.hashes(ev.Hashes)
		e.str("parent_block_hash")
		e.parent(ev)
		e.str("token_ids")
		e.tokenIDs(ev.Tokens)
		e.str("block_size")
		e.uint(uint64(ev.BlockSize))
		e.str("medium")
		e.text(ev.Medium)
		e.str("lora_name")
		e.text(ev.LoRA)
		e.str("cache_salt")
		e.text(ev.Salt)
	case Removed:
		e.fields(3)
		e.str("block_hashes")
		e.hashes(ev.Hashes)
		e.str("medium")
		e.text(ev.Medium)
		e.str("type")
		e.str("BlockRemoved")
	default:
		e.fields(1)
		e.str("type")
		e.str("AllBlocksCleared")
	}
}
