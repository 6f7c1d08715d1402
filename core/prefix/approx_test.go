package prefix

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

var (
	one   = kv.Worker{ID: 1}
	other = kv.Worker{ID: 1, Rank: 1}
	two   = kv.Worker{ID: 2}
)

func newApprox(t testing.TB, cfg ApproxConfig) *Approx {
	t.Helper()
	a, err := NewApprox(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func send(t testing.TB, a *Approx, at time.Duration, w kv.Worker, path string) {
	t.Helper()
	a.RecordSent(kv.Mono(at), w, chain(path))
}

// believed returns the predictions for a prompt, as "1:3 2:1" for worker:blocks.
func believed(a *Approx, path string) string {
	var m Match
	a.Match(&m, chain(path), nil)
	var out []string
	for _, o := range m.AppendOverlaps(nil) {
		name := fmt.Sprint(o.Worker.ID)
		if o.Worker.Rank > 0 {
			name += fmt.Sprint(".", o.Worker.Rank)
		}
		out = append(out, fmt.Sprint(name, ":", o.Depth()))
	}
	return strings.Join(out, " ")
}

func wantBelieved(t *testing.T, a *Approx, path, want string) {
	t.Helper()
	if got := believed(a, path); got != want {
		t.Errorf("of %s %q is believed, want %q", path, got, want)
	}
	if err := a.Check(); err != nil {
		t.Error(err)
	}
}

func TestApproxDecisionCreatesMatch(t *testing.T) {
	a := newApprox(t, ApproxConfig{})
	wantBelieved(t, a, "a/b/c", "")
	send(t, a, 0, one, "a/b/c")
	send(t, a, 0, two, "a/x")
	wantBelieved(t, a, "a/b/c", "1:3 2:1")
	wantBelieved(t, a, "a/b/c/d", "1:3 2:1")
	wantBelieved(t, a, "b", "")
}

func TestApproxTTLRemoves(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
	send(t, a, 0, one, "a/b")
	send(t, a, 30*time.Second, one, "a/c")
	a.ExpireBlocks(kv.Mono(64*time.Second - 1))
	wantBelieved(t, a, "a/b", "1:2")
	a.ExpireBlocks(kv.Mono(66 * time.Second))
	wantBelieved(t, a, "a/b", "1:1")
	wantBelieved(t, a, "a/c", "1:2")
	a.ExpireBlocks(kv.Mono(time.Hour))
	wantBelieved(t, a, "a/c", "")
	if st := a.Stats(); st.Entries != 0 || st.Workers != 0 || st.EntryBytes != 0 || st.Totals.Expired != 3 {
		t.Errorf("what is left: %+v", st)
	}
}

func TestApproxInsertRefreshes(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
	for at := time.Duration(0); at < 10*time.Minute; at += 60 * time.Second {
		send(t, a, at, one, "a/b")
		wantBelieved(t, a, "a/b", "1:2")
	}
	if c := a.Stats().Totals; c.Inserted != 2 || c.Refreshed != 18 || c.Expired != 0 {
		t.Errorf("totals %+v", c)
	}
}

// TestApproxDropCleansTimers: after a worker, or a rank, is dropped nothing of it is left to expire, and it
// starts without predictions when it returns.
func TestApproxDropCleansTimers(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
	send(t, a, 0, one, "a/b")
	send(t, a, 0, other, "a/b/c")
	send(t, a, 0, two, "a")
	if !a.DropWorker(other) || a.DropWorker(other) {
		t.Error("a rank was not dropped once")
	}
	wantBelieved(t, a, "a/b/c", "1:2 2:1")
	a.DropWorker(one)
	wantBelieved(t, a, "a/b/c", "2:1")
	send(t, a, 32*time.Second, one, "a")
	a.ExpireBlocks(kv.Mono(70 * time.Second))
	wantBelieved(t, a, "a/b/c", "1:1")
	if c := a.Stats().Totals; c.Expired != 1 {
		t.Errorf("%d blocks expired, want the one of worker 2", c.Expired)
	}
}

func TestApproxPrunesSoonestThenDeepest(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second, MaxBlocks: 10})
	send(t, a, 0, one, "o/l/d")
	send(t, a, 20*time.Second, two, "a/b/c/d/e")
	send(t, a, 40*time.Second, one, "o") // used again: now the newest of its prompt
	wantBelieved(t, a, "o/l/d", "1:3")
	send(t, a, 40*time.Second, one, "x/y/z") // 11: evicts down to 8
	wantBelieved(t, a, "o/l/d", "1:1")
	wantBelieved(t, a, "a/b/c/d/e", "2:4")
	wantBelieved(t, a, "x/y/z", "1:3")
	if st := a.Stats(); st.Entries != 8 || st.Totals.Pruned != 3 {
		t.Errorf("%d blocks are left, %d were pruned", st.Entries, st.Totals.Pruned)
	}
}

