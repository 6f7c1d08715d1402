package engineevents

import (
	"errors"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
)

// newStore returns a store of blocks of two tokens.
func newStore(parent kv.EngineHash, hashes ...kv.EngineHash) Event {
	e := Event{Kind: Stored, Hashes: hashes, Parent: parent, HasParent: parent != 0, BlockSize: 2, Group: -1}
	for i := range hashes {
		e.Tokens = append(e.Tokens, kv.Token(hashes[i]), kv.Token(i))
	}
	return e
}

func newRemoval(hashes ...kv.EngineHash) Event {
	return Event{Kind: Removed, Hashes: hashes, Group: -1}
}

func withChange(e Event, change func(*Event)) Event {
	change(&e)
	return e
}

func textKeys(texts ...string) Extra {
	var x Extra
	for _, s := range texts {
		x.Keys = append(x.Keys, ExtraKey{Kind: KeyText, Text: []byte(s)})
	}
	return x
}

// TestLeftOut: blocks which cannot be hashed are counted by cause, and never announced.
func TestLeftOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []Event
		blocks int // announced at the end, on the device
		count  func(*Stats) uint64
		want   uint64
	}{
		{"orphan", []Event{newStore(9, 1, 2)}, 0, func(s *Stats) uint64 { return s.Orphans }, 2},
		{"duplicate", []Event{newStore(0, 1), newStore(0, 1), newRemoval(1)}, 1, func(s *Stats) uint64 { return s.Duplicates }, 1},
		{"repeated by the engine", []Event{newStore(0, 1), withChange(newStore(0, 1), func(e *Event) { e.Reused = true }), newRemoval(1)}, 0, func(s *Stats) uint64 { return s.Duplicates }, 1},
		{"unknown removed", []Event{newStore(0, 1), newRemoval(2)}, 1, func(s *Stats) uint64 { return s.UnknownRemoved }, 1},
		{"on another tier", []Event{newStore(0, 1), withChange(newRemoval(1), func(e *Event) { e.Tier = kv.TierHost })}, 1, func(s *Stats) uint64 { return s.UnknownRemoved }, 1},
		{"sliding window", []Event{withChange(newStore(0, 1), func(e *Event) { e.Spec = "sliding_window" })}, 0, func(s *Stats) uint64 { return s.OtherGroup }, 1},
		{"a further group", []Event{withChange(newStore(0, 1), func(e *Event) { e.Group = 0 }), withChange(newStore(0, 1), func(e *Event) { e.Group = 1 }), withChange(newRemoval(1), func(e *Event) { e.Group = 1 })}, 1, func(s *Stats) uint64 { return s.OtherGroup }, 2},
		{"more tokens than blocks", []Event{withChange(newStore(0, 1, 2), func(e *Event) { e.Hashes = e.Hashes[:1] })}, 0, func(s *Stats) uint64 { return s.Misaligned }, 1},
		{"keys for other blocks", []Event{withChange(newStore(0, 1, 2), func(e *Event) { e.Extra = []Extra{{}} })}, 0, func(s *Stats) uint64 { return s.Misaligned }, 2},
		{"partial", []Event{withChange(newStore(0, 1), func(e *Event) { e.Tokens, e.BlockSize = e.Tokens[:1], 1 })}, 0, func(s *Stats) uint64 { return s.Partial }, 1},
		{"partial at the end of a run", []Event{withChange(newStore(0, 1, 2), func(e *Event) { e.Tokens = e.Tokens[:3] })}, 1, func(s *Stats) uint64 { return s.Partial }, 1},
		{"larger blocks", []Event{withChange(newStore(0, 1), func(e *Event) { e.Tokens, e.BlockSize = []kv.Token{1, 2, 3, 4}, 4 })}, 0, func(s *Stats) uint64 { return s.OtherBlockSize }, 1},
		{"pairs", []Event{withChange(newStore(0, 1), func(e *Event) { e.Tokens, e.Bigrams = nil, true })}, 0, func(s *Stats) uint64 { return s.Pairs }, 1},
		{"nameless adapter", []Event{withChange(newStore(0, 1), func(e *Event) { e.LoRAID, e.HasLoRAID = 7, true }), newStore(1, 2)}, 0, func(s *Stats) uint64 { return s.Nameless }, 2},
		{"embeddings", []Event{withChange(newStore(0, 1), func(e *Event) { e.Extra = []Extra{{Keys: []ExtraKey{{Kind: KeyOpaque}}}} }), newStore(1, 2), newRemoval(2, 1)}, 0, func(s *Stats) uint64 { return s.Nameless }, 2},
		{"tokenless and unknown", []Event{{Kind: Stored, Hashes: []kv.EngineHash{4}, Tier: kv.TierHost, Medium: "CPU", Group: -1}}, 0, func(s *Stats) uint64 { return s.Tokenless }, 1},
		{"one name for two blocks", []Event{newStore(0, 1, 2), newStore(0, 3), newStore(3, 2, 4), newStore(2, 5), newRemoval(2)}, 2, func(s *Stats) uint64 { return s.Ambiguous }, 3},
		{"too many", []Event{newStore(0, 1, 2, 3, 4, 5)}, 4, func(s *Stats) uint64 { return s.Refused }, 1},
		{"unknown medium", []Event{withChange(newStore(0, 1), func(e *Event) { e.Tier, e.Medium = TierOfMedium("MOON"), "MOON" })}, 0, func(s *Stats) uint64 { return s.UnknownMedium }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := newTable(t, Config{BlockSize: 2, MaxBlocks: 4})
			f := follower{tierPrefixes: tierPrefixes{}, t: t}
			f.apply(table.Apply(&Batch{Events: c.events}, nil))
			s := table.Stats()
			if got := c.count(&s); got != c.want || len(f.tierPrefixes[kv.TierDevice]) != c.blocks || s.Blocks[kv.TierDevice] != c.blocks {
				t.Errorf("counted %d, want %d; %d blocks, want %d: %+v", got, c.want, len(f.tierPrefixes[kv.TierDevice]), c.blocks, s)
			}
		})
	}
}

