package rates

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/kv"
)

// engine is a simple engine: prefills one after another, at a speed.
type engine struct {
	fixed, each float64 // ms
	speed       float64
	now         kv.Mono
}

// prefill computes a prompt and reports it.
func (e *engine) prefill(w *WorkerRates, tokens int) {
	took := time.Duration(e.speed * (e.fixed + e.each*float64(tokens)) * float64(time.Millisecond))
	e.now = e.now.Add(took)
	w.RecordPrefill(e.now, tokens, took)
	e.now = e.now.Add(time.Second)
}

func newTable(t testing.TB, cfg Config) *Learner {
	table, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestLearnsEncoding: the time of encoding media is learned from prompts which show some, and apart from that of
// prefills.
func TestLearnsEncoding(t *testing.T) {
	table := newTable(t, Config{})
	w := table.WorkerOf(kv.Worker{ID: 1})
	e := engine{fixed: 22, each: 0.019, speed: 1}
	for i := range 100 {
		tokens := 200 + i*37%3000
		if media := i * 53 % 1500; i%2 == 0 && media > 0 {
			took := time.Duration((e.fixed + e.each*float64(tokens) + 12 + 0.11*float64(media)) * float64(time.Millisecond))
			e.now = e.now.Add(took)
			w.RecordMedia(media)
			w.RecordPrefill(e.now, tokens, took)
			e.now = e.now.Add(time.Second)
			continue
		}
		e.prefill(w, tokens)
	}
	for _, n := range []int{100, 1000} {
		if got, want := w.PrefillMs(n), 22+0.019*float64(n); !isNear(got, want, 0.05) {
			t.Errorf("a prefill of %d takes %.1f ms, want %.1f", n, got, want)
		}
		if got, want := w.EncodeMs(n), 12+0.11*float64(n); !isNear(got, want, 0.1) {
			t.Errorf("media of %d tokens take %.1f ms, want %.1f", n, got, want)
		}
	}
	if w.EncodeMs(0) != 0 || !isNear(w.Speed(), 1, 0.01) {
		t.Errorf("no media take %v ms, the speed is %v", w.EncodeMs(0), w.Speed())
	}
	if err := table.Check(); err != nil {
		t.Error(err)
	}
}

func isNear(got, want, within float64) bool { return math.Abs(got-want) <= within*want }

// TestLearnsWrongPriors: rates which are wrong by 2, and more, at the start are right within 50 requests.
func TestLearnsWrongPriors(t *testing.T) {
	for _, wrong := range []float64{0.1, 0.5, 1, 2} {
		t.Run(fmt.Sprint(wrong), func(t *testing.T) {
			cfg := Config{
				PrefillFixed: time.Duration(20 * wrong * float64(time.Millisecond)),
				PrefillToken: time.Duration(19 * wrong * float64(time.Microsecond)),
				Step:         time.Duration(6 * wrong * float64(time.Millisecond)),
			}
			table := newTable(t, cfg)
			e := engine{fixed: 20, each: 0.019, speed: 1}
			w := table.WorkerOf(kv.Worker{ID: 1})
			for i := range 50 {
				e.prefill(w, 200+i*37%3000)
				w.RecordAnswer(AnswerSample{Tokens: 101, Took: 600 * time.Millisecond, Share: 0.3})
			}
			for _, tokens := range []int{100, 1000, 4000} {
				if got, want := w.PrefillMs(tokens), 20+0.019*float64(tokens); !isNear(got, want, 0.1) {
					t.Errorf("%d tokens take %.1f ms, want %.1f", tokens, got, want)
				}
			}
			if got := w.StepMs(0.3); !isNear(got, 6, 0.1) {
				t.Errorf("a step takes %.2f ms, want 6", got)
			}
		})
	}
}

// TestAlikePromptsKeepTheSlope: prompts of nearly one length say how long that length takes, and not how long another
// one would; errors of their times must not become a slope.
func TestAlikePromptsKeepTheSlope(t *testing.T) {
	for _, before := range []int{0, 200} {
		table := newTable(t, Config{})
		w := table.WorkerOf(kv.Worker{ID: 1})
		e := engine{fixed: 22, each: 0.008, speed: 1}
		for i := range before {
			e.prefill(w, 100+i*37%3000)
		}
		for i := range 5000 {
			tokens := 17 + i*7%16
			e.speed = 1 + 0.2*float64(i%3-1) + 0.02*float64(tokens-24) // errors, which grow with the length by chance
			e.prefill(w, tokens)
			if got, want := w.PrefillMs(4000), 22+0.008*4000.0; i >= 20 && before > 0 && !isNear(got, want, 0.5) {
				t.Fatalf("after %d prompts alike, 4,000 tokens take %.1f ms, want %.1f", i, got, want)
			}
			if got := w.PrefillMs(4000); i >= 20 && before == 0 && (got < 54 || got > 2.2*90*1.25) {
				t.Fatalf("after %d prompts alike and no other, 4,000 tokens take %.1f ms; by the prior, scaled, 198", i, got)
			}
		}
		if got := w.PrefillMs(24); !isNear(got, 22, 0.1) {
			t.Errorf("24 tokens take %.1f ms, want 22", got)
		}
	}
}

// TestLearnsSpeeds: each worker's speed is learned beside the line of a typical one, also when it changes.
func TestLearnsSpeeds(t *testing.T) {
	table := newTable(t, Config{})
	engines := make([]engine, 5)
	for i := range engines {
		engines[i] = engine{fixed: 20, each: 0.019, speed: 1}
	}
	engines[4].speed = 2
	check := func(when string) {
		t.Helper()
		for i := range engines {
			e, w := &engines[i], table.WorkerOf(kv.Worker{ID: kv.WorkerID(i + 1)})
			if got, want := w.PrefillMs(1000), e.speed*39; !isNear(got, want, 0.15) {
				t.Errorf("%s, worker %d prefills 1,000 tokens in %.1f ms, want %.1f", when, i+1, got, want)
			}
		}
		if err := table.Check(); err != nil {
			t.Error(err)
		}
	}
	for round := range 100 {
		for i := range engines {
			engines[i].prefill(table.WorkerOf(kv.Worker{ID: kv.WorkerID(i + 1)}), 100+round*61%2000)
		}
	}
	check("after 100 requests each")
	engines[0].speed = 2
	for round := range 40 {
		for i := range engines {
			engines[i].prefill(table.WorkerOf(kv.Worker{ID: kv.WorkerID(i + 1)}), 100+round*61%2000)
		}
	}
	check("40 requests after worker 1 slowed down")
}

// TestOnlyWorkerIsTypical: while one worker alone gets prompts, that the prior is wrong is a matter of the line, and not
// of the worker: the others are as fast.
func TestOnlyWorkerIsTypical(t *testing.T) {
	for _, factor := range []float64{0.25, 4} {
		table := newTable(t, Config{})
		e := engine{fixed: 10 * factor, each: 0.02 * factor, speed: 1}
		busy, idle := table.WorkerOf(kv.Worker{ID: 1}), table.WorkerOf(kv.Worker{ID: 2})
		for i := range 30 {
			e.prefill(busy, 500+i*37%1000)
			if a, b := busy.PrefillMs(1000), idle.PrefillMs(1000); a != b {
				t.Fatalf("after %d prompts of worker 1 it takes %.1f ms, worker 2 %.1f ms", i+1, a, b)
			}
		}
		if got, want := idle.PrefillMs(1000), 30*factor; !isNear(got, want, 0.2) {
			t.Errorf("a prompt takes %.1f ms, want %.1f", got, want)
		}
		if err := table.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestPassIsOneSample: first tokens which arrive together are of one pass, in whatever order they arrive.
func TestPassIsOneSample(t *testing.T) {
	one, many := newTable(t, Config{}), newTable(t, Config{})
	a, b := one.WorkerOf(kv.Worker{ID: 1}), many.WorkerOf(kv.Worker{ID: 1})
	now := kv.Mono(0)
	for range 30 {
		now = now.Add(time.Second)
		a.RecordPrefill(now, 900, 50*time.Millisecond)
		b.RecordEarlyPrefill(200)
		b.RecordPrefill(now, 400, 50*time.Millisecond)
		b.RecordPrefill(now, 300, 0)
	}
	if x, y := a.PrefillMs(900), b.PrefillMs(900); x != y {
		t.Errorf("900 tokens take %g ms as one prompt and %g ms as three", x, y)
	}
	if x, y := a.PrefilledMs(), b.PrefilledMs(); x != y || x != 1500 {
		t.Errorf("%g and %g ms were spent on prefill, want 1500", x, y)
	}
}

// TestEvictedShare: a cache which fills up costs ever more of a new block, and one which evicts all of it.
func TestEvictedShare(t *testing.T) {
	w := newTable(t, Config{}).WorkerOf(kv.Worker{ID: 1})
	for _, c := range []struct {
		cached, blocks int
		want           float64
	}{{0, 100, 0}, {50, 100, 0.375}, {100, 100, 1}, {200, 100, 1}, {-1, 100, 0}, {50, 0, 0}} {
		if w.RecordCached(c.cached); w.EvictedShare(0, c.blocks) != c.want {
			t.Errorf("%d of %d blocks are cached: %g, want %g", c.cached, c.blocks, w.EvictedShare(0, c.blocks), c.want)
		}
	}
	w.RecordCached(10)
	w.RecordEviction(0, 5)
	for at, want := range map[time.Duration]float64{0: 1, 59 * time.Second: 1, time.Minute: 0.055} {
		if got := w.EvictedShare(kv.Mono(at), 100); math.Abs(got-want) > 1e-12 {
			t.Errorf("%v after an eviction: %g, want %g", at, got, want)
		}
	}
}

// TestEvictionPressure: where blocks are evicted faster than elsewhere a new one costs others more, up to twice as much.
func TestEvictionPressure(t *testing.T) {
	table := newTable(t, Config{})
	var workers [4]*WorkerRates
	for i := range workers {
		workers[i] = table.WorkerOf(kv.Worker{ID: kv.WorkerID(i + 1)})
	}
	now := kv.Mono(0)
	for range 2000 { // for longer than an epoch
		now = now.Add(2 * time.Second)
		for i, blocks := range []int{30, 10, 10, 10} {
			workers[i].RecordEviction(now, blocks)
		}
	}
	for i, want := range []float64{2, 2. / 3, 2. / 3, 2. / 3} {
		if got := workers[i].EvictedShare(now, 1000); !isNear(got, want, 1e-6) {
			t.Errorf("worker %d: %g, want %g", i+1, got, want)
		}
	}
	for range 300 { // five minutes
		now = now.Add(time.Second)
		for _, w := range workers {
			w.RecordEviction(now, 10)
		}
	}
	if got := workers[0].EvictedShare(now, 1000); !isNear(got, 1, 0.02) {
		t.Errorf("once all evict alike: %g, want 1", got)
	}
	table.DropWorker(kv.Worker{ID: 1})
	if err := table.Check(); err != nil {
		t.Error(err)
	}
}

// TestInterruptedShare: the share rises while prefills interrupt answers, and falls by e in 5 s. Prefills beside which
// nothing runs leave it at 0.
func TestInterruptedShare(t *testing.T) {
	w := newTable(t, Config{}).WorkerOf(kv.Worker{ID: 1})
	if w.RecordInterruption(kv.Mono(time.Second), time.Second); w.InterruptedShare(kv.Mono(time.Second)) != 0 {
		t.Error("a share is known before the times of prefills are")
	}
	w = newTable(t, Config{}).WorkerOf(kv.Worker{ID: 1})
	w.table.prefill.samples = trusted
	now := kv.Mono(0)
	for range 1000 {
		now = now.Add(100 * time.Millisecond)
		w.RecordPrefill(now, 1000, 50*time.Millisecond)
	}
	if got := w.InterruptedShare(now); got != 0 {
		t.Errorf("share %.3f of a worker without answers, want 0", got)
	}
	for range 1000 { // half of the time
		now = now.Add(100 * time.Millisecond)
		w.RecordInterruption(now, 50*time.Millisecond)
	}
	if got := w.InterruptedShare(now); !isNear(got, 0.5, 0.02) {
		t.Errorf("share %.3f, want 0.5", got)
	}
	if got := w.InterruptedShare(now.Add(5 * time.Second)); !isNear(got, 0.5/math.E, 0.02) {
		t.Errorf("share 5 s later %.3f, want %.3f", got, 0.5/math.E)
	}
	for range 1000 { // longer than the time between
		now = now.Add(100 * time.Millisecond)
		w.RecordInterruption(now, 300*time.Millisecond)
	}
	if got := w.InterruptedShare(now); got != maxShare {
		t.Errorf("share %.3f, want %.1f", got, maxShare)
	}
}

// TestAnswerLengths: means and quantiles follow the last answers, of the client once it has enough.
func TestAnswerLengths(t *testing.T) {
	table := newTable(t, Config{})
	w := table.WorkerOf(kv.Worker{ID: 1})
	if got := table.AnswerTokens("a"); got != 200 {
		t.Errorf("%g tokens are expected at first", got)
	}
	for i := range 2000 {
		w.RecordAnswer(AnswerSample{Client: "a", Tokens: 10 + i%10})
		w.RecordAnswer(AnswerSample{Client: "b", Tokens: 1000})
	}
	if got := table.AnswerTokens("a"); !isNear(got, 14.5, 0.05) {
		t.Errorf("client a: mean %g, want 14.5", got)
	}
	if got := table.AnswerTokens("unknown"); !isNear(got, 507, 0.05) {
		t.Errorf("others: mean %g, want 507", got)
	}
	for _, q := range []struct{ share, want float64 }{{0, 10}, {0.5, 14.5}, {0.95, 18.5}, {1, 19}} {
		if got := table.AnswerQuantile("a", q.share); !isNear(got, q.want, 0.13) {
			t.Errorf("client a: quantile %g is %g, want %g", q.share, got, q.want)
		}
	}
	for tokens := 1; tokens < 100000; tokens = tokens*9/8 + 1 {
		if got := bucketMiddle(bucketOf(tokens)); !isNear(got, float64(tokens), 0.13) {
			t.Errorf("the bucket of %d has the middle %g", tokens, got)
		}
	}
}

// TestClientsAreBounded: clients beyond the bound share the lengths of all.
func TestClientsAreBounded(t *testing.T) {
	table := newTable(t, Config{})
	w := table.WorkerOf(kv.Worker{ID: 1})
	for i := range 2 * maxClients {
		w.RecordAnswer(AnswerSample{Client: fmt.Sprint(i), Tokens: 10})
	}
	if len(table.answers.clients) != maxClients || table.Check() != nil {
		t.Errorf("%d clients, %v", len(table.answers.clients), table.Check())
	}
}

// naiveFit is the fit of a list of samples by its definition. The first two are the prior's, at the amount of the first.
type naiveFit struct {
	samples [][3]float64 // amount, time, weight
	shape   line
	scale   float64
}

func (f *naiveFit) add(x, y, weight float64) line {
	if f.samples == nil {
		f.samples = [][3]float64{{x, f.shape.at(x), weight}, {x, f.shape.at(x), weight}}
	}
	f.samples = append(f.samples, [3]float64{x, y, weight})
	weights := make([]float64, len(f.samples))
	var n, meanX, meanY float64
	for i, s := range f.samples {
		weights[i] = s[2]
		for later := max(i, 1) + 1; later < len(f.samples); later++ {
			weights[i] *= min(forget, 1-1/float64(later-1+firstForget))
		}
		n, meanX, meanY = n+weights[i], meanX+weights[i]*s[0], meanY+weights[i]*s[1]
	}
	meanX, meanY = meanX/n, meanY/n
	var xx, xy, through, square float64
	for i, s := range f.samples {
		xx += weights[i] * (s[0] - meanX) * (s[0] - meanX) / n
		xy += weights[i] * (s[0] - meanX) * (s[1] - meanY) / n
		through, square = through+weights[i]*s[0]*s[1], square+weights[i]*s[0]*s[0]
	}
	lever := math.Pow(0.1*(f.scale+meanX), 2)
	each := max((xy+lever*f.shape.each*meanY/f.shape.at(meanX))/(xx+lever), 0)
	l := line{meanY - each*meanX, each}
	if l.fixed < 0 {
		l = line{0, through / square}
	}
	l.fixed = max(l.fixed, minFixed)
	if xx >= lever && len(f.samples)-2 >= trusted {
		f.shape = l
	}
	return l
}

// TestFitAgreesWithDefinition compares the running sums with the definition.
func TestFitAgreesWithDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prior := line{rapid.Float64Range(1, 100).Draw(t, "fixed"), rapid.Float64Range(0.001, 1).Draw(t, "each")}
		var f lineFit
		f.setPrior(prior, 4096, prior.fixed/prior.each)
		naive := naiveFit{shape: prior, scale: prior.fixed / prior.each}
		for range rapid.IntRange(1, 300).Draw(t, "n") {
			x := float64(rapid.IntRange(1, 20000).Draw(t, "x"))
			y := rapid.Float64Range(0.1, 5000).Draw(t, "y")
			scale := 1 + x*prior.each/prior.fixed
			want := naive.add(x, y, 1/(scale*scale))
			f.addSample(x, y)
			for _, at := range []float64{1, 1000, 20000} {
				if got, want := f.at(at), want.at(at); !isNear(got, want, 1e-4) {
					t.Fatalf("after %d samples, %g takes %g, want %g", f.samples, at, got, want)
				}
			}
		}
	})
}

