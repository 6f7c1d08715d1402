package prefix

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

// naive is the index as anyone would write it: for each worker and tier the set
// of paths, by name and not by hash.
type naive map[kv.Worker]*[kv.Tiers]map[string]bool

func (n naive) tiers(w kv.Worker) *[kv.Tiers]map[string]bool {
	if n[w] == nil {
		n[w] = &[kv.Tiers]map[string]bool{}
		for t := range n[w] {
			n[w][t] = map[string]bool{}
		}
	}
	return n[w]
}

func (n naive) store(w kv.Worker, t kv.Tier, parent, path string) {
	at := parent
	for name := range strings.SplitSeq(path, "/") {
		at = strings.Trim(at+"/"+name, "/")
		n.tiers(w)[t][at] = true
	}
}

// match counts, for each worker, the leading prefixes of path that tiers up to
// each one cover.
func (n naive) match(path string) []kv.Overlap {
	var out []kv.Overlap
	names := strings.Split(path, "/")
	for w, tiers := range n {
		o := kv.Overlap{Worker: w}
		faster := 0
		for slowest := range kv.Tiers {
			depth := 0
			for ; depth < len(names); depth++ {
				prefix, on := strings.Join(names[:depth+1], "/"), false
				for t := 0; t <= slowest; t++ {
					on = on || tiers[t][prefix]
				}
				if !on {
					break
				}
			}
			o.Blocks[slowest] = depth - faster
			faster = depth
		}
		if faster > 0 {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b kv.Overlap) int { return a.Worker.Compare(b.Worker) })
	return out
}

// blocks lists what w holds, as AppendBlocks does.
func (n naive) blocks(w kv.Worker) []Block {
	var out []Block
	if n[w] == nil {
		return nil
	}
	for t, paths := range n[w] {
		for p := range paths {
			out = append(out, Block{Seq: seqOf(p), Tier: kv.Tier(t)})
		}
	}
	slices.SortFunc(out, func(a, b Block) int {
		if a.Seq != b.Seq {
			if a.Seq < b.Seq {
				return -1
			}
			return 1
		}
		return int(a.Tier) - int(b.Tier)
	})
	return out
}

// agrees drives an Index and its naive twin with the same events, which include
// orphans, duplicates, removals in the middle and of what is not there, and
// compares all that can be asked after each.
func agrees(t *rapid.T) {
	x, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	n := naive{}
	workers := rapid.SampledFrom([]kv.Worker{{ID: 9}, {ID: 2}, {ID: 2, Rank: 1}, {ID: 5}})
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 5).Draw(t, "names"), "/")
	})
	tier := rapid.SampledFrom([]kv.Tier{kv.TierDevice, kv.TierDevice, kv.TierDevice, kv.TierHost, kv.TierDisk, kv.TierPool})
	known := map[kv.Worker]bool{}
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := x.Check(); err != nil {
				t.Fatal(err)
			}
			prompt := path.Draw(t, "prompt")
			if diff := cmp.Diff(n.match(prompt), x.match(nil, chain(prompt))); diff != "" {
				t.Fatalf("match %s: -naive +index\n%s", prompt, diff)
			}
			w := workers.Draw(t, "asked")
			if diff := cmp.Diff(n.blocks(w), x.AppendBlocks(nil, w)); diff != "" {
				t.Fatalf("blocks of %v: -naive +index\n%s", w, diff)
			}
			if len(x.AppendWorkers(nil)) != len(known) {
				t.Fatalf("workers %v, want %v", x.AppendWorkers(nil), known)
			}
		},
		"store": func(t *rapid.T) {
			w, on, p := workers.Draw(t, "worker"), tier.Draw(t, "tier"), path.Draw(t, "path")
			parent := ""
			if rapid.Bool().Draw(t, "has parent") {
				parent = path.Draw(t, "parent")
			}
			x.Apply(w, stored(parent, p, on))
			n.store(w, on, parent, p)
			known[w] = true
		},
		"remove": func(t *rapid.T) {
			w, on := workers.Draw(t, "worker"), tier.Draw(t, "tier")
			paths := rapid.SliceOfN(path, 1, 3).Draw(t, "paths")
			x.Apply(w, removed(on, paths...))
			for _, p := range paths {
				delete(n.tiers(w)[on], p)
			}
			known[w] = true
		},
		"clear": func(t *rapid.T) {
			w := workers.Draw(t, "worker")
			x.Apply(w, kv.Event{Kind: kv.Cleared})
			delete(n, w)
			known[w] = true
		},
		"drop": func(t *rapid.T) {
			w := workers.Draw(t, "worker")
			if got := x.Drop(w); got != known[w] {
				t.Fatalf("drop %v: %t, want %t", w, got, known[w])
			}
			delete(n, w)
			delete(known, w)
		},
	})
}

func TestIndexAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees) }

func FuzzIndex(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agrees)) }
