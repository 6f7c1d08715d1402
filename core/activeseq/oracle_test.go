package activeseq

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
)

// naive is the simplest possible table: a list of reservations, from which every load is recomputed.
type naive []naiveRequest

type naiveRequest struct {
	key    AttemptKey
	worker kv.Worker
	at     kv.Mono
	path   string
	tokens int
	left   int // of the prompt, to prefill
	output int
	expect int
	lasts  int            // of the prefill
	ref    ReservationRef // if adopted
	// first is since when no older prefill is on the worker, if isFirst.
	isFirst bool
	first   kv.Mono
}

// weight returns the weight of a block which only this request uses, in 65536ths.
func (r *naiveRequest) weight() int {
	if r.expect == 0 {
		return 65536
	}
	return 65536 * max(0, r.expect-r.output) / r.expect
}

// queue records which request is now the first prefill of each worker.
func (n naive) queue(now kv.Mono) {
	seen := map[kv.Worker]bool{}
	for i := range n {
		r := &n[i]
		if r.left == 0 || seen[r.worker] {
			continue
		}
		seen[r.worker] = true
		if !r.isFirst {
			r.isFirst, r.first = true, now
		}
	}
}

// load returns the load of w at now.
func (n naive) load(w kv.Worker, size int, now kv.Mono) Load {
	var l Load
	weights, users := map[string]int{}, map[string]int{}
	sum := 0
	for _, r := range n {
		if r.worker != w {
			continue
		}
		l.Requests++
		left := r.left
		if spent := int(now.Sub(r.first)); r.isFirst && r.lasts > 0 && left > 0 {
			left -= left * min(spent, r.lasts) / r.lasts
		}
		l.PrefillTokens += left
		l.OutputTokens += max(0, r.expect-r.output)
		sum += r.weight() * ((r.tokens+r.output)/size - len(r.path))
		for i := range r.path {
			users[r.path[:i+1]]++
			weights[r.path[:i+1]] = r.weight()
		}
	}
	for path, weight := range weights {
		if users[path] > 1 {
			weight = 65536
		}
		sum += weight
	}
	l.Blocks = (sum + 32768) / 65536
	return l
}

// others returns the adopted part of the load of w.
func (n naive) others(w kv.Worker) (s LoadShare) {
	for _, r := range n {
		if r.worker == w && r.ref != (ReservationRef{}) {
			s.Requests++
			s.PrefillTokens += r.left
		}
	}
	return s
}

// queuedBlocks returns how many leading blocks of a path are in prompts on w which are not computed yet.
func (n naive) queuedBlocks(w kv.Worker, path string) (most int) {
	for _, r := range n {
		if r.worker != w || r.left == 0 {
			continue
		}
		same := 0
		for same < len(path) && same < len(r.path) && path[same] == r.path[same] {
			same++
		}
		most = max(most, same)
	}
	return most
}

func (n naive) find(key AttemptKey) int {
	return slices.IndexFunc(n, func(r naiveRequest) bool { return r.key == key })
}

