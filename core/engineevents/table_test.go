package engineevents

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock/core/kv"
)

// TestTableKnowsTheTruth: whatever an engine stores, copies, offloads, evicts and clears, in any dialect:
// after each batch the events match the engine's cache, and so does a description.
func TestTableKnowsTheTruth(t *testing.T) {
	plain := []kv.Salt{{}}
	many := []kv.Salt{{}, {LoRA: "sql"}, {Namespace: "tenant-1"}, {LoRA: "sql", Namespace: "tenant-2"}}
	for _, c := range []struct {
		name   string
		engine engine
		form   int
	}{
		{"vllm arrays", engine{block: 4, ours: 4, salts: many, bare: true}, 0},
		{"vllm maps", engine{block: 4, ours: 4, salts: many}, 1},
		{"vllm joined", engine{block: 2, ours: 6, salts: many}, 1},
		{"sglang arrays", engine{block: 4, ours: 4, salts: many, salted: 1, negate: true, clears: ClearsAll}, 0},
		{"sglang maps", engine{block: 4, ours: 4, salts: many, salted: 1, negate: true}, 1},
		{"sglang pages of one", engine{block: 1, ours: 4, salts: plain, negate: true, clears: ClearsAll}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			told := 0
			for seed := range uint64(40) {
				told += follow(t, c.engine, c.form, seed)
			}
			if told < 1000 {
				t.Errorf("only %d blocks were ever there", told)
			}
		})
	}
}

