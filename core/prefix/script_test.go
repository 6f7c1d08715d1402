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

// block returns the hash of the block with a name in a script.
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
		seq = kv.ExtendSeq(seq, uint32(i), b)
		out = append(out, seq)
	}
	return out
}

// seqOf returns the SeqHash of the whole path.
func seqOf(path string) kv.SeqHash {
	c := chain(path)
	return c[len(c)-1]
}

// stored returns the event which stores path after parent ("" for none).
func stored(parent, path string, tier kv.Tier) kv.Event {
	ev := kv.Event{Kind: kv.Stored, Tier: tier, Blocks: blocks(path)}
	if parent != "" {
		ev.Start, ev.Parent = uint32(len(chain(parent))), seqOf(parent)
	}
	return ev
}

// matched returns the overlaps of a prompt.
func matched(x *Index, chain []kv.SeqHash, moe *kv.MoEQuery) []kv.Overlap {
	var m Match
	x.Match(&m, chain, moe)
	return m.AppendOverlaps(nil)
}

// fataler is the common part of testing.TB and rapid.T which is used here.
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
//	label W PATH LAYER.EXPERT[.GROUP]  store, with labels
//	remove W PATH... [TIER]        the last block of each PATH
//	evict W PATH FROM TO [TIER]    the blocks of PATH at FROM to TO, counted from 1
//	clear W, drop W, hide W, show W
//	access POOL W...
//	place POOL [LAYER.EXPERT[.GROUP]:]PATH..., displace POOL PATH..., droppool POOL
//	reload                         go on with what a snapshot says
//	match PATH
//	moe LAYER.EXPERT[.GROUP] PATH  match, with labels
//	held W, size
//
// A path may have ranges: 1..4 is 1/2/3/4. A worker is ID or ID.RANK, a tier @device (the
// default), @host, @disk or @pool. Every script ends with what changed in the counts.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{x: mustNew(t, Config{}), names: map[kv.SeqHash]string{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				var cfg Config
				d.MaybeScanArgs(t, "max-blocks", &cfg.MaxBlocks)
				d.MaybeScanArgs(t, "max-bytes", &cfg.MaxBytes)
				s.x = mustNew(t, cfg)
				return ""
			case "run":
				return s.run(t, d.Input)
			case "dump":
				return dump(s.x, s.names)
			}
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			return ""
		})
	})
}

type script struct {
	x     *Index
	names map[kv.SeqHash]string
	out   strings.Builder
}

func (s *script) run(t *testing.T, input string) string {
	s.out.Reset()
	before := s.x.Stats().Counts
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		f := strings.Fields(line)
		tier := kv.TierDevice
		if last := f[len(f)-1]; last[0] == '@' {
			tier, f = parseTier(t, last), f[:len(f)-1]
		}
		x := s.x
		s.line(t, line, f[0], f[1:], tier)
		if err := s.x.Check(); err != nil {
			t.Fatalf("after %q: %v", line, err)
		}
		if s.x != x { // reloaded: counts start at 0
			before = Counts{}
		}
	}
	fmt.Fprint(&s.out, changes(before, s.x.Stats().Counts))
	return s.out.String()
}

