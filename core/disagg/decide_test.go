package disagg

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/kv"
	"penstock/core/rates"
)

// testRates returns rates without samples: the defaults of 10 ms and 20 µs a token.
func testRates(t testing.TB) *rates.WorkerRates {
	l, err := rates.New(rates.Config{PrefillFixed: 10 * time.Millisecond, PrefillToken: 20 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	return l.WorkerOf(kv.Worker{ID: 1})
}

// TestThreshold: the rule of Dynamo, at its bounds.
func TestThreshold(t *testing.T) {
	c := DefaultSplit()
	c.Policy = ByThreshold
	for _, tt := range []struct {
		tokens, cached, queued int
		why                    SplitReason
	}{
		{1001, 0, 0, LongPrefill},
		{1000, 0, 0, ShortPrefill},
		{3000, 1999, 1, LongPrefill},
		{3000, 2000, 1, ShortPrefill},
		{3000, 0, 2, FullQueue},
		{1000, 0, 2, ShortPrefill},
	} {
		in := SplitInputs{Tokens: tt.tokens, Cached: tt.cached, BlockSize: 16, PrefillWorkers: 1, QueuedJobs: tt.queued}
		if d := Decide(&c, &in, testRates(t), testRates(t)); d.Reason != tt.why || d.Remote != (tt.why == LongPrefill) {
			t.Errorf("%+v: %v", tt, d.Reason)
		}
	}
}

// TestRulesBeforeThePolicies: without prefill workers, or blocks which could move, every policy is for here.
func TestRulesBeforeThePolicies(t *testing.T) {
	for p := range SplitPolicy(splitPolicies) {
		c := SplitConfig{Policy: p, MaxPrefillQueueSize: 1}
		for _, tt := range []struct {
			name string
			in   SplitInputs
			why  SplitReason
		}{
			{"no workers", SplitInputs{Tokens: 9000, BlockSize: 16}, NoPrefillWorkers},
			{"one block", SplitInputs{Tokens: 16, BlockSize: 16, PrefillWorkers: 1}, AllBlocksHeld},
			{"one token", SplitInputs{Tokens: 1, BlockSize: 16, PrefillWorkers: 1}, AllBlocksHeld},
			{"all cached", SplitInputs{Tokens: 9000, Cached: 8999, BlockSize: 16, PrefillWorkers: 1}, AllBlocksHeld},
			{"too large", SplitInputs{Tokens: 9000, BlockSize: 16, PrefillWorkers: 1, NoRoom: true, TooLarge: true}, TooLargeToLand},
			{"no room", SplitInputs{Tokens: 9000, BlockSize: 16, PrefillWorkers: 1, NoRoom: true}, NoLandingRoom},
			{"all but the last block", SplitInputs{Tokens: 9000, Cached: 8992, BlockSize: 16, PrefillWorkers: 1}, AllBlocksHeld},
		} {
			want := tt.why
			if p == NeverRemote {
				want = PolicyIsNever
			}
			if d := Decide(&c, &tt.in, testRates(t), testRates(t)); d.Remote || d.Reason != want {
				t.Errorf("%v, %s: %v %v", p, tt.name, d.Remote, d.Reason)
			}
		}
		in := SplitInputs{Tokens: 17, BlockSize: 16, PrefillWorkers: 1}
		if d := Decide(&c, &in, testRates(t), testRates(t)); d.Remote != (p == AlwaysRemote || p == ByThreshold) {
			t.Errorf("%v, one block more: %v", p, d.Reason)
		}
	}
}

// TestCostTerms: each term is what its comment says, worked out by hand with 10 ms and 0.02 ms a token.
func TestCostTerms(t *testing.T) {
	c := DefaultSplit()
	c.DecodeWeight = 0.1
	in := SplitInputs{
		Tokens: 4004, Cached: 1004, BlockSize: 16, LocalTokens: 500, LocalPrefills: 2, Decoding: 20,
		PrefillWorkers: 2, RemoteCached: 2000, QueuedJobs: 3, RunningJobs: 4, QueuedTokens: 6000, TransferFixedMs: 3, TransferTokenMs: 0.01,
	}
	d := Decide(&c, &in, testRates(t), testRates(t))
	// The first 62 blocks are held, and the last 4 tokens are computed here: 3,008 of 4,000 tokens move.
	want := Decision{
		Remote: true, Reason: CheaperRemote, Inputs: in,
		LocalCost: PathCost{Wait: 20, Prefill: 10 + 60, Harm: 0.1 * 20 * 70, Backlog: 2 * 70},
		RemoteCost: PathCost{
			Wait: (10 + 120) / 2.0, Prefill: 10 + 40, Transfer: 3 + 30.08, Tail: 10 + 0.08, Harm: 0.1 * 20 * 10.08, Backlog: 7 * 50 / 2.0,
		},
	}
	near := func(a, b PathCost) bool {
		return math.Abs(a.Wait-b.Wait)+math.Abs(a.Prefill-b.Prefill)+math.Abs(a.Transfer-b.Transfer)+math.Abs(a.Tail-b.Tail)+
			math.Abs(a.Harm-b.Harm)+math.Abs(a.Backlog-b.Backlog) < 1e-9
	}
	if d.Remote != want.Remote || d.Reason != want.Reason || d.Inputs != in || !near(d.LocalCost, want.LocalCost) || !near(d.RemoteCost, want.RemoteCost) {
		t.Errorf("%+v, want %+v", d, want)
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"remote":true`, `"reason":"remote prefill costs less"`, `"queued_tokens":6000`, `"local_ms":{"wait":20`, `"remote_ms":{`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s is missing in %s", part, text)
		}
	}
}

// TestEqualCostsAreLocal: with 16 ms and 1/64 ms a token both ways cost 34 1/64 ms.
func TestEqualCostsAreLocal(t *testing.T) {
	l, err := rates.New(rates.Config{PrefillFixed: 16 * time.Millisecond, PrefillToken: time.Millisecond / 64})
	if err != nil {
		t.Fatal(err)
	}
	w, c := l.WorkerOf(kv.Worker{ID: 1}), SplitConfig{Policy: ByCost}
	in := SplitInputs{Tokens: 65, BlockSize: 16, LocalTokens: 64, PrefillWorkers: 1, TransferFixedMs: 1}
	if d := Decide(&c, &in, w, w); d.Remote || d.LocalCost.Sum() != 34+1.0/64 || d.RemoteCost.Sum() != 34+1.0/64 {
		t.Errorf("%+v", d)
	}
	in.LocalTokens++
	if d := Decide(&c, &in, w, w); !d.Remote {
		t.Errorf("%+v", d)
	}
}

// TestCostMoves: what makes one way dearer never makes it be chosen. A queue, a slow link and few workers keep prompts
// here; running answers and queued prompts send them away.
func TestCostMoves(t *testing.T) {
	local, remote := testRates(t), testRates(t)
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string, max int) int { return rapid.IntRange(0, max).Draw(t, name) }
		in := SplitInputs{
			Tokens: 1 + number("tokens", 20_000), BlockSize: []int{16, 64, 128}[number("block", 2)], LocalTokens: number("local", 9000),
			Decoding: number("decoding", 64), PrefillWorkers: 1 + number("workers", 7), QueuedTokens: number("queued", 50_000),
			TransferFixedMs: float64(number("fixed", 20)), TransferTokenMs: float64(number("each", 100)) / 1000,
		}
		in.Cached, in.RemoteCached = number("cached", in.Tokens), number("remote cached", in.Tokens)
		c := DefaultSplit()
		before := Decide(&c, &in, local, remote)
		for _, tt := range []struct {
			name   string
			change func(in *SplitInputs) (moreRemote bool)
		}{
			{"queue", func(in *SplitInputs) bool { in.QueuedTokens += 1000; return false }},
			{"link", func(in *SplitInputs) bool { in.TransferTokenMs += 0.1; return false }},
			{"latency", func(in *SplitInputs) bool { in.TransferFixedMs += 10; return false }},
			{"jobs", func(in *SplitInputs) bool { in.RunningJobs += 3; return false }},
			{"local queue", func(in *SplitInputs) bool { in.LocalTokens += 1000; return true }},
			{"local prompts", func(in *SplitInputs) bool { in.LocalPrefills++; return true }},
			{"workers", func(in *SplitInputs) bool { in.PrefillWorkers++; return true }},
			{"remote cached", func(in *SplitInputs) bool { in.RemoteCached = in.Tokens; return true }},
		} {
			changed := in
			moreRemote := tt.change(&changed)
			after := Decide(&c, &changed, local, remote)
			if before.Remote != after.Remote && after.Remote != moreRemote {
				t.Errorf("%s: %+v and then %+v", tt.name, before, after)
			}
		}
		if start, end := in.MovedRange(); start < 0 || start > end || end >= in.Tokens || start%in.BlockSize+end%in.BlockSize != 0 || in.Tokens-end > in.BlockSize {
			t.Errorf("tokens %d to %d of %d move", start, end, in.Tokens)
		}
		if before.Remote && before.RemoteCost.Sum() >= before.LocalCost.Sum() {
			t.Errorf("%+v", before)
		}
	})
}

// TestLongPromptsLeaveABusyDecodeWorker: an example of what the cost model is for.
func TestLongPromptsLeaveABusyDecodeWorker(t *testing.T) {
	c := DefaultSplit()
	in := SplitInputs{Tokens: 8000, BlockSize: 16, Decoding: 32, PrefillWorkers: 1, TransferFixedMs: 2, TransferTokenMs: 0.005}
	for _, tt := range []struct {
		name   string
		change func(in *SplitInputs)
		remote bool
	}{
		{"a long prompt, many answers", func(*SplitInputs) {}, true},
		{"no answers", func(in *SplitInputs) { in.Decoding = 0 }, false},
		{"a short prompt", func(in *SplitInputs) { in.Tokens = 20 }, false},
		{"mostly cached", func(in *SplitInputs) { in.Cached = 7900 }, false},
		{"a long queue", func(in *SplitInputs) { in.QueuedTokens = 400_000 }, false},
	} {
		in := in
		tt.change(&in)
		if d := Decide(&c, &in, testRates(t), testRates(t)); d.Remote != tt.remote {
			t.Errorf("%s: %v", tt.name, d.Reason)
		}
	}
}

// TestPolicyNames: names are read and printed alike.
func TestPolicyNames(t *testing.T) {
	for p := range SplitPolicy(splitPolicies) {
		if got, err := ParsePolicy(p.String()); got != p || err != nil {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	if _, err := ParsePolicy("sometimes"); err == nil || !strings.Contains(err.Error(), "cost, threshold, always") {
		t.Errorf("%v", err)
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	c, local, remote := DefaultSplit(), testRates(t), testRates(t)
	in := SplitInputs{Tokens: 4000, Cached: 100, BlockSize: 16, Decoding: 9, PrefillWorkers: 2, QueuedTokens: 900, QueuedJobs: 1}
	var d Decision
	if n := testing.AllocsPerRun(100, func() { d = Decide(&c, &in, local, remote) }); n != 0 {
		t.Errorf("%v allocations for %v", n, d.Reason)
	}
}

// BenchmarkDecide measures a decision by cost.
func BenchmarkDecide(b *testing.B) {
	c, local, remote := DefaultSplit(), testRates(b), testRates(b)
	in := SplitInputs{Tokens: 4000, Cached: 100, BlockSize: 16, Decoding: 9, PrefillWorkers: 2, QueuedTokens: 900, QueuedJobs: 1}
	b.ReportAllocs()
	for b.Loop() {
		in.Cached++
		if d := Decide(&c, &in, local, remote); d.Reason < AllBlocksHeld {
			b.Fatal(d)
		}
		in.Cached &= 1023
	}
}

// BenchmarkHandoff measures all events of a handoff without faults.
func BenchmarkHandoff(b *testing.B) {
	cfg, d := testHandoff(), Decision{Remote: true}
	var out []HandoffEffect
	b.ReportAllocs()
	for b.Loop() {
		var h *Handoff
		h, out = StartHandoff(0, cfg, HandoffRequest{First: ref1, Tokens: 4000, BlockSize: 16}, out[:0])
		out = h.HandlePrefix(0, &d, out)
		out = h.HandleReserved(0, 0, out)
		out = h.HandlePull(0, ref1, workerA, out)
		h.HandleProgress(0, ref1)
		if out = h.HandleNotify(ref1, out); h.State() != Decoding {
			b.Fatal(out)
		}
	}
}

// TestDecideLegs: of engines which move blocks themselves the policies decide by what is known of them: cost is as always,
// and threshold counts tokens, and no jobs.
func TestDecideLegs(t *testing.T) {
	in := SplitInputs{Tokens: 1100, Cached: 100, BlockSize: 16, PrefillWorkers: 1}
	for _, tt := range []struct {
		name   string
		c      SplitConfig
		change func(*SplitInputs)
		want   SplitReason
	}{
		{"cost", SplitConfig{Policy: ByCost}, nil, PolicyIsAlways},
		{"always", SplitConfig{Policy: AlwaysRemote}, nil, PolicyIsAlways},
		{"never", SplitConfig{Policy: NeverRemote}, nil, PolicyIsNever},
		{"long", SplitConfig{Policy: ByThreshold, MaxLocalPrefillLength: 999, MaxPrefillQueueSize: 1}, nil, LongPrefill},
		{"short", SplitConfig{Policy: ByThreshold, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 1}, nil, ShortPrefill},
		{"no queue", SplitConfig{Policy: ByThreshold, MaxLocalPrefillLength: 999}, nil, FullQueue},
		{"no workers", SplitConfig{}, func(in *SplitInputs) { in.PrefillWorkers = 0 }, NoPrefillWorkers},
		{"all held", SplitConfig{Policy: AlwaysRemote}, func(in *SplitInputs) { in.Cached = 1088 }, AllBlocksHeld},
	} {
		in := in
		if tt.change != nil {
			tt.change(&in)
		}
		want := Decision{Config: tt.c, Inputs: in, Reason: tt.want, Remote: tt.want == PolicyIsAlways || tt.want == LongPrefill}
		if got := DecideLegs(&tt.c, &in); got != want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
		}
	}
}