// TestNames: a block has the hash which a request for it has.
func TestNames(t *testing.T) {
	image := strings.Repeat("ab", 32)
	hash, _ := kv.MediaHash(image)
	adapter := func(e *Event) { e.LoRAID, e.HasLoRAID = 3, true }
	for _, c := range []struct {
		name  string
		event Event
		salt  kv.Salt
		media []kv.Media
	}{
		{"plain", newStore(0, 1, 2), kv.Salt{}, nil},
		{"adapter by its number", withChange(newStore(0, 1, 2), adapter), kv.Salt{LoRA: "sql"}, nil},
		{"no adapter by its number", withChange(newStore(0, 1, 2), func(e *Event) { e.LoRAID, e.HasLoRAID = 0, true }), kv.Salt{}, nil},
		{"adapter by its key", withChange(newStore(0, 1, 2), func(e *Event) {
			e.LoRAID, e.HasLoRAID, e.Extra = 9, true, []Extra{textKeys("x"), textKeys("x")}
		}), kv.Salt{LoRA: "x"}, nil},
		{"salt in the keys", withChange(newStore(0, 1, 2), func(e *Event) { e.Extra = []Extra{textKeys("s"), {}} }), kv.Salt{Namespace: "s"}, nil},
		{"salt in both", withChange(newStore(0, 1, 2), func(e *Event) { e.Salt, e.Extra = "s", []Extra{textKeys("s"), {}} }), kv.Salt{Namespace: "s"}, nil},
		{"salt that looks like an image, beside one with its place", withChange(newStore(0, 1, 2), func(e *Event) {
			e.Extra = []Extra{textKeys(image), {Keys: []ExtraKey{{Kind: KeyMedia, Text: []byte(image)}}}}
		}), kv.Salt{Namespace: image}, []kv.Media{{Hash: hash, Start: 2, End: 4}}},
		{"image without its place", withChange(newStore(0, 1, 2), func(e *Event) { e.Extra = []Extra{textKeys(image), textKeys(image)} }), kv.Salt{}, []kv.Media{{Hash: hash, Start: 0, End: 4}}},
		{"adapter, named image and salt", withChange(newStore(0, 1, 2), func(e *Event) {
			e.LoRA, e.Extra = "sql", []Extra{textKeys("sql", image, "s"), textKeys("sql", image)}
		}), kv.Salt{LoRA: "sql", Namespace: "s"}, []kv.Media{{Hash: hash, Start: 0, End: 4}}},
	} {
		table := newTable(t, Config{BlockSize: 2, Adapters: map[int64]string{0: "", 3: "sql"}})
		f := follower{tierPrefixes: tierPrefixes{}, t: t}
		f.apply(table.Apply(&Batch{Events: []Event{c.event}}, nil))
		h, err := kv.NewHasher(2, c.salt)
		if err != nil {
			t.Fatal(err)
		}
		want := tierPrefixes{}
		for _, seq := range h.AppendSeqHashes(nil, c.event.Tokens, c.media) {
			want.add(kv.TierDevice, seq)
		}
		if !f.tierPrefixes.same(want) {
			t.Errorf("%s: told of %v, want %v", c.name, f.tierPrefixes, want)
		}
	}
}

