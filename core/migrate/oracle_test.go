package migrate

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
)

// naive remembers everything that happened to a task and recomputes every answer from it.
type naive struct {
	cfg      Config
	failures []failed
	waits    []wait
}

type failed struct {
	Failure
	at kv.Mono
}

// wait is an Await which is over.
type wait struct {
	failures int // before it
	took     time.Duration
}

// last returns the last failure of each worker.
func (n *naive) last() map[kv.WorkerID]failed {
	all := map[kv.WorkerID]failed{}
	for _, f := range n.failures {
		all[f.Worker] = f
	}
	return all
}

// excluded returns the workers which failed in their present epoch.
func (n *naive) excluded(lives EpochLookup) []kv.WorkerID {
	var ids []kv.WorkerID
	for id, f := range n.last() {
		if epoch, known := lives(id); !known || epoch == f.Epoch {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// barred returns the excluded workers which are not past their reprieve.
func (n *naive) barred(now kv.Mono, excluded []kv.WorkerID) []kv.WorkerID {
	var ids []kv.WorkerID
	for _, id := range excluded {
		if f := n.last()[id]; f.Code == fault.Draining || f.Code == fault.Ineligible || now < f.at.Add(Reprieve) {
			ids = append(ids, id)
		}
	}
	return ids
}

// out returns how many tokens were sent after the first n failures.
func (n *naive) out(failures int) int {
	most := 0
	for _, f := range n.failures[:failures] {
		most = max(most, f.Tokens)
	}
	return most
}

// bound reports whether the task had lost a worker after the given number of failures.
func (n *naive) bound(failures int) bool {
	return n.out(failures) > 0 || slices.ContainsFunc(n.failures[:failures], func(f failed) bool {
		return f.Code != fault.Overloaded && f.Code != fault.Limited && f.Code != fault.Ineligible
	})
}

// waited returns how long the task had waited, after the given number of failures, since the last of them
// which produced tokens or was its first loss.
func (n *naive) waited(failures int) time.Duration {
	from := failures
	for from > 0 && n.out(from) == n.out(from-1) && n.bound(from) == n.bound(from-1) {
		from--
	}
	var all time.Duration
	for _, w := range n.waits {
		if w.failures >= from && w.failures <= failures {
			all += w.took
		}
	}
	return all
}

// counts reports whether failure i counts against the limit.
func (n *naive) counts(i int) bool {
	switch n.failures[i].Code {
	case fault.Draining, fault.Ineligible:
		return false
	case fault.Overloaded, fault.Limited:
		// The wait before it, not the one after it.
		before := *n
		before.waits = slices.DeleteFunc(slices.Clone(n.waits), func(w wait) bool { return w.failures > i })
		return !n.bound(i+1) || before.waited(i+1) >= n.cfg.MaxWait
	}
	return true
}

func (n *naive) counted() int {
	all := 0
	for i := range n.failures {
		if n.counts(i) {
			all++
		}
	}
	return all
}

// patience returns the longest wait of the task in its present state.
func (n *naive) patience(code fault.Code) time.Duration {
	tried := len(n.failures)
	switch {
	case !slices.Contains([]fault.Code{fault.Unavailable, fault.Overloaded, fault.Limited}, code):
		return 0
	case n.bound(tried):
		return n.cfg.MaxWait
	case tried == 0 && code == fault.Unavailable:
		return n.cfg.FirstWait
	}
	return 0
}

// repeated reports whether the last two failures are of engines which report the same message for the
// request, at one position.
func (n *naive) repeated() bool {
	last := len(n.failures) - 1
	if last < 1 {
		return false
	}
	a, b := n.failures[last-1], n.failures[last]
	return a.Code == fault.EngineError && b.Code == a.Code && b.Message == a.Message && n.out(last+1) == n.out(last)
}

// unless returns why, or Final if the last failure was an engine's on the request.
func (n *naive) unless(why GiveUpReason) GiveUpReason {
	if last := len(n.failures) - 1; last >= 0 && n.failures[last].Code == fault.EngineError {
		return Final
	}
	return why
}

// afterFailure returns the action which must follow the last failure.
func (n *naive) afterFailure() (Action, GiveUpReason) {
	f := n.failures[len(n.failures)-1]
	switch {
	case !f.Code.Class().Retryable && f.Code != fault.EngineError, n.repeated():
		return GiveUp, Final
	case n.cfg.Pinned:
		return GiveUp, n.unless(Pinned)
	case len(n.failures) == n.cfg.MaxAttempts:
		return GiveUp, n.unless(Exhausted)
	case n.counts(len(n.failures)-1) && n.counted() > max(n.cfg.MaxFailures, 0):
		return GiveUp, n.unless(Exhausted)
	}
	return Pause, NoReason
}

// fleet is the workers and the router of a task.
type fleet struct {
	now   kv.Mono
	lives map[kv.WorkerID]uint64
	out   int // tokens sent
}

const workers = 5

func (w *fleet) life(id kv.WorkerID) (uint64, bool) {
	epoch, known := w.lives[id]
	return epoch, known
}

func (w *fleet) advance(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{1, 7, 90, 600, 60000}).Draw(t, "ms")) * time.Millisecond)
}

