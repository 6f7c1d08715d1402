package disagg

import (
	"fmt"
	"math"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/rates"
)

// failureRig decides about the same prompt again and again.
type failureRig struct {
	t   *testing.T
	r   *SplitRates
	now kv.Mono
	in  SplitInputs
	// pinned says that the next requests name the only prefill worker.
	pinned bool
}

func newFailureRig(t *testing.T) *failureRig { return newFailureRigOf(t, testHandoff()) }

func newFailureRigOf(t *testing.T, handoffs HandoffConfig) *failureRig {
	t.Helper()
	r, err := NewSplitRates(rates.Config{}, handoffs, 1000)
	if err != nil {
		t.Fatal(err)
	}
	in := SplitInputs{Tokens: 8000, BlockSize: 16, Decoding: 10, PrefillWorkers: 1}
	return &failureRig{t: t, r: r, now: kv.Mono(time.Minute), in: in}
}

func (f *failureRig) decide() Decision {
	split, in := DefaultSplit(), f.in
	return f.r.Decide(f.now, &split, &in, &Candidates{Workers: []PrefillCandidate{{Worker: workerA}}, Pinned: f.pinned})
}

// expect checks which rule decides now.
func (f *failureRig) expect(when string, want SplitReason) Decision {
	f.t.Helper()
	d := f.decide()
	if d.Reason != want || d.Remote != (want == CheaperRemote || want == RemoteRetry) {
		f.t.Errorf("%s: %v, want %v: %+v", when, d.Reason, want, d)
	}
	return d
}

// end reports the end of a handoff, a time later.
func (f *failureRig) end(d Decision, end HandoffState, after, lost time.Duration) {
	f.now = f.now.Add(after)
	f.r.RecordHandoff(f.now, &d, end, lost)
}

// fail has handoffs fail until local prefill is chosen. It returns the last decision for a prefill worker.
func (f *failureRig) fail(lost time.Duration) (last Decision) {
	f.t.Helper()
	for range 100 {
		d := f.decide()
		if !d.Remote {
			return last
		}
		last = d
		f.end(d, Local, lost, lost)
	}
	f.t.Fatalf("100 handoffs have failed, and the next one is remote")
	return last
}

// TestFailuresCount: what failed attempts have lost counts against remote prefill, and prompts stay where they are. After
// a pause of 16 times the lost time one prompt at a time is sent away again, until so many have arrived that the loss is
// less than the saving.
func TestFailuresCount(t *testing.T) {
	f := newFailureRig(t)
	first := f.expect("before failures", CheaperRemote)
	saving := first.LocalCost.Sum() - first.RemoteCost.Sum()
	const lost = 5 * time.Second
	failed := f.fail(lost)
	if got := f.decide(); got.RemoteCost.Failures <= saving || got.RemoteCost.Failures > 5000 || failed.Reason != CheaperRemote {
		t.Errorf("the loss is %v ms, the saving %v ms: %+v", got.RemoteCost.Failures, saving, got)
	}
	f.now = f.now.Add(16*lost - 1)
	f.expect("before the end of the pause", CheaperLocal)
	f.now++
	retry := f.expect("at the end of the pause", RemoteRetry)
	f.expect("while another prompt is the retry", CheaperLocal)

	f.end(retry, Local, lost, lost)
	f.now = f.now.Add(16*lost - 1)
	f.expect("after a retry which failed", CheaperLocal)
	f.now++
	retry = f.expect("after its pause", RemoteRetry)

	loss := f.r.lost
	f.end(retry, Aborted, time.Second, 0)
	if f.r.lost != loss {
		t.Errorf("a retry which was cancelled changes the loss from %v to %v ms", loss, f.r.lost)
	}
	retry = f.expect("after a retry which was cancelled", RemoteRetry)
	f.end(retry, Decoding, time.Second, 0)
	if f.r.lost >= loss {
		t.Errorf("a retry which arrived changes the loss from %v to %v ms", loss, f.r.lost)
	}
	arrived := 0
	for d := f.decide(); d.Reason != CheaperRemote; d = f.decide() {
		if d.Reason != RemoteRetry || arrived > 100 {
			t.Fatalf("after %d retries which arrived: %+v", arrived, d)
		}
		f.expect("beside it", CheaperLocal)
		f.end(d, Decoding, time.Second, 0)
		arrived++
	}
	if arrived == 0 {
		t.Error("one retry which arrived makes up for many failures")
	}
}

// TestRetryUnreported: a retry whose end is not reported blocks others for two minutes at most, and so does a failure
// which lasted longer than anything.
func TestRetryUnreported(t *testing.T) {
	f := newFailureRig(t)
	f.fail(5 * time.Second)
	for range 3 {
		f.now = f.now.Add(2 * time.Minute)
		f.expect("after two minutes", RemoteRetry)
		f.now = f.now.Add(2*time.Minute - 1)
		f.expect("just before two minutes", CheaperLocal)
	}
	f.now = f.now.Add(2 * time.Minute)
	f.end(f.expect("after two minutes", RemoteRetry), Local, 0, 1<<62)
	f.now = f.now.Add(2*time.Minute - 1)
	f.expect("after a failure which lasted for ever", CheaperLocal)
	f.now++
	f.expect("two minutes after it", RemoteRetry)
}