func report(t testing.TB, a *Approx, at time.Duration, w kv.Worker, path string, predicted, held int) {
	t.Helper()
	a.RecordReport(kv.Mono(at), w, chain(path), predicted, held)
}

// TestApproxReport: reports of cached blocks are compared with the predictions.
func TestApproxReport(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
	send(t, a, 0, one, "a/b/c/d")
	send(t, a, 0, two, "a/b/c/d")
	report(t, a, 0, one, "a/b/c/d", 4, 0) // it may not support reports
	wantBelieved(t, a, "a/b/c/d", "1:4 2:4")
	report(t, a, 0, one, "a/b/c/d", 4, 4)
	report(t, a, 0, kv.Worker{ID: 9}, "a", 1, 0)
	wantBelieved(t, a, "a/b/c/d", "1:4 2:4")
	report(t, a, 0, one, "a/b/c/d", 4, 1)
	wantBelieved(t, a, "a/b/c/d", "1:1 2:4")
	report(t, a, 0, one, "a/b/c/d", 4, 0)
	wantBelieved(t, a, "a/b/c/d", "2:4")
	report(t, a, 0, one, "a/b/c/d", 0, 3) // more than predicted
	wantBelieved(t, a, "a/b/c/d", "1:4 2:4")
}

func TestApproxRefute(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
	send(t, a, 0, one, "a/b/c/d")
	send(t, a, 0, two, "a/b/c/d")
	report(t, a, 0, one, "a/b/c/d", 4, 1)
	wantBelieved(t, a, "a/b/c/d", "1:1 2:4")
	send(t, a, 32*time.Second, one, "a/b/c") // recomputed
	wantBelieved(t, a, "a/b/c/d", "1:3 2:4")
	a.ExpireBlocks(kv.Mono(70 * time.Second))
	wantBelieved(t, a, "a/b/c/d", "1:3")
	if c := a.Stats().Totals; c.Refuted != 3 || c.Expired != 4 {
		t.Errorf("totals %+v", c)
	}
}

func TestApproxRetract(t *testing.T) {
	a := newApprox(t, ApproxConfig{})
	send(t, a, 0, one, "a/b/c")
	send(t, a, 0, two, "a/b/c")
	for _, ev := range []kv.Event{
		{Kind: kv.Removed, Tier: kv.TierHost, Seqs: chain("a/b")},
		{Kind: kv.Stored, Blocks: blocks("a")},
		{Kind: kv.Removed, Seqs: chain("x")},
	} {
		a.RetractEvent(one, &ev)
	}
	wantBelieved(t, a, "a/b/c", "1:3 2:3")
	gone := kv.Event{Kind: kv.Removed, Seqs: chain("a/b")[1:]}
	a.RetractEvent(one, &gone)
	wantBelieved(t, a, "a/b/c", "1:1 2:3")
	a.RetractEvent(two, &kv.Event{Kind: kv.Cleared})
	a.RetractEvent(kv.Worker{ID: 9}, &gone)
	wantBelieved(t, a, "a/b/c", "1:1")
}

