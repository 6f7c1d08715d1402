package engineevents

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
)

// warmEngine is a naive engine whose cache is a tree of blocks which evicts its least recently used leaf.
// It serves requests in two steps, so that several overlap: it looks up blocks at the start, and stores
// blocks at the end.
type warmEngine struct {
	*rand.Rand
	size, ours int
	capacity   int
	cached     map[string]*warmBlock // by all tokens up to the block's end
	clock      int
	events     []Event
	names      map[string]kv.EngineHash
}

type warmBlock struct {
	tokens []kv.Token // of the whole prefix
	name   kv.EngineHash
	used   int
	locks  int
}

// warmCall is a request in progress.
type warmCall struct {
	prompt, answer []kv.Token
	found          int
	number         uint64 // the table's number; 0 is a request of another client
	locked         []string
}

func (g *warmEngine) key(tokens []kv.Token) string {
	key := make([]byte, len(tokens))
	for i, token := range tokens {
		key[i] = byte(token)
	}
	return string(key)
}

func (g *warmEngine) begin(prompt []kv.Token) *warmCall {
	c := &warmCall{prompt: prompt}
	g.clock++
	for end := g.size; end < len(prompt); end += g.size {
		b := g.cached[g.key(prompt[:end])]
		if b == nil {
			break
		}
		b.used, c.found = g.clock, end
		b.locks++
		c.locked = append(c.locked, g.key(prompt[:end]))
	}
	for range 1 + g.IntN(3*g.size) {
		c.answer = append(c.answer, kv.Token(g.IntN(2)))
	}
	return c
}

// end stores what c computed, in one event or several.
func (g *warmEngine) end(c *warmCall) {
	g.clock++
	all := slices.Concat(c.prompt, c.answer[:len(c.answer)-1])
	var e *Event
	for end := g.size; end <= len(all); end += g.size {
		key := g.key(all[:end])
		if b := g.cached[key]; b != nil {
			b.used, e = g.clock, nil
			continue
		}
		g.cached[key] = &warmBlock{tokens: all[:end], name: g.name(key), used: g.clock}
		if e == nil || g.IntN(6) == 0 {
			g.events = append(g.events, Event{Kind: Stored, BlockSize: g.size, Group: -1})
			e = &g.events[len(g.events)-1]
			if e.HasParent = end > g.size; e.HasParent {
				e.Parent = g.name(g.key(all[:end-g.size]))
			}
		}
		e.Hashes = append(slices.Clone(e.Hashes), g.name(key))
		e.Tokens = append(slices.Clone(e.Tokens), all[end-g.size:end]...)
	}
	for _, key := range c.locked {
		g.cached[key].locks--
	}
	for len(g.cached) > g.capacity && g.evict() {
	}
}

func (g *warmEngine) name(key string) kv.EngineHash {
	if g.names[key] == 0 {
		g.names[key] = kv.EngineHash(g.Uint64() | 1)
	}
	return g.names[key]
}

// evict removes the least recently used leaf.
func (g *warmEngine) evict() bool {
	var oldest *warmBlock
	for _, b := range g.cached {
		leaf := b.locks == 0
		for _, c := range g.cached {
			leaf = leaf && !(len(c.tokens) == len(b.tokens)+g.size && slices.Equal(c.tokens[:len(b.tokens)], b.tokens))
		}
		if leaf && (oldest == nil || b.used < oldest.used || b.used == oldest.used && b.name < oldest.name) {
			oldest = b
		}
	}
	if oldest == nil {
		return false
	}
	delete(g.cached, g.key(oldest.tokens))
	g.events = append(g.events, Event{Kind: Removed, Hashes: []kv.EngineHash{oldest.name}, Group: -1})
	return true
}

// flush returns the changes since the last flush.
func (g *warmEngine) flush() *Batch {
	b := &Batch{Events: g.events}
	g.events = nil
	return b
}

// truth returns which of our blocks are cached.
func (g *warmEngine) truth(h kv.Hasher) map[kv.SeqHash]bool {
	w := map[kv.SeqHash]bool{}
	for _, b := range g.cached {
		if chain := h.AppendSeqHashes(nil, b.tokens, nil); len(b.tokens)%g.ours == 0 {
			w[chain[len(chain)-1]] = true
		}
	}
	return w
}

// warmTable follows a warm engine.
type warmTable struct {
	t *testing.T
	*Table
	follower
	now kv.Mono
}