func follow(t *testing.T, g engine, form int, seed uint64) (told int) {
	g.Rand = rand.New(rand.NewPCG(seed, 11))
	g.hashes = map[string]kv.EngineHash{}
	table, err := NewTable(Config{BlockSize: g.ours, EngineBlockSize: g.block, Clears: g.clears, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	f := follower{tierPrefixes: tierPrefixes{}, t: t}
	var dec Decoder
	var b Batch
	for step := range 60 {
		for range g.IntN(4) {
			switch k := g.IntN(40); {
			case k == 0:
				g.clear()
			case k < 16:
				g.serve()
			case k < 20:
				g.offload()
			default:
				for range 1 + g.IntN(3) {
					g.evict()
				}
			}
		}
		// The table does not know what the engine caches after a removed block.
		payload := g.flush(form)
		if err := dec.Decode(payload, &b); err != nil {
			t.Fatal(err)
		}
		f.apply(table.Apply(&b, nil))
		truth := g.truth()
		for tier := range truth {
			told += len(truth[tier])
		}
		s := table.Stats()
		if s.Orphans+s.Tokenless+s.Misaligned+s.Nameless+s.Partial+s.Refused > 0 {
			t.Fatalf("seed %d, step %d: something was left out: %+v", seed, step, s)
		}
		if !f.tierPrefixes.same(truth) {
			t.Fatalf("seed %d, step %d: told of\n%v, there is\n%v", seed, step, f.tierPrefixes, truth)
		}
		for tier := range kv.Tier(kv.Tiers) {
			if s.Blocks[tier] != len(truth[tier]) {
				t.Fatalf("seed %d, step %d: %d blocks on %v, there are %d", seed, step, s.Blocks[tier], tier, len(truth[tier]))
			}
		}
		again := follower{tierPrefixes: tierPrefixes{}, t: t}
		again.tierPrefixes.add(0, 1)
		description := table.Describe(nil)
		again.apply(description)
		parentsFirst(t, description)
		if !again.tierPrefixes.same(truth) {
			t.Fatalf("seed %d, step %d: described as\n%v, there is\n%v", seed, step, again.tierPrefixes, truth)
		}
	}
	return told
}

// TestUnchainedHashes: for an engine which hashes blocks from their own tokens only, nothing wrong is
// announced, and an error soon says that nothing can be known.
func TestUnchainedHashes(t *testing.T) {
	refused := 0
	for seed := range uint64(80) {
		per := 1 + int(seed%2)
		size := 3 + 4*int(seed/2%2)
		g := engine{block: size, ours: size * per, salts: []kv.Salt{{}}, negate: true, unchained: true, Rand: rand.New(rand.NewPCG(seed, 41)), hashes: map[string]kv.EngineHash{}}
		table := newTable(t, Config{BlockSize: g.ours, EngineBlockSize: g.block})
		f := follower{tierPrefixes: tierPrefixes{}, t: t}
		var dec Decoder
		var b Batch
		for step := range 40 {
			for range g.IntN(4) {
				if g.IntN(2) == 0 {
					g.serve()
				} else {
					g.evict()
				}
			}
			if err := dec.Decode(g.flush(0), &b); err != nil {
				t.Fatal(err)
			}
			f.apply(table.Apply(&b, nil))
			truth := g.truth()
			for seq := range f.tierPrefixes[kv.TierDevice] {
				if !truth[kv.TierDevice][seq] {
					t.Fatalf("seed %d, step %d: block %x is told of, and is not there", seed, step, seq)
				}
			}
		}
		if table.Err() != nil {
			refused++
			if table.Stats().Held > 0 {
				t.Fatal("something is held by names that are not trusted")
			}
			table.Clear(nil)
			if table.Err() != nil {
				t.Fatal("a new life of the engine is not trusted")
			}
		}
	}
	if refused == 0 {
		t.Error("such an engine is never refused")
	}
}

// parentsFirst checks the order of a description: no block comes after one which follows it.
func parentsFirst(t *testing.T, description []kv.Event) {
	t.Helper()
	told, passed := tierPrefixes{}, tierPrefixes{}
	for _, ev := range description {
		seq := ev.Parent
		if ev.Start > 0 && !told[ev.Tier][seq] {
			passed.add(ev.Tier, seq)
		}
		for i, b := range ev.Blocks {
			seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
			if passed[ev.Tier][seq] {
				t.Fatalf("%v block %x comes behind one that follows it", ev.Tier, seq)
			}
			told.add(ev.Tier, seq)
		}
	}
}

// TestDescribeDeep: a description is ordered even if few blocks are left of very long sequences.
func TestDescribeDeep(t *testing.T) {
	table := newTable(t, Config{BlockSize: 2})
	f := follower{tierPrefixes: tierPrefixes{}, t: t}
	const n = 20_000
	for i := range kv.EngineHash(n) {
		b := Batch{Events: []Event{newStore(i, i+1)}}
		if i%1000 > 1 && i < n-2 {
			b.Events = append(b.Events, newRemoval(i))
		}
		f.apply(table.Apply(&b, nil))
	}
	again := follower{tierPrefixes: tierPrefixes{}, t: t}
	description := table.Describe(nil)
	again.apply(description)
	parentsFirst(t, description)
	if !again.tierPrefixes.same(f.tierPrefixes) || len(f.tierPrefixes[kv.TierDevice]) < 20 || len(f.tierPrefixes[kv.TierDevice]) > 1000 {
		t.Errorf("%d blocks are described as %d", len(f.tierPrefixes[kv.TierDevice]), len(again.tierPrefixes[kv.TierDevice]))
	}
}

// TestSaltsAreGivenBack: a salt is dropped with its last block.
func TestSaltsAreGivenBack(t *testing.T) {
	table := newTable(t, Config{BlockSize: 2})
	for i := range 200_000 {
		h := kv.EngineHash(i + 1)
		b := Batch{Events: []Event{
			{Kind: Stored, Hashes: []kv.EngineHash{h}, Tokens: []kv.Token{1, 2}, BlockSize: 2, Group: -1, Salt: fmt.Sprint(i)},
			{Kind: Removed, Hashes: []kv.EngineHash{h}, Group: -1},
		}}
		if got := table.Apply(&b, nil); len(got) != 2 {
			t.Fatalf("salt %d: %v", i, got)
		}
	}
	if s := table.Stats(); s.Bytes > 1<<20 || s.Held != 0 {
		t.Errorf("%+v", s)
	}
}

func newTable(t testing.TB, cfg Config) *Table {
	t.Helper()
	table, err := NewTable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return table
}