// recordAnything calls a table with arbitrary, also impossible, samples.
func recordAnything(t *rapid.T) {
	table, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := kv.Mono(0)
	worker := rapid.Custom(func(t *rapid.T) kv.Worker { return kv.Worker{ID: kv.WorkerID(rapid.IntRange(1, 4).Draw(t, "worker"))} })
	duration := rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.Int64().Draw(t, "duration")) })
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := table.Check(); err != nil {
				t.Fatal(err)
			}
		},
		"prefill": func(t *rapid.T) {
			now = now.Add(time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "later")))
			table.WorkerOf(worker.Draw(t, "w")).RecordPrefill(now, rapid.Int().Draw(t, "tokens"), duration.Draw(t, "took"))
		},
		"early": func(t *rapid.T) {
			table.WorkerOf(worker.Draw(t, "w")).RecordEarlyPrefill(rapid.Int().Draw(t, "tokens"))
		},
		"answer": func(t *rapid.T) {
			table.WorkerOf(worker.Draw(t, "w")).RecordAnswer(AnswerSample{
				Client: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "client"), Tokens: rapid.Int().Draw(t, "tokens"),
				Took: duration.Draw(t, "took"), Prefilled: rapid.Float64Range(-1e9, 1e9).Draw(t, "prefilled"), Share: rapid.Float64Range(-1, 2).Draw(t, "share"),
			})
		},
		"evict": func(t *rapid.T) {
			table.WorkerOf(worker.Draw(t, "w")).RecordEviction(now, rapid.Int().Draw(t, "blocks"))
		},
		"drop": func(t *rapid.T) { table.DropWorker(worker.Draw(t, "w")) },
		"ask": func(t *rapid.T) {
			w := table.WorkerOf(worker.Draw(t, "w"))
			tokens := rapid.IntRange(0, 1<<20).Draw(t, "tokens")
			p, more, s, rho := w.PrefillMs(tokens), w.PrefillMs(tokens+1), w.StepMs(0.5), w.InterruptedShare(now)
			if !(p >= 0 && more >= p && more < 1e15 && s > 0 && s < 1e15 && rho >= 0 && rho <= maxShare && w.Speed() > 0) {
				t.Fatalf("prefill %g and %g ms, step %g ms, share %g, speed %g", p, more, s, rho, w.Speed())
			}
			if e := w.EvictedShare(now, 100); !(e >= 0 && e <= maxPressure) {
				t.Fatalf("a block costs others %g", e)
			}
			if n := table.AnswerTokens("a"); !(n >= 1 && n <= maxTokens) {
				t.Fatalf("%g tokens are expected", n)
			}
		},
	})
}