// TestLongRetry: a retry blocks others as long as its handoff may last, if that is more than two minutes.
func TestLongRetry(t *testing.T) {
	cfg := testHandoff()
	cfg.LocalWait, cfg.Budget = time.Second, 3*time.Minute
	f := newFailureRigOf(t, cfg)
	f.fail(5 * time.Second)
	f.now = f.now.Add(2 * time.Minute)
	f.expect("after two minutes", RemoteRetry)
	// A look-up comes before the decision. A reservation and the attempts follow it.
	f.now = f.now.Add(cfg.LocalWait + cfg.Budget - 1)
	f.expect("while the retry may last", CheaperLocal)
	f.now++
	f.expect("when it cannot last any more", RemoteRetry)
}

// TestNamedFailures: a worker which failed a request that names it gets no such request until 16 times the lost time has
// passed, two minutes at most; then one at a time, until one succeeds. The policy makes no difference, and other workers
// and other requests have nothing to do with it.
func TestNamedFailures(t *testing.T) {
	f := newFailureRig(t)
	f.pinned = true
	const lost = 3 * time.Second
	f.end(f.expect("at first", CheaperRemote), Local, 0, lost)
	f.expect("after a failure", NamedHasFailed)
	always, in := SplitConfig{Policy: AlwaysRemote}, f.in
	if d := f.r.Decide(f.now, &always, &in, &Candidates{Workers: []PrefillCandidate{{Worker: workerA}}, Pinned: true}); d.Remote || d.Reason != NamedHasFailed {
		t.Errorf("of policy always: %+v", d)
	}
	if d := f.r.Decide(f.now, &always, &in, &Candidates{Workers: []PrefillCandidate{{Worker: workerB}}, Pinned: true}); !d.Remote || d.To != workerB {
		t.Errorf("of another worker: %+v", d)
	}
	if d := f.r.Decide(f.now, &always, &in, &Candidates{Workers: []PrefillCandidate{{Worker: workerA}}}); !d.Remote {
		t.Errorf("of a request which names none: %+v", d)
	}
	f.now = f.now.Add(16*lost - 1)
	f.expect("just before the retry", NamedHasFailed)
	f.now++
	retry := f.expect("a retry", CheaperRemote)
	f.expect("beside the retry", NamedHasFailed)
	f.end(retry, Aborted, 0, 0)
	retry = f.expect("after a retry which was cancelled", CheaperRemote)
	f.end(retry, Local, 0, time.Hour)
	f.now = f.now.Add(2*time.Minute - 1)
	f.expect("just before the next retry", NamedHasFailed)
	f.now++
	f.end(f.expect("the next retry", CheaperRemote), Decoding, 0, 0)
	for range 3 {
		f.expect("after a success", CheaperRemote)
	}
	// A retry whose end is not reported does not hold others back for ever.
	f.end(f.decide(), Local, 0, lost)
	f.now = f.now.Add(16 * lost)
	f.expect("a retry without an end", CheaperRemote)
	f.now = f.now.Add(f.r.retryWait - 1)
	f.expect("while it may last", NamedHasFailed)
	f.now++
	f.expect("when it cannot last any more", CheaperRemote)
}

// TestNamedFailuresAreBounded: so many workers are remembered, and no more while they are held back.
func TestNamedFailuresAreBounded(t *testing.T) {
	f := newFailureRig(t)
	fail := func(first, n int) {
		for i := range n {
			f.end(Decision{Pinned: true, To: Incarnation{Worker: kv.Worker{ID: kv.WorkerID(first + i)}, Epoch: 1}}, Local, 0, time.Minute)
		}
	}
	fail(100, maxNamedFailures+50)
	if n := len(f.r.named.retryAt); n != maxNamedFailures {
		t.Errorf("%d workers are remembered", n)
	}
	f.now = f.now.Add(2*maxPause + 1)
	fail(1000, 1)
	if n := len(f.r.named.retryAt); n != 1 {
		t.Errorf("%d workers are remembered when the first ones could have been tried again for long", n)
	}
}

// TestPinnedFailures: what happens to handoffs whose worker the request names says nothing of others, and what happens to
// others nothing of them. So they are no retries.
func TestPinnedFailures(t *testing.T) {
	f := newFailureRig(t)
	f.pinned = true
	for range 30 {
		f.end(f.expect("when pinned handoffs fail", CheaperRemote), Local, 0, 10*time.Second)
		f.now = f.now.Add(2 * time.Minute)
	}
	f.pinned = false
	if d := f.expect("after pinned handoffs which failed", CheaperRemote); d.RemoteCost.Failures != 0 {
		t.Errorf("failures of pinned handoffs cost %v ms", d.RemoteCost.Failures)
	}
	f.fail(5 * time.Second)
	loss := f.decide().RemoteCost.Failures
	f.now = f.now.Add(2 * time.Minute)
	f.pinned = true
	for range 30 {
		f.end(f.expect("of a pinned request, after other failures", CheaperRemote), Decoding, 0, 0)
	}
	f.pinned = false
	if d := f.expect("beside pinned requests", RemoteRetry); d.RemoteCost.Failures != loss {
		t.Errorf("after pinned handoffs which arrived failures cost %v ms, before %v", d.RemoteCost.Failures, loss)
	}
}