func (w *warmTable) tell(events []kv.Event) {
	w.t.Helper()
	w.follower.apply(events)
	if err := w.inferred.check(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.orphans.check(); err != nil {
		w.t.Fatal(err)
	}
}

// TestWarmEngine: for an engine which served before, and which others use too, only guesses are announced
// wrongly; consecutive requests find what is predicted; and resolved hashes lead to everything which was
// stored after them.
func TestWarmEngine(t *testing.T) {
	for _, c := range []struct{ size, ours, letters int }{{4, 4, 2}, {4, 4, 5}, {1, 4, 2}, {2, 6, 3}, {1, 8, 9}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			resolved, adopted, inferred := uint64(0), uint64(0), 0
			for seed := range uint64(16) {
				s := followWarm(t, seed, c.size, c.ours, c.letters)
				resolved, adopted, inferred = resolved+s.Resolved, adopted+s.Adopted, inferred+s.Inferred
				if s.Refuted > 0 {
					t.Errorf("seed %d: %d names were wrong", seed, s.Refuted)
				}
			}
			t.Logf("%d names found, %d orphans adopted, %d blocks inferred in the end", resolved, adopted, inferred)
			if resolved < 16 || adopted < 60 {
				t.Errorf("only %d names were found, and %d orphans adopted", resolved, adopted)
			}
		})
	}
}

// namesAreRight checks that resolved hashes belong to the blocks for which they were taken.
func namesAreRight(t *testing.T, g *warmEngine, w *warmTable, h kv.Hasher, seed uint64) {
	t.Helper()
	for name, s := range w.inferred.resolved {
		right := false
		for _, b := range g.cached {
			chain := h.AppendSeqHashes(nil, b.tokens, nil)
			right = right || b.name == name && len(s.path) <= len(chain) && slices.Equal(chain[:len(s.path)], s.path)
		}
		if !right {
			t.Fatalf("seed %d: name %x is of another block than what is behind %x", seed, name, s.path)
		}
	}
}

func followWarm(t *testing.T, seed uint64, size, ours, letters int) Stats {
	g := &warmEngine{
		Rand: rand.New(rand.NewPCG(seed, 77)), size: size, ours: ours, capacity: 40 * ours / size,
		cached: map[string]*warmBlock{}, names: map[string]kv.EngineHash{},
	}
	h, err := kv.NewHasher(ours, kv.Salt{})
	if err != nil {
		t.Fatal(err)
	}
	prefixes := make([][]kv.Token, 3)
	draw := func(n int) (tokens []kv.Token) {
		for range n {
			tokens = append(tokens, kv.Token(g.IntN(letters)))
		}
		return tokens
	}
	for i := range prefixes {
		prefixes[i] = draw(2*ours + g.IntN(3*ours))
	}
	tails := [][]kv.Token{draw(ours), draw(ours + 1), draw(2 * ours)}
	prompt := func() []kv.Token {
		p := slices.Clone(prefixes[g.IntN(len(prefixes))])
		if g.IntN(3) > 0 {
			return append(p, tails[g.IntN(len(tails))]...)
		}
		return append(p, draw(1+g.IntN(2*ours))...)
	}
	for range 8 {
		g.end(g.begin(prompt()))
	}
	g.flush()

	table := newTable(t, Config{BlockSize: ours, EngineBlockSize: size, Capacity: 1000, Clears: ClearsAll, Seed: seed})
	table.SetHistory(PartialHistory, nil)
	w := &warmTable{t: t, Table: table, follower: follower{tierPrefixes: tierPrefixes{}, t: t}}
	var open []*warmCall
	for step := range 150 {
		switch k := g.IntN(10); {
		case k < 4 && len(open) < 4:
			p := prompt()
			number := uint64(0)
			if g.IntN(4) > 0 {
				number = w.RecordSent(p, nil, kv.Salt{})
			}
			c := g.begin(p)
			c.number = number
			open = append(open, c)
			if number != 0 {
				w.tell(w.RecordCached(number, c.found, nil))
			}
		case k < 8 && len(open) > 0:
			i := g.IntN(len(open))
			c := open[i]
			open = slices.Delete(open, i, i+1)
			g.end(c)
			if c.number != 0 {
				w.RecordGenerated(c.number, c.answer)
				w.RecordEnd(c.number, Served, w.now)
			}
			if g.IntN(3) > 0 { // events come before or after the end of the answer
				w.tell(w.Apply(g.flush(), nil))
			}
		default:
			w.tell(w.Apply(g.flush(), nil))
			w.now = w.now.Add(settleDelay / 2)
		}
		if g.IntN(2) == 0 {
			w.tell(w.ResolveHashes(w.now, nil))
		}
		if g.events != nil {
			continue
		}
		namesAreRight(t, g, w, h, seed)
		truth := g.truth(h)
		for seq := range w.follower.tierPrefixes[kv.TierDevice] {
			if at := w.inferred.bySeq[seq]; !truth[seq] && (at == nil || !at.isGuess) {
				t.Fatalf("seed %d, step %d: block %x is told of and not there (%+v)", seed, step, seq, at)
			}
		}
		again := follower{tierPrefixes: tierPrefixes{}, t: t}
		description := w.Describe(nil)
		again.apply(description)
		parentsFirst(t, description)
		if !again.tierPrefixes.same(w.follower.tierPrefixes) {
			t.Fatalf("seed %d, step %d: described as\n%v, told of\n%v", seed, step, again.tierPrefixes, w.follower.tierPrefixes)
		}
	}
	return w.Stats()
}