// TestApproxSweepsRefuted: blocks which are refuted again and again take no memory, and affect neither the
// predictions for the rest nor the time.
func TestApproxSweepsRefuted(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second, MaxBlocks: 40})
	send(t, a, 0, one, "a/b/c/d/e")
	a.RetractEvent(one, &kv.Event{Kind: kv.Removed, Seqs: chain("a/b/c")[1:2]})
	swept := false
	for i := range 100 {
		path := fmt.Sprintf("x%d/y/z", i)
		send(t, a, 0, one, path)
		a.RetractEvent(one, &kv.Event{Kind: kv.Removed, Seqs: chain(path)[1:]})
		before := a.runBlocks
		a.RetractEvent(one, &kv.Event{Kind: kv.Removed, Seqs: chain(path)[:1]})
		swept = swept || a.runBlocks < before
		if n := a.runBlocks; n > 100 {
			t.Fatalf("%d blocks are kept after %d refuted prompts", n, i+1)
		}
	}
	if !swept {
		t.Fatal("nothing was swept")
	}
	wantBelieved(t, a, "a/b/c/d/e", "1:1")
	send(t, a, 20*time.Second, one, "a/b") // the blocks after it were never refuted
	wantBelieved(t, a, "a/b/c/d/e", "1:5")
	send(t, a, 30*time.Second, one, "a/b/c/x")
	wantBelieved(t, a, "a/b/c/d/e", "1:5")
	a.ExpireBlocks(kv.Mono(70 * time.Second))
	wantBelieved(t, a, "a/b/c/d/e", "1:3")
	wantBelieved(t, a, "a/b/c/x", "1:4")
}

// TestApproxEndsRefuted: a prompt which is refuted completely, in order or in reverse, is not kept.
func TestApproxEndsRefuted(t *testing.T) {
	for _, turned := range []bool{false, true} {
		a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
		send(t, a, 0, one, "a/b")
		send(t, a, 0, one, "a/b/c/d/e")
		send(t, a, 0, one, "x")
		gone := chain("a/b/c/d/e")[2:]
		if turned {
			slices.Reverse(gone)
		}
		a.RetractEvent(one, &kv.Event{Kind: kv.Removed, Seqs: gone})
		if a.runBlocks != 3 {
			t.Errorf("turned %v: %d blocks are kept", turned, a.runBlocks)
		}
		wantBelieved(t, a, "a/b/c/d/e", "1:2")
		send(t, a, 30*time.Second, one, "a/b/c/d")
		wantBelieved(t, a, "a/b/c/d/e", "1:4")
		a.ExpireBlocks(kv.Mono(70 * time.Second))
		wantBelieved(t, a, "x", "")
		wantBelieved(t, a, "a/b/c/d/e", "1:4")
		a.ExpireBlocks(kv.Mono(100 * time.Second))
		if st := a.Stats(); st.EntryBytes != 0 || a.runBlocks != 0 {
			t.Errorf("turned %v: what is left: %+v", turned, st)
		}
	}
}

// TestApproxEndsRefutedBefore: blocks after a completely refuted prompt are found when the prompt is sent
// again.
func TestApproxEndsRefutedBefore(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
	send(t, a, 0, one, "a/b")
	send(t, a, 0, one, "a/b/c/d")
	a.RetractEvent(one, &kv.Event{Kind: kv.Removed, Seqs: chain("a/b")})
	wantBelieved(t, a, "a/b/c/d", "")
	send(t, a, 30*time.Second, one, "a/b/c")
	wantBelieved(t, a, "a/b/c/d", "1:4")
	a.ExpireBlocks(kv.Mono(70 * time.Second))
	wantBelieved(t, a, "a/b/c/d", "1:3")
}

// TestApproxIsNoEventIndex: entries from events do not expire, whatever is predicted for the worker.
func TestApproxIsNoEventIndex(t *testing.T) {
	x, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	x.ApplyEvent(one, stored("", "a/b", kv.TierDevice))
	a := newApprox(t, ApproxConfig{TTL: 2 * time.Second})
	send(t, a, 0, one, "a/b/c")
	together := func() []kv.Overlap {
		var known, predicted Match
		x.Match(&known, chain("a/b/c"), nil)
		a.Match(&predicted, chain("a/b/c"), nil)
		return AppendLarger(nil, known.AppendOverlaps(nil), predicted.AppendOverlaps(nil))
	}
	if got := together(); len(got) != 1 || got[0].Blocks != [kv.Tiers]int{3} {
		t.Errorf("at once: %+v", got)
	}
	a.ExpireBlocks(kv.Mono(time.Hour))
	if got := together(); len(got) != 1 || got[0].Blocks != [kv.Tiers]int{2} {
		t.Errorf("an hour later: %+v", got)
	}
}