// TestRareFailures: a failure which takes less than remote prefill saves changes no decision, and the mean forgets it.
func TestRareFailures(t *testing.T) {
	f := newFailureRig(t)
	d := f.expect("at first", CheaperRemote)
	f.end(d, Decoding, 0, 100*time.Millisecond)
	d = f.expect("after a short failure", CheaperRemote)
	if d.RemoteCost.Failures < 9 || d.RemoteCost.Failures > 11 {
		t.Errorf("a loss of 100 ms counts as %v ms", d.RemoteCost.Failures)
	}
	for range 50 {
		f.end(d, Decoding, 0, 0)
	}
	if got := f.decide().RemoteCost.Failures; got > 0.1 {
		t.Errorf("after 50 handoffs which arrived %v ms are left", got)
	}
}

// TestFailingHour: in an hour in which all attempts fail, whatever the load and however soon they fail, few prompts are
// sent away: after the first ones a sixteenth of the time of one request at most is lost. Then the prefill workers come
// back, and are used within two minutes.
func TestFailingHour(t *testing.T) {
	for _, decoding := range []int{1, 10, 100} {
		for _, lost := range []time.Duration{50 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprintf("%d answers run, %v is lost", decoding, lost), func(t *testing.T) {
				f := newFailureRig(t)
				f.in.Decoding = decoding
				f.failForAnHour(lost)
			})
		}
	}
}

func (f *failureRig) failForAnHour(lost time.Duration) {
	const every = 100 * time.Millisecond
	first := f.expect("at first", CheaperRemote)
	saving := first.LocalCost.Sum() - first.RemoteCost.Sum()
	type ending struct {
		at kv.Mono
		d  Decision
	}
	var open []ending
	run := func(steps int, fails bool) (remote, retries int) {
		for range steps {
			f.now = f.now.Add(every)
			for len(open) > 0 && open[0].at <= f.now {
				if fails {
					f.end(open[0].d, Local, 0, lost)
				} else {
					f.end(open[0].d, Decoding, 0, 0)
				}
				open = open[1:]
			}
			if d := f.decide(); d.Remote {
				after := lost
				if !fails {
					after = every
				}
				open = append(open, ending{f.now.Add(after), d})
				if remote++; d.Reason == RemoteRetry {
					retries++
				}
			}
		}
		return remote, retries
	}
	perHour := int(time.Hour / every)
	// So many failures are needed until the expected loss is more than the expected saving, and so many prompts are under
	// way meanwhile.
	lostMs := float64(lost) / float64(time.Millisecond)
	needed := int(math.Log(lostMs/(lostMs+saving))/math.Log(1-lossShare)) + 1
	underWay := int(lost/every) + 1
	remote, retries := run(perHour, true)
	if most := int(time.Hour/(retryPauses*lost)) + 1; retries == 0 || retries > most || remote-retries > needed+underWay {
		f.t.Errorf("%d prompts were sent away, %d of them to try again, of %d; want %d and %d at most", remote, retries, perHour, needed+underWay, most)
	}
	run(int(2*time.Minute/every), false)
	if remote, retries := run(100, false); remote != 100 || retries != 0 {
		f.t.Errorf("two minutes after the end of the failures %d of 100 prompts are remote, %d of them to try again", remote, retries)
	}
}

// TestShareOfFailures: a prompt whose handoff fails is computed here all the same. So the saving counts less, the more
// handoffs end so, however little time they take; not the handoffs which arrive after a failed attempt.
func TestShareOfFailures(t *testing.T) {
	f := newFailureRig(t)
	d := f.expect("at first", CheaperRemote)
	saving := d.LocalCost.Sum() - d.RemoteCost.Sum()
	failures := func(when string, want float64) {
		t.Helper()
		if got := f.decide().RemoteCost.Failures; math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: failures cost %v ms, want %v", when, got, want)
		}
	}
	f.end(d, Decoding, 0, time.Millisecond)
	failures("after one which arrived at its second attempt", 0.1)
	f.end(d, Aborted, 0, time.Millisecond)
	failures("after one which was cancelled at its second attempt", 0.19)
	f.end(d, Local, 0, 0)
	failures("after one whose blocks were reclaimed", 0.19)
	f.end(d, Local, 0, time.Millisecond)
	failures("after one which failed", 0.271+0.1*saving)
	f.end(d, Decoding, 0, 0)
	failures("after one which arrived", 0.9*(0.271+0.1*saving))
	f.fail(time.Millisecond)
	// Without a saving there is nothing to lose but time.
	f.in.Decoding, f.in.Cached = 0, 7000
	if got := f.decide(); got.RemoteCost.Failures != got.Inputs.FailureMs {
		t.Errorf("where nothing would be saved: %+v", got)
	}
}
