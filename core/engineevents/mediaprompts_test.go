package engineevents

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
)

// mediaFamily describes how a model family's prompts show media, as far as this package cares.
type mediaFamily struct {
	name         string
	placeholders []kv.Token // by kind
	pads         []kv.Token // which stand for rows of the encoder
	layout       func(r *rand.Rand, kind int) media.Layout
	// mixed says that an object may have longer runs of other tokens than of its row tokens.
	mixed bool
}

const vocabulary = 2000

// mediaFamilies returns layouts of all forms which families use: bare rows, tokens before and after them, rows and
// tiles with tokens between them, times between frames.
func mediaFamilies() []mediaFamily {
	runs := func(r ...media.TokenRun) media.Layout { return media.Layout{Runs: r} }
	return []mediaFamily{
		{name: "rows alone", placeholders: []kv.Token{1900, 1901}, pads: []kv.Token{1900, 1901}, layout: func(r *rand.Rand, kind int) media.Layout {
			return runs(media.TokenRun{Token: kv.Token(1900 + kind), Count: 1 + r.IntN(60)})
		}},
		{name: "begin and end", placeholders: []kv.Token{1910}, pads: []kv.Token{1911}, layout: func(r *rand.Rand, _ int) media.Layout {
			return runs(media.TokenRun{Token: 1912, Count: 1 + r.IntN(2)}, media.TokenRun{Token: 1911, Count: 1 + r.IntN(60)}, media.TokenRun{Token: 1913, Count: 1 + r.IntN(2)})
		}},
		{name: "rows of rows", placeholders: []kv.Token{1920}, pads: []kv.Token{1920}, layout: func(r *rand.Rand, _ int) media.Layout {
			var l media.Layout
			width := 1 + r.IntN(12)
			for range 1 + r.IntN(8) {
				l.Runs = append(l.Runs, media.TokenRun{Token: 1920, Count: width}, media.TokenRun{Token: 1921, Count: 1})
			}
			l.Runs[len(l.Runs)-1].Token = 1922
			return l
		}},
		{name: "tiles", placeholders: []kv.Token{1930}, pads: []kv.Token{1931}, layout: func(r *rand.Rand, _ int) media.Layout {
			l := runs(media.TokenRun{Token: 1932, Count: 1})
			for i := range r.IntN(5) {
				l.Runs = append(l.Runs, media.TokenRun{Token: 1931, Count: 1 + r.IntN(9)}, media.TokenRun{Token: kv.Token(1933 + i%2), Count: 1 + r.IntN(3)})
			}
			l.Runs = append(l.Runs, media.TokenRun{Token: 1935, Count: 1}, media.TokenRun{Token: 1931, Count: 1 + r.IntN(9)}, media.TokenRun{Token: 1936, Count: 1})
			return l
		}},
		{name: "times", mixed: true, placeholders: []kv.Token{1940, 1941}, pads: []kv.Token{1942}, layout: func(r *rand.Rand, _ int) media.Layout {
			var l media.Layout
			for i := range 1 + r.IntN(6) {
				l.Runs = append(l.Runs, media.TokenRun{Token: kv.Token(20 + i), Count: 1 + r.IntN(4)}, media.TokenRun{Token: 1943, Count: 1}, media.TokenRun{Token: 1942, Count: 1 + r.IntN(20)}, media.TokenRun{Token: 1944, Count: 1})
			}
			return l
		}},
	}
}

// promptTurn is a prompt as a request has it, with the generated tokens, which are cached too.
type promptTurn struct {
	prompt, tokens []kv.Token
	media          []kv.Media
	salt           kv.Salt
}