func (s *script) line(t *testing.T, line, cmd string, f []string, tier kv.Tier) {
	switch cmd {
	case "store", "label":
		s.x.ApplyEvent(parseWorker(t, f[0]), s.stored(t, f[1:], tier))
	case "remove":
		s.x.ApplyEvent(parseWorker(t, f[0]), kv.Event{Kind: kv.Removed, Tier: tier, Seqs: seqsOf(f[1:])})
	case "evict":
		from, to := parseInt(t, f[2]), parseInt(t, f[3])
		s.x.ApplyEvent(parseWorker(t, f[0]), kv.Event{Kind: kv.Removed, Tier: tier, Seqs: chain(expand(f[1]))[from-1 : to]})
	case "clear":
		s.x.ApplyEvent(parseWorker(t, f[0]), kv.Event{Kind: kv.Cleared})
	case "drop":
		fmt.Fprintf(&s.out, "%s: %t\n", line, s.x.DropWorker(parseWorker(t, f[0])))
	case "hide":
		s.x.HideWorker(parseWorker(t, f[0]))
	case "show":
		s.x.ShowWorker(parseWorker(t, f[0]))
	case "access":
		var workers []kv.Worker
		for _, w := range f[1:] {
			workers = append(workers, parseWorker(t, w))
		}
		s.x.SetAccess(kv.PoolShare(parseInt(t, f[0])), workers)
	case "place":
		var labels []kv.MoELabel
		for i := 1; i < len(f); i++ {
			l := kv.MoELabel{}
			if label, path, ok := strings.Cut(f[i], ":"); ok {
				l, f[i] = parseLabel(t, label), path
			}
			labels = append(labels, l)
		}
		fmt.Fprintf(&s.out, "%s: %d\n", line, s.x.AddToPool(kv.PoolShare(parseInt(t, f[0])), seqsOf(f[1:]), labels))
	case "displace":
		s.x.RemoveFromPool(kv.PoolShare(parseInt(t, f[0])), seqsOf(f[1:]))
	case "droppool":
		s.x.DropPool(kv.PoolShare(parseInt(t, f[0])))
	case "reload":
		data := s.x.AppendSnapshot(nil)
		s.x = mustNew(t, Config{})
		if err := s.x.LoadSnapshot(data); err != nil {
			t.Fatal(err)
		}
	case "match":
		fmt.Fprintf(&s.out, "%s:%s\n", line, overlaps(matched(s.x, chain(expand(f[0])), nil)))
	case "moe":
		l := parseLabel(t, f[0])
		q := &kv.MoEQuery{Layer: l.Layer, Experts: []uint32{l.Expert}, Group: l.Group, HasGroup: l.Has&kv.HasGroup != 0}
		fmt.Fprintf(&s.out, "%s:%s\n", line, overlaps(matched(s.x, chain(expand(f[1])), q)))
	case "held":
		fmt.Fprintf(&s.out, "%s: %d\n", line, s.x.HeldBlocks(parseWorker(t, f[0])))
	case "size":
		st := s.x.Stats()
		fmt.Fprintf(&s.out, "%s: workers=%d blocks=%d entries=%d pooled=%d ghosts=%d\n", line, st.Workers, st.Blocks, st.Entries, st.Pooled, st.Ghosts)
	default:
		t.Fatalf("unknown line %q", line)
	}
}

// stored returns the event for a path, PARENT+PATH or PATH, with its label if there is one.
func (s *script) stored(t *testing.T, f []string, tier kv.Tier) kv.Event {
	parent, path, ok := strings.Cut(expand(f[0]), "+")
	if !ok {
		parent, path = "", parent
	}
	whole := strings.Trim(parent+"/"+path, "/")
	for i, seq := range chain(whole) {
		s.names[seq] = strings.Join(strings.Split(whole, "/")[:i+1], "/")
	}
	ev := stored(parent, path, tier)
	if len(f) > 1 {
		for range ev.Blocks {
			ev.Labels = append(ev.Labels, parseLabel(t, f[1]))
		}
	}
	return ev
}

// expand expands the ranges of a path.
func expand(path string) string {
	var out []string
	for _, side := range strings.Split(path, "+") {
		var names []string
		for name := range strings.SplitSeq(side, "/") {
			from, to, ok := strings.Cut(name, "..")
			if !ok {
				names = append(names, name)
				continue
			}
			first, _ := strconv.Atoi(from)
			last, _ := strconv.Atoi(to)
			for i := first; i <= last; i++ {
				names = append(names, strconv.Itoa(i))
			}
		}
		out = append(out, strings.Join(names, "/"))
	}
	return strings.Join(out, "+")
}

func seqsOf(paths []string) []kv.SeqHash {
	var out []kv.SeqHash
	for _, p := range paths {
		out = append(out, seqOf(expand(p)))
	}
	return out
}

func parseInt(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parseLabel parses LAYER.EXPERT or LAYER.EXPERT.GROUP; "none" is no label.
func parseLabel(t *testing.T, s string) kv.MoELabel {
	if s == "none" {
		return kv.MoELabel{}
	}
	f := strings.Split(s, ".")
	l := kv.MoELabel{Has: kv.HasExpert, Layer: uint32(parseInt(t, f[0])), Expert: uint32(parseInt(t, f[1]))}
	if len(f) > 2 {
		l.Has |= kv.HasGroup
		l.Group = uint32(parseInt(t, f[2]))
	}
	return l
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
		if o.Attachable > 0 {
			fmt.Fprintf(&out, "(%d attachable)", o.Attachable)
		}
		if o.Labelled > 0 {
			fmt.Fprintf(&out, "(%d labelled)", o.Labelled)
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
		fmt.Fprintf(&out, "%d.%d (%d):", w.ID, w.Rank, x.HeldBlocks(w))
		var lines []string
		for _, b := range x.AppendBlocks(nil, w) {
			lines = append(lines, fmt.Sprintf(" %s@%s", names[b.Seq], b.Tier))
		}
		// Ordered by name instead of by hash, for the reader.
		slices.Sort(lines)
		out.WriteString(strings.Join(lines, "") + "\n")
	}
	return out.String()
}
