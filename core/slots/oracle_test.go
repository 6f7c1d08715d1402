package slots

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
)

// naive is a table as anyone would write it: a list of reservations from which
// loads are added up anew each time.
type naive []naiveRequest

type naiveRequest struct {
	key    Key
	worker kv.Worker
	at     kv.Mono
	path   string
	tokens int
	left   int // of the prompt
	output int
	expect int
}

func (n naive) load(w kv.Worker, size int) Load {
	var l Load
	named := map[string]bool{}
	for _, r := range n {
		if r.worker != w {
			continue
		}
		l.Requests++
		l.PrefillTokens += r.left
		l.OutputTokens += max(0, r.expect-r.output)
		l.Blocks += (r.tokens + r.output) / size
		for i := range r.path {
			l.Blocks--
			named[r.path[:i+1]] = true
		}
	}
	l.Blocks += len(named)
	return l
}

func (n naive) find(key Key) int {
	return slices.IndexFunc(n, func(r naiveRequest) bool { return r.key == key })
}

// agrees drives a Table and its naive twin alike and compares all loads, present
// and projected, after each step. Paths have a letter for each block.
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
	key := rapid.Custom(func(t *rapid.T) Key {
		return Key{rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "id"), rapid.Uint32Range(1, 2).Draw(t, "attempt")}
	})
	type prompt struct {
		path            string
		tokens, overlap int
		expect          int
	}
	prompts := rapid.Custom(func(t *rapid.T) prompt {
		p := prompt{path: rapid.StringOfN(rapid.RuneFrom([]rune("xy")), 0, 6, -1).Draw(t, "path")}
		p.tokens = len(p.path)*size + rapid.IntRange(0, 2*size).Draw(t, "more tokens")
		p.overlap = rapid.IntRange(0, len(p.path)+1).Draw(t, "overlap")
		p.expect = rapid.IntRange(0, 9).Draw(t, "expected")
		return p
	})
	demand := func(p prompt) Demand {
		return Demand{Chain: chain(strings.Join(strings.Split(p.path, ""), "/")), PromptTokens: p.tokens, OverlapBlocks: p.overlap, ExpectedOutput: p.expect}
	}
	request := func(k Key, w kv.Worker, p prompt) naiveRequest {
		return naiveRequest{k, w, now, p.path, p.tokens, max(0, p.tokens-p.overlap*size), 0, p.expect}
	}
	expire := func() {
		before := len(n)
		n = slices.DeleteFunc(n, func(r naiveRequest) bool { return now.Sub(r.at) >= ttl })
		expired += before - len(n)
	}
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := table.Check(); err != nil {
				t.Fatal(err)
			}
			if table.Len() != len(n) || table.Expired() != uint64(expired) {
				t.Fatalf("%d reservations and %d expired, want %d and %d", table.Len(), table.Expired(), len(n), expired)
			}
			p := prompts.Draw(t, "projected")
			for _, w := range workers {
				want := n.load(w, size)
				wantThen := append(slices.Clone(n), request(Key{}, w, p)).load(w, size)
				got, gotThen := table.Project(w, demand(p))
				if got != want || gotThen != wantThen || table.Load(w) != want {
					t.Fatalf("worker %v with %+v: %+v then %+v, want %+v then %+v", w, p, got, gotThen, want, wantThen)
				}
			}
		},
		"reserve": func(t *rapid.T) {
			k, w, p := key.Draw(t, "key"), rapid.SampledFrom(workers).Draw(t, "worker"), prompts.Draw(t, "prompt")
			expire()
			err := table.Reserve(now, k, w, demand(p))
			if n.find(k) >= 0 {
				if fault.Of(err) != fault.Conflict {
					t.Fatalf("reserved twice: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			n = append(n, request(k, w, p))
		},
		"prefilled": func(t *rapid.T) {
			k := key.Draw(t, "key")
			i := n.find(k)
			if got := table.Prefilled(k); got != (i >= 0) {
				t.Fatalf("prefilled %v: %t", k, got)
			}
			if i >= 0 {
				n[i].left = 0
			}
		},
		"grow": func(t *rapid.T) {
			k, more := key.Draw(t, "key"), rapid.IntRange(-1, 9).Draw(t, "tokens")
			i := n.find(k)
			if got := table.Grow(k, more); got != (i >= 0) {
				t.Fatalf("grow %v: %t", k, got)
			}
			if i >= 0 {
				n[i].output += max(0, more)
			}
		},
		"free": func(t *rapid.T) {
			k := key.Draw(t, "key")
			i := n.find(k)
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
				before := expired
				expire()
				if got := table.Expire(now); got != expired-before {
					t.Fatalf("expired %d, want %d", got, expired-before)
				}
			}
		},
	})
}

func TestTableAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees) }

func FuzzTable(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agrees)) }

// TestChainIsCopied says that the caller may use its chain for something else.
func TestChainIsCopied(t *testing.T) {
	table := mustNew(t, Config{BlockSize: 4})
	c := chain("a/b/c")
	if err := table.Reserve(0, Key{"r", 1}, kv.Worker{ID: 1}, Demand{Chain: c, PromptTokens: 12}); err != nil {
		t.Fatal(err)
	}
	clear(c)
	if err := table.Check(); err != nil {
		t.Fatal(err)
	}
	table.Free(Key{"r", 1})
	if left := slices.Collect(maps.Keys(table.workers[kv.Worker{ID: 1}].refs)); len(left) > 0 {
		t.Errorf("blocks %x are left", left)
	}
}

// TestClockGoingBack says that a time before the last one does not hurt the order.
func TestClockGoingBack(t *testing.T) {
	table := mustNew(t, Config{TTL: 10 * time.Second})
	for i, at := range []time.Duration{5 * time.Second, 2 * time.Second, 6 * time.Second} {
		if err := table.Reserve(kv.Mono(at), Key{"r", uint32(i)}, kv.Worker{ID: 1}, Demand{}); err != nil {
			t.Fatal(err)
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if n := table.Expire(kv.Mono(15 * time.Second)); n != 2 {
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
	} {
		if err := table.Reserve(0, Key{"r", 1}, kv.Worker{ID: 1}, d); fault.Of(err) != fault.Internal || err == nil {
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