func TestAppendLarger(t *testing.T) {
	known := []kv.Overlap{
		{Worker: kv.Worker{ID: 1}, Blocks: [kv.Tiers]int{2, 3, 0, 1}, Attachable: 1, Labelled: 2},
		{Worker: kv.Worker{ID: 3}, Blocks: [kv.Tiers]int{5}},
		{Worker: kv.Worker{ID: 4}, Blocks: [kv.Tiers]int{1}},
	}
	predicted := []kv.Overlap{
		{Worker: kv.Worker{ID: 1}, Blocks: [kv.Tiers]int{4}},
		{Worker: kv.Worker{ID: 2}, Blocks: [kv.Tiers]int{7}},
		{Worker: kv.Worker{ID: 3}, Blocks: [kv.Tiers]int{2}},
	}
	want := []kv.Overlap{
		{Worker: kv.Worker{ID: 1}, Blocks: [kv.Tiers]int{4, 1, 0, 1}, Attachable: 1, Labelled: 2},
		{Worker: kv.Worker{ID: 2}, Blocks: [kv.Tiers]int{7}},
		{Worker: kv.Worker{ID: 3}, Blocks: [kv.Tiers]int{5}},
		{Worker: kv.Worker{ID: 4}, Blocks: [kv.Tiers]int{1}},
	}
	if diff := gocmp.Diff(want, AppendLarger(nil, known, predicted)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// naiveApprox is the simplest possible Approx.
type naiveApprox struct {
	ttl, tick time.Duration
	most      int
	due       map[kv.Worker]map[string]int64
}

type naiveBelief struct {
	worker kv.Worker
	path   string
	due    int64
}

func (n *naiveApprox) all() []naiveBelief {
	var all []naiveBelief
	for w, paths := range n.due {
		for p, due := range paths {
			all = append(all, naiveBelief{w, p, due})
		}
	}
	slices.SortFunc(all, func(a, b naiveBelief) int {
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(strings.Count(b.path, "/"), strings.Count(a.path, "/")),
			a.worker.Compare(b.worker), cmp.Compare(seqOf(a.path), seqOf(b.path)))
	})
	return all
}

func (n *naiveApprox) insert(now time.Duration, w kv.Worker, path string) {
	n.expire(now)
	if n.due[w] == nil {
		n.due[w] = map[string]int64{}
	}
	names := strings.Split(path, "/")
	for i := range names {
		n.due[w][strings.Join(names[:i+1], "/")] = int64((now+n.ttl)/n.tick) + 1
	}
	if all := n.all(); len(all) > n.most {
		for _, b := range all[:len(all)-(n.most-n.most/5)] {
			delete(n.due[b.worker], b.path)
		}
	}
}

func (n *naiveApprox) expire(now time.Duration) {
	for _, paths := range n.due {
		for p, due := range paths {
			if due <= int64(now/n.tick) {
				delete(paths, p)
			}
		}
	}
}

func (n *naiveApprox) refute(w kv.Worker, path string, held int) {
	names := strings.Split(path, "/")
	for i := range names {
		if i >= held {
			delete(n.due[w], strings.Join(names[:i+1], "/"))
		}
	}
}

func (n *naiveApprox) believed(path string) string {
	var out []string
	names := strings.Split(path, "/")
	for _, w := range []kv.Worker{one, other, two} {
		depth := 0
		for depth < len(names) && n.due[w][strings.Join(names[:depth+1], "/")] != 0 {
			depth++
		}
		name := fmt.Sprint(w.ID)
		if w.Rank > 0 {
			name += fmt.Sprint(".", w.Rank)
		}
		if depth > 0 {
			out = append(out, fmt.Sprint(name, ":", depth))
		}
	}
	return strings.Join(out, " ")
}

// approxAgrees runs the same decisions, reports and pauses on an Approx and its naive twin, and compares
// their predictions after each.
func approxAgrees(t *rapid.T) {
	most := rapid.SampledFrom([]int{1, 4, 9, 40, 1000}).Draw(t, "max blocks")
	a, err := NewApprox(ApproxConfig{TTL: 64 * time.Second, MaxBlocks: most})
	if err != nil {
		t.Fatal(err)
	}
	n := &naiveApprox{ttl: 64 * time.Second, tick: time.Second, most: most, due: map[kv.Worker]map[string]int64{}}
	workers := rapid.SampledFrom([]kv.Worker{one, other, two})
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 6).Draw(t, "names"), "/")
	})
	var now time.Duration
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
			prompt := path.Draw(t, "prompt")
			if got, want := believed(a, prompt), n.believed(prompt); got != want {
				t.Fatalf("of %s %q is believed, the twin believes %q", prompt, got, want)
			}
			if got, want := a.Stats().Entries, len(n.all()); got != want {
				t.Fatalf("%d blocks are believed in, the twin believes in %d", got, want)
			}
		},
		"insert": func(t *rapid.T) {
			w, p := workers.Draw(t, "worker"), path.Draw(t, "path")
			a.RecordSent(kv.Mono(now), w, chain(p))
			n.insert(now, w, p)
		},
		"refute": func(t *rapid.T) {
			w, p, held := workers.Draw(t, "worker"), path.Draw(t, "path"), rapid.IntRange(0, 4).Draw(t, "held")
			if at, known := a.findWorker(w); known {
				a.refuteBlocks(a.workers[at], chain(p), held)
			}
			n.refute(w, p, held)
		},
		"retract": func(t *rapid.T) {
			w, p, from := workers.Draw(t, "worker"), path.Draw(t, "path"), rapid.IntRange(0, 4).Draw(t, "from")
			gone := chain(p)
			gone = gone[min(from, len(gone)):]
			if rapid.Bool().Draw(t, "turned") {
				slices.Reverse(gone)
			}
			a.RetractEvent(w, &kv.Event{Kind: kv.Removed, Seqs: gone})
			n.refute(w, p, from)
		},
		"drop": func(t *rapid.T) {
			w := workers.Draw(t, "worker")
			a.DropWorker(w)
			delete(n.due, w)
		},
		"wait": func(t *rapid.T) {
			now += time.Duration(rapid.SampledFrom([]int{1, 700, 1000, 20_000, 65_000, 300_000}).Draw(t, "ms")) * time.Millisecond
			a.ExpireBlocks(kv.Mono(now))
			n.expire(now)
		},
	})
}

func TestApproxAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, approxAgrees) }

func FuzzApprox(f *testing.F) { f.Fuzz(rapid.MakeFuzz(approxAgrees)) }

// TestApproxMemory: a predicted block takes at most 12 bytes in addition to the index, the counted memory is
// the real one, and all of it is released.
func TestApproxMemory(t *testing.T) {
	const prompts, length = 1000, 100
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	a := newApprox(t, ApproxConfig{})
	b := newWorkerEntries(one, factorOf(0))
	prompt := make([]kv.SeqHash, length)
	before := heap()
	for p := range prompts {
		for i := range length {
			prompt[i] = kv.ExtendSeq(kv.SeqHash(p), uint32(i+1), kv.BlockHash(i))
		}
		b.touchChain(prompt, 100)
	}
	used, counted := heap()-before, b.memoryBytes()
	runtime.KeepAlive(b)
	if per := float64(counted) / (prompts * length); per > 12 {
		t.Errorf("a belief costs %.1f bytes", per)
	}
	if used > counted+counted/20 || used < counted-counted/20 {
		t.Errorf("the heap grew by %d bytes, %d are counted", used, counted)
	}
	for p := range prompts {
		seq := kv.SeqHash(0)
		for i := range length {
			seq = kv.ExtendSeq(seq, uint32(i), kv.BlockHash(p<<16|i))
			prompt[i] = seq
		}
		a.RecordSent(kv.Mono(p), one, prompt)
	}
	if n := a.Stats().Entries; n != prompts*length {
		t.Fatalf("%d blocks are believed in", n)
	}
	a.ExpireBlocks(kv.Mono(time.Hour))
	if st := a.Stats(); st.Entries != 0 || st.EntryBytes != 0 {
		t.Errorf("after all expired: %+v", st)
	}
}

// TestApproxInsertDoesNotAllocate: a known prompt is refreshed in place.
func TestApproxInsertDoesNotAllocate(t *testing.T) {
	a := newApprox(t, ApproxConfig{TTL: 64 * time.Second})
	path := strings.Repeat("a/", 200) + "a"
	c := chain(path)
	now := kv.Mono(0)
	if n := testing.AllocsPerRun(100, func() {
		now = now.Add(10 * time.Second)
		a.RecordSent(now, one, c)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
