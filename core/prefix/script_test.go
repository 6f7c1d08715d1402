package prefix

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// block returns the hash of a block named in a script.
func block(name string) kv.BlockHash {
	h := fnv.New64a()
	h.Write([]byte(name))
	return kv.BlockHash(h.Sum64())
}

// blocks returns the hashes of the blocks of a path such as a/b/c.
func blocks(path string) []kv.BlockHash {
	var out []kv.BlockHash
	for name := range strings.SplitSeq(path, "/") {
		out = append(out, block(name))
	}
	return out
}

// chain returns the SeqHash of every prefix of path.
func chain(path string) []kv.SeqHash {
	if path == "" {
		return nil
	}
	var out []kv.SeqHash
	var seq kv.SeqHash
	for i, b := range blocks(path) {
		seq = kv.Extend(seq, uint32(i), b)
		out = append(out, seq)
	}
	return out
}

// seqOf returns the SeqHash of the whole path.
func seqOf(path string) kv.SeqHash {
	c := chain(path)
	return c[len(c)-1]
}

// stored returns the event of path being stored after parent ("" for none).
func stored(parent, path string, tier kv.Tier) kv.Event {
	ev := kv.Event{Kind: kv.Stored, Tier: tier, Blocks: blocks(path)}
	if parent != "" {
		ev.Start, ev.Parent = uint32(len(chain(parent))), seqOf(parent)
	}
	return ev
}

// matched returns the overlaps of a prompt.
func matched(x *Index, chain []kv.SeqHash) []kv.Overlap {
	var m Match
	x.Match(&m, chain, nil)
	return m.AppendOverlaps(nil)
}

func removed(tier kv.Tier, paths ...string) kv.Event {
	ev := kv.Event{Kind: kv.Removed, Tier: tier}
	for _, p := range paths {
		ev.Seqs = append(ev.Seqs, seqOf(p))
	}
	return ev
}

// fataler is what testing.TB and rapid.T have in common here.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

func mustNew(t fataler, cfg Config) *Index {
	t.Helper()
	x, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestScripts runs the golden scripts. Their commands, one per line:
//
//	store W PATH [TIER]            the blocks of PATH from the start
//	store W PARENT+PATH [TIER]     the blocks of PATH after PARENT
//	remove W PATH... [TIER]
//	clear W
//	drop W
//	match PATH
//
// A worker is ID or ID.RANK, a tier @device (the default), @host, @disk or @pool.
// Every script ends with what changed in the counts.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		x := mustNew(t, Config{})
		names := map[kv.SeqHash]string{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				var bound int
				d.MaybeScanArgs(t, "max-blocks", &bound)
				x = mustNew(t, Config{MaxBlocks: bound})
				return ""
			case "run":
				return runScript(t, x, names, d.Input)
			case "dump":
				return dump(x, names)
			}
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

func runScript(t *testing.T, x *Index, names map[kv.SeqHash]string, input string) string {
	var out strings.Builder
	before := x.Stats().Counts
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		f := strings.Fields(line)
		tier := kv.TierDevice
		if last := f[len(f)-1]; last[0] == '@' {
			tier, f = parseTier(t, last), f[:len(f)-1]
		}
		switch f[0] {
		case "store":
			parent, path, ok := strings.Cut(f[2], "+")
			if !ok {
				parent, path = "", f[2]
			}
			whole := strings.Trim(parent+"/"+path, "/")
			for i, seq := range chain(whole) {
				names[seq] = strings.Join(strings.Split(whole, "/")[:i+1], "/")
			}
			x.Apply(parseWorker(t, f[1]), stored(parent, path, tier))
		case "remove":
			x.Apply(parseWorker(t, f[1]), removed(tier, f[2:]...))
		case "clear":
			x.Apply(parseWorker(t, f[1]), kv.Event{Kind: kv.Cleared})
		case "drop":
			fmt.Fprintf(&out, "%s: %t\n", line, x.Drop(parseWorker(t, f[1])))
		case "match":
			fmt.Fprintf(&out, "%s:%s\n", line, overlaps(matched(x, chain(f[1]))))
		default:
			t.Fatalf("unknown line %q", line)
		}
		if err := x.Check(); err != nil {
			t.Fatalf("after %q: %v", line, err)
		}
	}
	fmt.Fprint(&out, changes(before, x.Stats().Counts))
	return out.String()
}

func parseWorker(t *testing.T, s string) kv.Worker {
	id, rank, _ := strings.Cut(s, ".")
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	w := kv.Worker{ID: kv.WorkerID(n)}
	if rank != "" {
		r, err := strconv.ParseUint(rank, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		w.Rank = uint32(r)
	}
	return w
}

func parseTier(t *testing.T, s string) kv.Tier {
	for tier := range kv.Tier(kv.Tiers) {
		if s == "@"+tier.String() {
			return tier
		}
	}
	t.Fatalf("unknown tier %s", s)
	return 0
}

func overlaps(list []kv.Overlap) string {
	var out strings.Builder
	for _, o := range list {
		fmt.Fprintf(&out, " %d", o.Worker.ID)
		if o.Worker.Rank != 0 {
			fmt.Fprintf(&out, ".%d", o.Worker.Rank)
		}
		fmt.Fprintf(&out, "=%d", o.Blocks[0])
		for t := kv.TierHost; t < kv.Tiers; t++ {
			if o.Blocks[t] > 0 {
				fmt.Fprintf(&out, "+%d@%s", o.Blocks[t], t)
			}
		}
	}
	return out.String()
}

func changes(a, b Counts) string {
	var out strings.Builder
	for _, c := range []struct {
		name string
		n    uint64
	}{
		{"stored", b.Stored - a.Stored},
		{"duplicates", b.Duplicates - a.Duplicates},
		{"removed", b.Removed - a.Removed},
		{"unknown", b.Unknown - a.Unknown},
		{"refused", b.Refused - a.Refused},
		{"orphans", b.Orphans - a.Orphans},
		{"clears", b.Clears - a.Clears},
	} {
		if c.n > 0 {
			fmt.Fprintf(&out, " %s=%d", c.name, c.n)
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return "counts:" + out.String() + "\n"
}

func dump(x *Index, names map[kv.SeqHash]string) string {
	var out strings.Builder
	s := x.Stats()
	fmt.Fprintf(&out, "workers=%d blocks=%d entries=%d\n", s.Workers, s.Blocks, s.Entries)
	for _, w := range x.AppendWorkers(nil) {
		fmt.Fprintf(&out, "%d.%d (%d):", w.ID, w.Rank, x.Held(w))
		var lines []string
		for _, b := range x.AppendBlocks(nil, w) {
			lines = append(lines, fmt.Sprintf(" %s@%s", names[b.Seq], b.Tier))
		}
		// By name instead of by hash, for the reader.
		slices.Sort(lines)
		out.WriteString(strings.Join(lines, "") + "\n")
	}
	return out.String()
}