func TestAnySamples(t *testing.T) { rapid.Check(t, recordAnything) }

func FuzzRates(f *testing.F) { f.Fuzz(rapid.MakeFuzz(recordAnything)) }

// TestNoAllocation: neither samples nor questions allocate.
func TestNoAllocation(t *testing.T) {
	table := newTable(t, Config{})
	w := table.WorkerOf(kv.Worker{ID: 1})
	now, sum := kv.Mono(0), 0.0
	n := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		w.RecordPrefill(now, 100, 30*time.Millisecond)
		w.RecordAnswer(AnswerSample{Tokens: 10, Took: time.Second})
		sum += w.PrefillMs(100) + w.StepMs(0.1) + w.InterruptedShare(now) + table.AnswerTokens("")
	})
	if n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestValidate(t *testing.T) {
	if _, err := New(Config{PrefillFixed: -1, Step: time.Hour, AnswerTokens: -3}); err == nil {
		t.Error("bad priors are taken")
	}
}

// TestDropWorkerThatEvicted checks that a dropped worker leaves nothing of its evictions, whose number is large late in
// an epoch.
func TestDropWorkerThatEvicted(t *testing.T) {
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	const late = kv.Mono(50 * evictionTime)
	a, b := kv.Worker{ID: 1}, kv.Worker{ID: 2}
	l.WorkerOf(a).RecordEviction(late, 993)
	l.WorkerOf(b).RecordEviction(late, 1)
	l.WorkerOf(kv.Worker{ID: 3}).RecordEviction(late, 0)
	l.DropWorker(a)
	l.DropWorker(b)
	if got := l.WorkerOf(kv.Worker{ID: 3}).EvictedShare(late, 100); got != 1 {
		t.Errorf("the share is %g, want 1: no worker which is left has counted evictions", got)
	}
}
