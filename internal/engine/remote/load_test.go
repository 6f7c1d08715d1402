package remote

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"penstock/internal/engine"
)

// TestLoad checks that our own requests count at once, and other requests as far as the engine's count
// exceeds ours.
func TestLoad(t *testing.T) {
	l := newLoadTracker(4, 100)
	request := func() *requestLoad {
		a := &attempt{req: testRequest(10), unfinished: 1}
		return l.startRequest(a)
	}
	expect := func(what string, want engine.Load) {
		t.Helper()
		want.TotalBlocks = 100
		if got := l.currentLoad(); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	expect("idle", engine.Load{})
	a, b := request(), request()
	expect("two begun", engine.Load{Running: 2, UsedBlocks: 4, PrefillTokens: 18})
	l.addOutput(a, 3)
	expect("one has tokens", engine.Load{Running: 2, UsedBlocks: 5, PrefillTokens: 9})
	l.recordScrape(&LoadGauges{Running: 3, Waiting: 2, Usage: 0.5, Preemptions: 7})
	expect("others", engine.Load{Running: 3, Waiting: 2, UsedBlocks: 50, PrefillTokens: 9, Preemptions: 7})

	a.completed = true
	l.finishRequest(a)
	l.finishRequest(b) // broken off
	l.recordScrape(&LoadGauges{Running: 3})
	expect("what the engine has not noticed is not of others", engine.Load{})
	l.recordScrape(&LoadGauges{Running: 2})
	expect("nor at the next reading", engine.Load{})
	l.recordScrape(&LoadGauges{Running: 2})
	expect("later it is", engine.Load{Running: 2})
	l.recordScrape(&LoadGauges{Running: math.MinInt64, Waiting: math.MinInt64, Usage: math.NaN()})
	l.recordScrape(&LoadGauges{Running: math.MinInt64, Waiting: math.MaxInt64, Usage: math.NaN()})
	expect("numbers that are none", engine.Load{Waiting: maxReported})
	l.recordScrape(&LoadGauges{Running: math.MaxInt64, Waiting: math.MaxInt64, Usage: math.Inf(1)})
	expect("numbers that nobody has", engine.Load{Running: maxReported, Waiting: maxReported, UsedBlocks: 100})
	for range scrapeFailureLimit {
		l.recordFailure()
	}
	expect("unread", engine.Load{})
	if w := l.loadWarnings(); len(w) != 1 || w[0].Code != engine.WarnNoMetrics {
		t.Errorf("%+v", w)
	}
	l.recordScrape(&LoadGauges{Adapters: []string{"b", "x", "a"}})
	if w, got := l.loadWarnings(), l.loadedAdapters([]string{"a", "b", "c"}); len(w) != 0 || len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("%+v %v", w, got)
	}
}

// TestLedger checks that a warning appears when predictions are wrong, and ends when they are right.
func TestLedger(t *testing.T) {
	l := newPredictionCheck(4)
	say := func(n, guess, reported int) {
		for range n {
			l.recordResult(guess, reported)
		}
	}
	codes := func(silent bool) string {
		out := ""
		for _, w := range l.predictionWarnings(silent) {
			out += w.Code
		}
		return out
	}
	say(100, 40, 40)
	if got := codes(false); got != "" {
		t.Errorf("kept promises: %s", got)
	}
	say(40, 40, 0)
	if got := codes(false); got != engine.WarnMispredict {
		t.Errorf("broken promises: %q", got)
	}
	say(40, 40, 38)
	if got := codes(false); got != "" {
		t.Errorf("kept again: %s", got)
	}
	var s Stats
	l.fillStats(&s)
	if s.Compared != 180 || s.Mismatched != 40 || s.Predicted != 7200 || s.Reported != 4000+40*38 {
		t.Errorf("%+v", s)
	}
	l = newPredictionCheck(4)
	say(40, 0, 40)
	if loud, silent := codes(false), codes(true); loud != engine.WarnMispredict || silent != engine.WarnEventsSilent {
		t.Errorf("never promised: %q, and without events %q", loud, silent)
	}
}

// TestProbesAreNoLoad checks that a probe of the adapter is not reported as load, nor taken for a request of
// others because the engine counts it.
func TestProbesAreNoLoad(t *testing.T) {
	for _, counted := range []bool{false, true} {
		l := newLoadTracker(4, 100)
		end := l.startProbe(counted)
		var f *requestLoad
		if counted {
			f = l.startRequest(&attempt{unfinished: 1, probe: true, req: testRequest(10)})
		}
		l.recordScrape(&LoadGauges{Running: 1, Usage: 0.1})
		if got := l.currentLoad(); got != (engine.Load{TotalBlocks: 100}) {
			t.Errorf("during a probe: %+v", got)
		}
		if f != nil {
			l.finishRequest(f)
		}
		end()
		for range 3 { // a scrape is older than our own counts
			l.recordScrape(&LoadGauges{Running: 1})
		}
		if got := l.currentLoad(); got.Running != 1 {
			t.Errorf("a request of somebody else, after it: %+v", got)
		}
	}
}

// TestAdaptersInMemory: an engine with slots for adapters keeps the ones which were used last, also if no scrape came
// while they were in use. The adapter's own requests count at once.
func TestAdaptersInMemory(t *testing.T) {
	l := newLoadTracker(4, 100)
	use := func(name string) {
		req := testRequest(10)
		req.Salt.LoRA = name
		l.finishRequest(l.startRequest(&attempt{unfinished: 1, req: req}))
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if got := l.loadedAdapters([]string{"a", "b", "c", "d"}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	use("a")
	expect("before a scrape")
	l.recordScrape(&LoadGauges{AdapterSlots: 2})
	use("a")
	expect("one request", "a")
	l.recordScrape(&LoadGauges{Running: 1, Adapters: []string{"b"}, AdapterSlots: 2})
	expect("another client's", "a", "b")
	l.recordScrape(&LoadGauges{AdapterSlots: 2})
	expect("nothing in use", "a", "b")
	use("")
	use("a")
	use("c")
	expect("a third one", "a", "c")
	l.recordScrape(&LoadGauges{Running: 3, Adapters: []string{"d", "c", "x"}, AdapterSlots: 3})
	expect("one which is not served", "c", "d")
	l.recordFailure()
	expect("an engine which does not answer")
	use("d")
	l.recordScrape(&LoadGauges{Adapters: []string{"b"}})
	expect("without slots", "b")
	use("a")
	expect("a request without slots", "b")
	many := &LoadGauges{AdapterSlots: math.MaxInt}
	for i := range 3 * maxAdapterSlots {
		many.Adapters = append(many.Adapters, strconv.Itoa(i))
	}
	l.recordScrape(many)
	if n := len(l.mu.loaded); n != maxAdapterSlots {
		t.Errorf("%d adapters are kept", n)
	}
}