// newTurn returns a random conversation of a family. There are few objects, so that prompts share some.
func newTurn(t *testing.T, r *rand.Rand, s *mediaFamily, salt kv.Salt) promptTurn {
	var text []kv.Token
	var placed []media.PromptObject
	words := func() {
		if r.IntN(3) == 0 {
			return // adjacent objects
		}
		for range r.IntN(40) {
			text = append(text, kv.Token(r.IntN(4)))
		}
	}
	words()
	for range r.IntN(11) {
		kind := r.IntN(len(s.placeholders))
		key := media.URLKey(fmt.Sprint(r.IntN(6)), 0)
		// One key always has one layout.
		l := s.layout(rand.New(rand.NewPCG(key.Hash, uint64(kind))), kind)
		placed = append(placed, media.PromptObject{Placeholder: s.placeholders[kind], Key: key, Layout: l})
		text = append(text, s.placeholders[kind])
		words()
	}
	prompt, places, err := media.ExpandPrompt(nil, nil, text, s.placeholders, placed, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	tokens := slices.Clone(prompt)
	for range r.IntN(50) {
		tokens = append(tokens, kv.Token(r.IntN(4)))
	}
	return promptTurn{prompt: prompt, tokens: tokens, media: places, salt: salt}
}

// publisher is how an engine reports what it stored of a turn.
type publisher struct {
	name string
	cfg  Config
	salt kv.Salt
	// view returns the tokens of its events, keys the extra keys of a block.
	view func(s *mediaFamily, u *promptTurn) []kv.Token
	keys func(u *promptTurn, from, to int, first bool) []ExtraKey
	pull bool
}

func native(_ *mediaFamily, u *promptTurn) []kv.Token { return u.tokens }

// padded replaces the row tokens of media.
func padded(pad func(m kv.Media) kv.Token) func(s *mediaFamily, u *promptTurn) []kv.Token {
	return func(s *mediaFamily, u *promptTurn) []kv.Token {
		view := slices.Clone(u.tokens)
		for _, m := range u.media {
			for i := m.Start; i < m.End; i++ {
				if slices.Contains(s.pads, view[i]) {
					view[i] = pad(m)
				}
			}
		}
		return view
	}
}

func uuid(m kv.Media) []byte { return []byte(media.Key{Hash: m.Hash}.UUID()) }

// overlapping returns a key for each object which overlaps a range.
func overlapping(key func(u *promptTurn, m kv.Media, offset int64) ExtraKey) func(u *promptTurn, from, to int, first bool) []ExtraKey {
	return func(u *promptTurn, from, to int, first bool) (keys []ExtraKey) {
		if u.salt.LoRA != "" {
			keys = append(keys, ExtraKey{Kind: KeyText, Text: []byte(u.salt.LoRA)})
		}
		for _, m := range u.media {
			if m.Start < to && m.End > from {
				keys = append(keys, key(u, m, int64(m.Start-from)))
			}
		}
		if first && u.salt.Namespace != "" {
			keys = append(keys, ExtraKey{Kind: KeyText, Text: []byte(u.salt.Namespace)})
		}
		return keys
	}
}

func publishers() []publisher {
	both := kv.Salt{LoRA: "adapter", Namespace: "tenant"}
	offsets := overlapping(func(_ *promptTurn, m kv.Media, at int64) ExtraKey {
		return ExtraKey{Kind: KeyMedia, Text: uuid(m), Offset: at}
	})
	return []publisher{
		{name: "vLLM", view: native, keys: offsets},
		{name: "vLLM, larger blocks here", cfg: Config{EngineBlockSize: 8}, view: native, keys: offsets, salt: both},
		{name: "vLLM, bare identifiers", view: native, keys: overlapping(func(_ *promptTurn, m kv.Media, _ int64) ExtraKey { return ExtraKey{Kind: KeyText, Text: uuid(m)} })},
		{name: "vLLM, adapters of the encoder", salt: both, view: native, keys: overlapping(func(u *promptTurn, m kv.Media, at int64) ExtraKey {
			return ExtraKey{Kind: KeyMedia, Text: []byte(u.salt.LoRA + ":" + string(uuid(m))), Offset: at}
		})},
		{name: "SGLang", cfg: Config{Pads: PadsFromKeys, Vocabulary: vocabulary}, view: padded(func(m kv.Media) kv.Token { return kv.PadToken(m.Hash) })},
		{name: "SGLang, pages of a token", cfg: Config{Pads: PadsFromKeys, EngineBlockSize: 1}, view: padded(func(m kv.Media) kv.Token { return kv.PadToken(m.Hash) })},
		{name: "TensorRT-LLM", cfg: Config{Pads: PadsAboveVocab, Vocabulary: vocabulary}, view: padded(func(kv.Media) kv.Token { return vocabulary + 1 }), keys: offsets},
		{name: "TensorRT-LLM, asked", pull: true, cfg: Config{Pads: PadsAboveVocab, Vocabulary: vocabulary}, view: padded(func(kv.Media) kv.Token { return vocabulary + 1 }), keys: offsets},
	}
}

// publish returns the engine's report after it stored all full blocks of a turn, in the bytes of its feed.
func (p *publisher) publish(t *testing.T, r *rand.Rand, s *mediaFamily, u *promptTurn, size int) *Batch {
	view := p.view(s, u)
	n := len(view) / size
	b := &Batch{Rank: -1}
	names := make([]kv.EngineHash, 0, n)
	h := u.salt.Seed() + uint64(len(p.name))
	for j, token := range u.tokens[:n*size] {
		h = mixDigest(h, token)
		for k, m := range u.media {
			if m.Start <= j && j < m.End {
				h = mixDigest(h, kv.Token(m.Hash)+kv.Token(k))
			}
		}
		if (j+1)%size == 0 {
			names = append(names, kv.EngineHash(h))
		}
	}
	for i := 0; i < n; {
		e := Event{Kind: Stored, Group: -1, BlockSize: size, LoRA: u.salt.LoRA}
		if i > 0 {
			e.Parent, e.HasParent = names[i-1], true
		}
		for range 1 + r.IntN(4) {
			if i == n {
				break
			}
			e.Hashes = append(e.Hashes, names[i])
			e.Tokens = append(e.Tokens, view[i*size:(i+1)*size]...)
			if p.keys != nil {
				e.Extra = append(e.Extra, Extra{p.keys(u, i*size, (i+1)*size, i == 0)})
			}
			i++
		}
		b.Events = append(b.Events, e)
	}
	var out Batch
	if p.pull {
		d := PullDecoder{BlockSize: size}
		if _, err := d.Decode(asked(t, b), &out); err != nil {
			t.Fatal(err)
		}
		return &out
	}
	var e encoder
	e.array(3)
	e.float(1)
	e.array(len(b.Events))
	for i := range b.Events {
		if r.IntN(2) == 0 {
			e.positionalEvent(&b.Events[i])
		} else {
			e.namedEvent(&b.Events[i])
		}
	}
	e.uint(0)
	var d Decoder
	if err := d.Decode(e.b, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// asked returns events as the JSON which TensorRT-LLM serves.
func asked(t *testing.T, b *Batch) []byte {
	all := []map[string]any{{"event_id": 0, "data": map[string]any{"type": "created", "num_blocks_per_cache_level": []int{9}}}}
	for i := range b.Events {
		e := &b.Events[i]
		data := map[string]any{"type": "stored", "parent_hash": nil}
		if e.HasParent {
			data["parent_hash"] = uint64(e.Parent)
		}
		var blocks []any
		for j, h := range e.Hashes {
			var tokens, keys []any
			for _, token := range e.Tokens[j*e.BlockSize : (j+1)*e.BlockSize] {
				tokens = append(tokens, map[string]any{"type": "unique_token", "token_id": token, "token_extra_id": 0})
			}
			for _, k := range e.Extra[j].Keys {
				// A digest of the content, and the object's name in the request.
				keys = append(keys, map[string]any{"type": "mm_key", "hash": fmt.Sprintf("%064x", k.Offset*k.Offset), "start_offset": k.Offset, "uuid": string(k.Text)})
			}
			blocks = append(blocks, map[string]any{"type": "stored_block", "block_hash": uint64(h), "tokens": tokens, "cache_level": 0, "priority": 35, "mm_keys": keys})
		}
		data["blocks"] = blocks
		all = append(all, map[string]any{"event_id": i + 1, "data": data})
	}
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestShownAlike: whatever media a prompt shows, and however an engine reports that it cached it, its
// blocks get the hashes which requests use.
func TestShownAlike(t *testing.T) {
	for _, s := range mediaFamilies() {
		for _, p := range publishers() {
			for _, known := range []bool{true, false} {
				if !known && s.mixed {
					continue // nothing tells which tokens of an object are its rows
				}
				t.Run(fmt.Sprintf("%s/%s/pads known %v", s.name, p.name, known), func(t *testing.T) {
					r := rand.New(rand.NewPCG(7, uint64(len(s.name)+100*len(p.name))))
					for range 40 {
						cfg := p.cfg
						cfg.BlockSize = 16 << r.IntN(2)
						if cfg.EngineBlockSize == 0 {
							cfg.BlockSize = 2 + r.IntN(40)
						}
						if known {
							cfg.MediaTokens = s.pads
						}
						alike(t, r, &s, &p, cfg)
					}
				})
			}
		}
	}
}

// alike lets an engine serve some turns, and compares its events with what requests look up.
func alike(t *testing.T, r *rand.Rand, s *mediaFamily, p *publisher, cfg Config) {
	t.Helper()
	table, err := NewTable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.EnsureDefaults()
	held := map[kv.SeqHash]bool{}
	for range 1 + r.IntN(4) {
		u := newTurn(t, r, s, p.salt)
		table.RecordMediaPrompt(u.prompt, u.media, u.salt)
		for _, e := range table.Apply(p.publish(t, r, s, &u, cfg.EngineBlockSize), nil) {
			parent := e.Parent
			for i, b := range e.Blocks {
				parent = kv.ExtendSeq(parent, e.Start+uint32(i), b)
				held[parent] = true
			}
		}
		h, err := kv.NewHasher(cfg.BlockSize, u.salt)
		if err != nil {
			t.Fatal(err)
		}
		for i, seq := range h.AppendSeqHashes(nil, u.tokens, u.media) {
			if !held[seq] {
				t.Fatalf("block %d of %d (of %d tokens, the prompt has %d) is not found: media %v, stats %+v", i, len(u.tokens)/cfg.BlockSize, cfg.BlockSize, len(u.prompt), u.media, table.Stats())
			}
		}
		if st := table.Stats(); st.Unresolved+st.Faceless+st.Nameless > 0 {
			t.Fatalf("%+v", st)
		}
		strange(t, held, h, &u)
	}
}

// strange looks up the same conversation with other images: nothing which shows or follows one is found.
func strange(t *testing.T, held map[kv.SeqHash]bool, h kv.Hasher, u *promptTurn) {
	if len(u.media) == 0 {
		return
	}
	other := slices.Clone(u.media)
	for i := range other {
		other[i].Hash ^= 0xdead << 32 // the low 30 bits, which SGLang's tokens have, are the same
	}
	for i, seq := range h.AppendSeqHashes(nil, u.tokens, other) {
		if (i+1)*h.BlockSize() > u.media[0].Start && held[seq] {
			t.Fatalf("block %d is found for another picture, which begins at %d", i, u.media[0].Start)
		}
	}
}

// TestUnresolved: images which no request here showed get distinct hashes which no request has.
func TestUnresolved(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := mediaFamilies()[0]
	for _, p := range publishers() {
		if p.cfg.Pads == PadsNative {
			continue
		}
		cfg := p.cfg
		cfg.BlockSize = 16
		table, err := NewTable(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cfg.EnsureDefaults()
		var u promptTurn
		for len(u.media) == 0 || len(u.tokens) < 64 {
			u = newTurn(t, r, &s, p.salt)
		}
		events := table.Apply(p.publish(t, r, &s, &u, cfg.EngineBlockSize), nil)
		h, _ := kv.NewHasher(cfg.BlockSize, u.salt)
		chain := h.AppendSeqHashes(nil, u.tokens, u.media)
		for _, e := range events {
			parent := e.Parent
			for i, b := range e.Blocks {
				parent = kv.ExtendSeq(parent, e.Start+uint32(i), b)
				if at := int(e.Start) + i; (at+1)*16 > u.media[0].Start && slices.Contains(chain, parent) {
					t.Errorf("%s: block %d is found", p.name, at)
				}
			}
		}
		if table.Stats().Unresolved == 0 {
			t.Errorf("%s: no block is unresolved: %+v", p.name, table.Stats())
		}
	}
}

// TestFaceless: blocks of an engine whose events do not identify images are not announced.
func TestFaceless(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := mediaFamilies()[0]
	p := publisher{name: "an old vLLM", view: native}
	table, err := NewTable(Config{BlockSize: 16, MediaTokens: s.pads})
	if err != nil {
		t.Fatal(err)
	}
	var u promptTurn
	for len(u.media) == 0 || len(u.tokens) < 64 || u.media[0].Start > 16 {
		u = newTurn(t, r, &s, kv.Salt{})
	}
	for _, e := range table.Apply(p.publish(t, r, &s, &u, 16), nil) {
		if int(e.Start)+len(e.Blocks) > u.media[0].Start/16 {
			t.Errorf("blocks %d to %d are told of", e.Start, int(e.Start)+len(e.Blocks))
		}
	}
	if table.Stats().Faceless != 1 { // the following blocks are under an opaque block
		t.Errorf("%+v", table.Stats())
	}
}

// TestShownForgets: what is remembered of requests is bounded, and the oldest entries are dropped first.
func TestShownForgets(t *testing.T) {
	var r fifoMap[int, int]
	for i := range 10 {
		r.put(i%7, i, 5)
	}
	for i, want := range map[int]bool{0: true, 1: true, 2: true, 3: false, 4: false, 5: true, 6: true} {
		if _, known := r.values[i]; known != want {
			t.Errorf("%d is known: %v", i, known)
		}
	}
	if len(r.values) != 5 || len(r.keys) != 5 {
		t.Errorf("%d of %d", len(r.values), len(r.keys))
	}
}