// change adds, removes or restarts a worker.
func (w *fleet) change(t *rapid.T) {
	id := kv.WorkerID(rapid.IntRange(1, workers).Draw(t, "changes"))
	if epoch := rapid.Uint64Range(0, 3).Draw(t, "epoch"); epoch > 0 {
		w.lives[id] = epoch
	} else {
		delete(w.lives, id)
	}
}

// moves runs one task through a fleet which changes at random, to its end.
func moves(t *rapid.T) {
	ms := func(name string, most int) time.Duration {
		return time.Duration(rapid.SampledFrom([]int{-1, most / 20, most}).Draw(t, name)) * time.Millisecond
	}
	cfg := Config{
		MaxFailures: rapid.SampledFrom([]int{-1, 0, 1, 3, 9}).Draw(t, "limit"),
		MaxAttempts: rapid.SampledFrom([]int{1, 4, 12, 30}).Draw(t, "attempts"),
		MaxWait:     ms("wait", 2000), FirstWait: ms("first", 500),
		Pinned: rapid.IntRange(0, 9).Draw(t, "pinned") == 0,
	}
	seed := rapid.Uint64().Draw(t, "seed")
	m, twin := New(cfg, seed), New(cfg, seed)
	n := &naive{cfg: cfg}
	w := &fleet{lives: map[kv.WorkerID]uint64{}}
	same := func(a, b Step) Step {
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		if a.String() != b.String() {
			t.Fatalf("the same calls give %v and %v", a, b)
		}
		return a
	}
	sorted := func(ids []kv.WorkerID) []kv.WorkerID {
		ids = slices.Clone(ids)
		slices.Sort(ids)
		return ids
	}
	next := func() Step {
		step := same(m.Next(w.now, w.life), twin.Next(w.now, w.life))
		if want := n.excluded(w.life); step.Action != Try || !slices.Equal(sorted(step.Exclude), want) {
			t.Fatalf("%v, want to try any but %v", step, want)
		}
		return step
	}

	step, short := next(), time.Duration(0)
	for range 100_000 {
		switch step.Action {
		case GiveUp:
			return
		case Try:
			if rapid.Bool().Draw(t, "change") {
				w.change(t)
			}
			id := rapid.SampledFrom([]kv.WorkerID{1, 2, 3, 4, 5, workers + 1}).Draw(t, "worker")
			if id > workers || slices.Contains(step.Exclude, id) {
				code := rapid.SampledFrom([]fault.Code{fault.Unavailable, fault.Unavailable, fault.Overloaded, fault.Limited, fault.NotFound}).Draw(t, "code")
				excluded := sorted(step.Exclude)
				barred := n.barred(w.now, excluded)
				left := n.patience(code) - n.waited(len(n.failures))
				step = same(m.HandleNoWorker(w.now, code), twin.HandleNoWorker(w.now, code))
				switch {
				case len(barred) < len(excluded):
					if step.Action != Try || !slices.Equal(sorted(step.Exclude), barred) {
						t.Fatalf("%v, want to try any but %v", step, barred)
					}
				case left > 0:
					if step.Action != Await || step.Wait <= 0 || step.Wait > left || step.Wait > maxPollWait*3/2 || step.Wait < minPollWait && step.Wait != left {
						t.Fatalf("%v, with %v left", step, left)
					}
				case step.Action != GiveUp || (step.Reason == Refused) != (len(n.failures) == 0) || step.Reason != Refused && step.Reason != n.unless(Exhausted):
					t.Fatalf("%v, with no time left and %d failures", step, len(n.failures))
				}
				continue
			}
			f := Failure{Worker: id, Epoch: w.lives[id]}
			f.Code = rapid.SampledFrom([]fault.Code{
				fault.Unavailable, fault.Unavailable, fault.Unavailable, fault.Draining, fault.Draining, fault.Ineligible,
				fault.Overloaded, fault.Limited, fault.Deadline, fault.Internal, fault.EngineError, fault.EngineError,
				fault.MediaFailed, fault.TransferFailed, fault.PoolLost,
			}).Draw(t, "code")
			if f.Code == fault.EngineError {
				f.Message = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "words")
			}
			progress := rapid.Bool().Draw(t, "tokens")
			if progress {
				w.out++
			}
			f.Tokens = w.out
			w.advance(t)
			n.failures = append(n.failures, failed{f, w.now})
			step = same(m.HandleFailure(w.now, f), twin.HandleFailure(w.now, f))
			if do, why := n.afterFailure(); step.Action != do || step.Reason != why {
				t.Fatalf("%v after %+v, want %v", step, f, Step{Action: do, Reason: why})
			}
			if progress {
				short = 0
			}
		case Pause:
			// Immediate after tokens and after failures which do not count; then longer and longer.
			i := len(n.failures) - 1
			switch {
			case !n.counts(i):
				if step.Wait != 0 {
					t.Fatalf("%v after a failure that does not count", step)
				}
			case short == 0:
				if step.Wait != 0 {
					t.Fatalf("%v after the first failure", step)
				}
				short = minRetryWait
			default:
				if step.Wait < short || step.Wait > short*3/2 {
					t.Fatalf("%v, want %v and up to a half more", step, short)
				}
				short = min(2*short, maxRetryWait)
			}
			w.now = w.now.Add(step.Wait)
			step = next()
		case Await:
			took := step.Wait
			if rapid.IntRange(0, 3).Draw(t, "news") == 0 {
				took = max(1, time.Duration(rapid.Int64Range(1, int64(took)).Draw(t, "took")))
				took = max(took, min(step.Wait, time.Millisecond))
				w.change(t)
				m.WorkersChanged()
				twin.WorkersChanged()
			}
			w.now = w.now.Add(took)
			n.waits = append(n.waits, wait{len(n.failures), took})
			step = next()
		}
	}
	t.Fatal("it does not end")
}

// TestMachineAgreesWithNaiveTwin also shows that every task ends, and that only the arguments decide.
func TestMachineAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, moves) }

func FuzzMachine(f *testing.F) { f.Fuzz(rapid.MakeFuzz(moves)) }

// TestSeedsDiffer: tasks which failed at the same time do not retry at the same time.
func TestSeedsDiffer(t *testing.T) {
	seen := map[time.Duration]bool{}
	for seed := range uint64(100) {
		m := New(Config{MaxWait: time.Minute, MaxFailures: 9}, seed)
		m.Next(0, nil)
		m.HandleFailure(0, Failure{Worker: 1, Code: fault.Unavailable})
		seen[m.HandleNoWorker(0, fault.Unavailable).Wait] = true
	}
	if len(seen) < 90 {
		t.Errorf("100 tasks wait for %d different times", len(seen))
	}
}