// agrees runs the same operations on a table and its naive twin and compares all loads, present and
// projected, after each. Paths have one letter per block.
func agrees(t *rapid.T) {
	const size, ttl = 4, 100
	table, err := New(Config{BlockSize: size, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	var n naive
	var now kv.Mono
	expired := 0
	workers := []kv.Worker{{ID: 1}, {ID: 2}, {ID: 2, Rank: 1}}
	key := rapid.Custom(func(t *rapid.T) AttemptKey {
		return AttemptKey{rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "id"), rapid.Uint32Range(1, 2).Draw(t, "attempt")}
	})
	type prompt struct {
		path            string
		tokens, overlap int
		expect, lasts   int
	}
	prompts := rapid.Custom(func(t *rapid.T) prompt {
		p := prompt{path: rapid.StringOfN(rapid.RuneFrom([]rune("xy")), 0, 6, -1).Draw(t, "path")}
		p.tokens = len(p.path)*size + rapid.IntRange(0, 2*size).Draw(t, "more tokens")
		p.overlap = rapid.IntRange(0, len(p.path)+1).Draw(t, "overlap")
		p.expect = rapid.IntRange(0, 9).Draw(t, "expected")
		p.lasts = rapid.SampledFrom([]int{0, 0, 30, 200}).Draw(t, "duration")
		return p
	})
	demand := func(p prompt) Demand {
		return Demand{Chain: chain(strings.Join(strings.Split(p.path, ""), "/")), PromptTokens: p.tokens, OverlapBlocks: p.overlap, ExpectedOutput: p.expect, ExpectedPrefill: time.Duration(p.lasts)}
	}
	request := func(k AttemptKey, w kv.Worker, p prompt) naiveRequest {
		return naiveRequest{key: k, worker: w, at: now, path: p.path, tokens: p.tokens, left: max(0, p.tokens-p.overlap*size), expect: p.expect, lasts: p.lasts}
	}
	expire := func() {
		n = slices.DeleteFunc(n, func(r naiveRequest) bool {
			old := r.ref == (ReservationRef{}) && now.Sub(r.at) >= ttl
			if old {
				expired++
			}
			return old
		})
	}
	adopted := func() (out []int) {
		for i := range n {
			if n[i].ref != (ReservationRef{}) {
				out = append(out, i)
			}
		}
		return out
	}
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := table.Check(); err != nil {
				t.Fatal(err)
			}
			n.queue(now)
			if table.Len() != len(n)-len(adopted()) || table.AdoptedCount() != len(adopted()) || table.ExpiredCount() != uint64(expired) {
				t.Fatalf("%d reservations, %d adopted and %d expired, want %d, %d and %d", table.Len(), table.AdoptedCount(), table.ExpiredCount(), len(n), len(adopted()), expired)
			}
			p := prompts.Draw(t, "projected")
			for _, w := range workers {
				want := n.load(w, size, now)
				wantThen := append(slices.Clone(n), request(AttemptKey{}, w, p)).load(w, size, now)
				if got := table.OthersShare(w); got != n.others(w) {
					t.Fatalf("of others, worker %v has %+v, want %+v", w, got, n.others(w))
				}
				d := demand(p)
				var projected Projection
				if table.ProjectAt(table.RefTo(w), &d, &projected); projected.QueuedBlocks != n.queuedBlocks(w, p.path) {
					t.Fatalf("%d blocks of %q are queued on worker %v, want %d", projected.QueuedBlocks, p.path, w, n.queuedBlocks(w, p.path))
				}
				got, gotThen := table.ProjectLoad(w, demand(p))
				if got != want || gotThen != wantThen || table.LoadOf(w) != want {
					t.Fatalf("worker %v with %+v: %+v then %+v, want %+v then %+v", w, p, got, gotThen, want, wantThen)
				}
			}
		},
		"reserve": func(t *rapid.T) {
			k, w, p := key.Draw(t, "key"), rapid.SampledFrom(workers).Draw(t, "worker"), prompts.Draw(t, "prompt")
			expire()
			err := table.Reserve(now, k, w, demand(p))
			if n.find(k) >= 0 {
				if fault.CodeOf(err) != fault.Conflict {
					t.Fatalf("reserved twice: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			n = append(n, request(k, w, p))
		},
		"adopt": func(t *rapid.T) {
			w, p := rapid.SampledFrom(workers).Draw(t, "worker"), prompts.Draw(t, "prompt")
			expire()
			r := request(AttemptKey{}, w, p)
			d := demand(p)
			r.left = rapid.IntRange(0, p.tokens).Draw(t, "left")
			r.output = rapid.IntRange(0, 9).Draw(t, "output")
			r.ref = table.AdoptReservation(now, Reservation{
				Worker: w, Chain: d.Chain, PromptTokens: p.tokens, PrefillTokens: r.left,
				OutputTokens: r.output, ExpectedOutput: p.expect, ExpectedPrefill: d.ExpectedPrefill,
			})
			n = append(n, r)
		},
		"adopted": func(t *rapid.T) {
			all := adopted()
			if len(all) == 0 {
				return
			}
			i := rapid.SampledFrom(all).Draw(t, "which")
			r := &n[i]
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				r.ref.MarkPrefilled()
				r.left = 0
			case 1:
				total := rapid.IntRange(0, 12).Draw(t, "total")
				r.ref.SetOutput(total)
				r.output = max(r.output, total)
			case 2:
				ref := r.ref
				n = slices.Delete(n, i, i+1)
				if !ref.Free() || ref.Free() || ref.MarkPrefilled() || ref.SetOutput(99) {
					t.Fatal("an adopted reservation is not freed once")
				}
				if _, ok := ref.Reservation(); ok {
					t.Fatal("it can still be seen")
				}
			}
		},
		"prefilled": func(t *rapid.T) {
			k := key.Draw(t, "key")
			i := n.find(k)
			if got := table.MarkPrefilled(k); got != (i >= 0) {
				t.Fatalf("prefilled %v: %t", k, got)
			}
			if i >= 0 {
				n[i].left = 0
			}
		},
		"grow": func(t *rapid.T) {
			k, more := key.Draw(t, "key"), rapid.IntRange(-1, 9).Draw(t, "tokens")
			i := n.find(k)
			if got := table.AddOutput(k, more); got != (i >= 0) {
				t.Fatalf("grow %v: %t", k, got)
			}
			if i >= 0 {
				n[i].output += max(0, more)
			}
		},
		"renew": func(t *rapid.T) {
			k := key.Draw(t, "key")
			i := n.find(k)
			if got := table.RenewReservation(now, k); got != (i >= 0) {
				t.Fatalf("renew %v: %t", k, got)
			}
			if i >= 0 {
				n[i].at = now
			}
		},
		"free": func(t *rapid.T) {
			k := key.Draw(t, "key")
			i := n.find(k)
			want, computed := []kv.SeqHash(nil), i >= 0 && n[i].left == 0
			if computed {
				want = demand(prompt{path: n[i].path}).Chain
			}
			if got, w, ok := table.AppendComputedChain(nil, k); ok != computed || !slices.Equal(got, want) || ok && w != n[i].worker {
				t.Fatalf("computed chain of %v: %v on %v, %t, want %v, %t", k, got, w, ok, want, computed)
			}
			if got := table.Free(k); got != (i >= 0) {
				t.Fatalf("free %v: %t", k, got)
			}
			if i >= 0 {
				n = slices.Delete(n, i, i+1)
			}
		},
		"drop": func(t *rapid.T) {
			w := rapid.SampledFrom(workers).Draw(t, "worker")
			before := len(n)
			n = slices.DeleteFunc(n, func(r naiveRequest) bool { return r.worker == w })
			if got := table.DropWorker(w); got != before-len(n) {
				t.Fatalf("drop %v: %d", w, got)
			}
		},
		"wait": func(t *rapid.T) {
			now += kv.Mono(rapid.IntRange(1, 60).Draw(t, "time"))
			if rapid.Bool().Draw(t, "expire") {
				before := len(n)
				expire()
				if got := table.ExpireOld(now); got != before-len(n) {
					t.Fatalf("expired %d, want %d", got, before-len(n))
				}
			}
			table.AdvanceTime(now)
		},
	})
}

func TestTableAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees) }

func FuzzTable(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agrees)) }

// TestChainIsCopied: the caller may reuse its chain.
func TestChainIsCopied(t *testing.T) {
	table := mustNew(t, Config{BlockSize: 4})
	c := chain("a/b/c")
	if err := table.Reserve(0, AttemptKey{"r", 1}, kv.Worker{ID: 1}, Demand{Chain: c, PromptTokens: 12}); err != nil {
		t.Fatal(err)
	}
	clear(c)
	if err := table.Check(); err != nil {
		t.Fatal(err)
	}
	table.Free(AttemptKey{"r", 1})
	if left := table.workers[kv.Worker{ID: 1}].chains.roots; len(left) > 0 {
		t.Errorf("stretches %v are left", left)
	}
}

// TestChainsThatAreNone: chains of another router may be invalid, with a block twice or the same one after
// different ones, without corrupting the counts.
func TestChainsThatAreNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, err := New(Config{BlockSize: 4})
		if err != nil {
			t.Fatal(err)
		}
		var refs []ReservationRef
		odd := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.SeqHash {
			return kv.SeqHash(rapid.IntRange(0, 2).Draw(t, "block"))
		}), 0, 6)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if c := odd.Draw(t, "chain"); len(refs) == 0 || rapid.Bool().Draw(t, "adopt") {
				refs = append(refs, table.AdoptReservation(0, Reservation{Worker: kv.Worker{ID: 1}, Chain: c, PromptTokens: 4 * len(c), ExpectedOutput: 8}))
			} else {
				at := rapid.IntRange(0, len(refs)-1).Draw(t, "which")
				refs[at].Free()
				refs = slices.Delete(refs, at, at+1)
			}
			if err := table.Check(); err != nil {
				t.Fatal(err)
			}
			table.ProjectLoad(kv.Worker{ID: 1}, Demand{Chain: odd.Draw(t, "projected"), PromptTokens: 24})
		}
		for _, r := range refs {
			r.Free()
		}
		if l := table.LoadOf(kv.Worker{ID: 1}); l != (Load{}) {
			t.Fatalf("%+v is left", l)
		}
	})
}

// TestClockGoingBack: a time before the latest one does not corrupt the order.
func TestClockGoingBack(t *testing.T) {
	table := mustNew(t, Config{TTL: 10 * time.Second})
	for i, at := range []time.Duration{5 * time.Second, 2 * time.Second, 6 * time.Second} {
		if err := table.Reserve(kv.Mono(at), AttemptKey{"r", uint32(i)}, kv.Worker{ID: 1}, Demand{}); err != nil {
			t.Fatal(err)
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if n := table.ExpireOld(kv.Mono(15 * time.Second)); n != 2 {
		t.Errorf("%d expired, want 2", n)
	}
}

func TestBadDemands(t *testing.T) {
	table := mustNew(t, Config{BlockSize: 4})
	for _, d := range []Demand{
		{PromptTokens: -1},
		{PromptTokens: 7, Chain: chain("a/b")},
		{PromptTokens: 8, OverlapBlocks: -1},
		{PromptTokens: 8, ExpectedOutput: -1},
		{PromptTokens: 8, ExpectedPrefill: -1},
	} {
		if err := table.Reserve(0, AttemptKey{"r", 1}, kv.Worker{ID: 1}, d); fault.CodeOf(err) != fault.Internal || err == nil {
			t.Errorf("%+v: %v", d, err)
		}
	}
	if table.Len() != 0 || table.Check() != nil {
		t.Error("a refused reservation left something")
	}
}

func TestValidate(t *testing.T) {
	cfg := Config{BlockSize: -1, TTL: -1}
	if err := cfg.Validate(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("not every problem is reported: %v", err)
	}
	if _, err := New(cfg); err == nil {
		t.Error("accepted")
	}
}