// TestBlockSizes: the error for a mismatched block size says what to set.
func TestBlockSizes(t *testing.T) {
	if _, err := NewTable(Config{BlockSize: 24, EngineBlockSize: 16}); fault.CodeOf(err) != fault.Internal && fault.CodeOf(err) != fault.Invalid || err == nil || !strings.Contains(err.Error(), "16 or a multiple") {
		t.Errorf("24 of 16: %v", err)
	}
	if _, err := NewTable(Config{}); !errors.Is(err, kv.ErrBlockSize) {
		t.Errorf("none: %v", err)
	}
	stores := func(size, blocks int) Event {
		e := Event{Kind: Stored, BlockSize: size, Tokens: make([]kv.Token, size*blocks), Group: -1}
		for i := range blocks {
			e.Hashes = append(e.Hashes, kv.EngineHash(i+1))
		}
		return e
	}
	short := make([]Event, maxShortBlocks)
	for i := range short {
		short[i] = stores(8, 1)
	}
	for name, c := range map[string]struct {
		events []Event
		bad    string
	}{
		"as it should be": {[]Event{stores(16, 3)}, ""},
		"a short end":     {[]Event{stores(7, 1)}, ""},
		"larger":          {[]Event{stores(32, 1)}, "blocks of 32 tokens"},
		"smaller":         {[]Event{stores(8, 2)}, "blocks of 8 tokens"},
		"always short":    {short, "blocks of 8 tokens"},
	} {
		table := newTable(t, Config{BlockSize: 16})
		table.Apply(&Batch{Events: c.events}, nil)
		err := table.Err()
		if (err == nil) != (c.bad == "") || err != nil && (!strings.Contains(err.Error(), c.bad) || fault.CodeOf(err) != fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyClears: a batch of clears announces the survivors a bounded number of times.
func TestManyClears(t *testing.T) {
	table := newTable(t, Config{BlockSize: 2})
	f := follower{tierPrefixes: tierPrefixes{}, t: t}
	store := &Batch{}
	for i := range 100 {
		store.Events = append(store.Events, withChange(newStore(0, kv.EngineHash(i+1)), func(e *Event) { e.Tier, e.Medium = kv.TierHost, "CPU" }))
	}
	f.apply(table.Apply(store, nil))
	for _, clears := range []int{maxTierClears, maxTierClears + 1, 1000} {
		b := &Batch{}
		for range clears {
			b.Events = append(b.Events, newStore(0, 200), Event{Kind: Cleared, Group: -1})
		}
		before := kv.Event{Kind: kv.Removed, Seqs: []kv.SeqHash{1}}
		out := table.Apply(b, []kv.Event{before})
		if len(out) > 102 || out[0].Kind != kv.Removed {
			t.Errorf("%d clears became %d events", clears, len(out))
		}
		f.apply(out[1:])
		want := 100
		if clears > maxTierClears {
			want = 0
		}
		if len(f.tierPrefixes[kv.TierDevice]) != 0 || len(f.tierPrefixes[kv.TierHost]) != want {
			t.Errorf("%d clears leave %v", clears, f.tierPrefixes)
		}
	}
}

// TestImplausible: implausible events cost no more memory than their own size.
func TestImplausible(t *testing.T) {
	table := newTable(t, Config{BlockSize: 2})
	many := withChange(newStore(0, 1), func(e *Event) {
		keys := make([]ExtraKey, 1000)
		for i := range keys {
			keys[i] = ExtraKey{Kind: KeyMedia, Text: []byte{byte(i), byte(i >> 8)}}
		}
		e.Extra = []Extra{{Keys: keys}}
	})
	long := withChange(newStore(0, 2), func(e *Event) { e.Salt = strings.Repeat("s", maxSaltLen+1) })
	if out := table.Apply(&Batch{Events: []Event{many, long}}, nil); len(out) != 0 || table.Stats().Nameless != 2 {
		t.Errorf("%v, %+v", out, table.Stats())
	}
}

// TestClears: a clear covers only the device if offloaded blocks survive it; a damaged batch clears
// everything.
func TestClears(t *testing.T) {
	cpu := func(e *Event) { e.Tier, e.Medium = kv.TierHost, "CPU" }
	events := []Event{newStore(0, 1, 2), withChange(newStore(0, 1), cpu), {Kind: Cleared, Group: -1}}
	for scope, left := range map[ClearScope]int{ClearsDevice: 1, ClearsAll: 0} {
		table := newTable(t, Config{BlockSize: 2, Clears: scope})
		f := follower{tierPrefixes: tierPrefixes{}, t: t}
		f.apply(table.Apply(&Batch{Events: events}, nil))
		if len(f.tierPrefixes[kv.TierDevice]) != 0 || len(f.tierPrefixes[kv.TierHost]) != left {
			t.Errorf("scope %d: %v is left", scope, f.tierPrefixes)
		}
	}
	table := newTable(t, Config{BlockSize: 2})
	f := follower{tierPrefixes: tierPrefixes{}, t: t}
	f.apply(table.Apply(&Batch{Events: events[:2]}, nil))
	f.apply(table.Apply(&Batch{Events: []Event{withChange(Event{Kind: Cleared}, cpu)}}, nil))
	if len(f.tierPrefixes[kv.TierDevice]) != 2 || len(f.tierPrefixes[kv.TierHost]) != 0 {
		t.Errorf("a clear of the host leaves %v", f.tierPrefixes)
	}
	f.apply(table.Apply(&Batch{Lost: 1, Events: []Event{newStore(0, 3)}}, nil))
	if len(f.tierPrefixes) != 0 || table.Stats().Held != 0 {
		t.Errorf("a damaged batch leaves %v", f.tierPrefixes)
	}
}
