package disagg

import (
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
)

// The tests of this file are named by what they show. What production systems met is cited; they share no code with
// this.

var (
	workerA = incarnationOf(3, 1)
	workerB = incarnationOf(4, 1)
	ref1    = AttemptRef{7, 1}
	ref2    = AttemptRef{7, 2}
)

func incarnationOf(id kv.WorkerID, epoch uint64) Incarnation {
	return Incarnation{Worker: kv.Worker{ID: id}, Epoch: epoch}
}

// handoffIn returns a handoff of 100 tokens which has come to a state, and the time.
func handoffIn(state HandoffState) (*Handoff, kv.Mono) {
	h, _ := StartHandoff(0, testHandoff(), HandoffRequest{First: ref1, Tokens: 100, BlockSize: 16}, nil)
	if state > LookingUp {
		h.HandlePrefix(0, &Decision{Remote: true}, nil)
	}
	if state > Reserving {
		h.HandleReserved(0, 32, nil)
	}
	if state > Queued {
		h.HandlePull(0, ref1, workerA, nil)
	}
	switch state {
	case Decoding:
		h.HandleNotify(ref1, nil)
	case Local:
		h.ReclaimBlocks(nil)
	case Aborted:
		h.CancelHandoff(nil)
	}
	return h, 0
}

// legsIn returns legs of an order which have come to a state.
func legsIn(order LegOrder, state LegsState) *Legs {
	l, _ := StartLegs(0, testLegs(order), ref1, 100, nil)
	if state == LegsLookingUp {
		return l
	}
	l.HandlePrefix(0, &Decision{Remote: true}, nil)
	l.HandlePrefillPlaced(0, ref1, workerA, 0, nil) // to BothLegs, if both run at once
	switch {
	case state == DecodeLeg && order == PrefillFirst:
		l.HandlePrefilled(0, ref1, workerA, GaveHandoff, time.Minute, nil)
	case state == DecodeLeg:
		l.HandlePrefilled(0, ref1, workerA, GaveNothing, 0, nil)
	}
	return l
}

// kindsOf returns the kinds of effects, in order.
func kindsOf(out []HandoffEffect) (kinds []HandoffEffectKind) {
	for _, e := range out {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func expectKinds(t *testing.T, what string, out []HandoffEffect, want ...HandoffEffectKind) {
	t.Helper()
	if got := kindsOf(out); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want the kinds %v", what, out, want)
	}
}

// TestConsumedHandoffIsNotGivenAgain: with vLLM's NIXL connector a reference which was used before gave garbage with status
// 200, and one whose blocks the producer had reused gave the previous prompt's answer (vllm#52234).
func TestConsumedHandoffIsNotGivenAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*Legs) []HandoffEffect
	}{
		{"the decode leg failed", func(l *Legs) []HandoffEffect { return l.HandleDecodeFailed(0, ref1, nil) }},
		{"the lease has ended", func(l *Legs) []HandoffEffect { return l.Tick(kv.Mono(time.Minute), nil) }},
		{"the prefill worker restarted", func(l *Legs) []HandoffEffect { return l.HandlePrefillFailed(0, ref1, workerA, nil) }},
	} {
		l := legsIn(PrefillFirst, DecodeLeg)
		out := tt.end(l)
		for range 10 { // nothing makes it give the first one again
			out = l.HandlePrefillPlaced(0, ref1, workerA, 0, out)
			out = l.HandleFirstToken(ref1, out)
			out = l.HandleDecodeFailed(0, ref1, out)
		}
		if slices.ContainsFunc(out, func(e HandoffEffect) bool { return e.Kind == CallDecode }) {
			t.Errorf("%s: %v", tt.name, out)
		}
		if l.State() == PrefillLeg {
			expectKinds(t, tt.name+", the next one", l.HandlePrefilled(0, ref2, workerB, GaveHandoff, 0, nil), CallDecode)
		}
	}
}

// TestHandoffIsNotUsedBeyondItsLease: a decode leg which has given no token when the lease of its blocks ends is aborted,
// since the blocks may hold another prompt by then (vllm#52234).
func TestHandoffIsNotUsedBeyondItsLease(t *testing.T) {
	l := legsIn(PrefillFirst, PrefillLeg)
	l.HandlePrefilled(0, ref1, workerA, GaveHandoff, time.Second, nil)
	if out := l.Tick(kv.Mono(time.Second)-1, nil); len(out) > 0 {
		t.Errorf("before its end: %v", out)
	}
	expectKinds(t, "at the end", l.Tick(kv.Mono(time.Second), nil), AbortDecode, ReleaseHandoff, CallPrefill)
}

// TestLateHandoffIsReleased: what a prefill leg gives after its attempt has ended goes to no decode leg, and its worker
// need not wait for the end of the lease.
func TestLateHandoffIsReleased(t *testing.T) {
	l := legsIn(PrefillFirst, PrefillLeg)
	l.Tick(kv.Mono(5*time.Second), nil)
	for _, late := range []AttemptRef{ref1, {6, 2}} { // an earlier attempt, and an earlier life
		out := l.HandlePrefilled(kv.Mono(5*time.Second), late, workerA, GaveHandoff, time.Minute, nil)
		expectKinds(t, late.String(), out, ReleaseHandoff)
		if out[0].Ref != late || out[0].Peer != workerA || l.State() != PrefillLeg {
			t.Errorf("%v: %v, and then %v", late, out, l.State())
		}
	}
}

// TestLateNotificationChangesNothing: the notification of an attempt which has ended, or of another life of the worker,
// is not that of the present one.
func TestLateNotificationChangesNothing(t *testing.T) {
	h, _ := handoffIn(Prefilling)
	h.HandleTransferFailed(0, ref1, nil)
	h.HandlePull(0, ref2, workerB, nil)
	before := *h
	for _, late := range []AttemptRef{ref1, {6, 2}, {8, 2}, {7, 3}} {
		out := h.HandleNotify(late, nil)
		out = h.HandleTransferFailed(0, late, out)
		out = h.HandlePrefillFailed(0, late, workerB, PrefillFailed, out)
		out = h.HandleQueueFailed(0, late, out)
		h.HandleProgress(1, late)
		if len(out) > 0 || h.State() != Prefilling || h.deadline != before.deadline || h.ref != before.ref {
			t.Errorf("%v: %v, and then %v", late, out, h.State())
		}
	}
	expectKinds(t, "its own", h.HandleNotify(ref2, nil), StartDecode)
}

// TestPullAfterTheDeadlineIsLate: a job which is pulled when its time is over is not admitted, also before the Tick. It
// would have no budget.
func TestPullAfterTheDeadlineIsLate(t *testing.T) {
	h, _ := handoffIn(Queued)
	at, _ := h.Deadline()
	expectKinds(t, "a pull", h.HandlePull(at, ref1, workerA, nil), WithdrawJob, PrefillLocal, RefusePull)
}

// TestQueueFailureOfAnEarlierJob: that the queue has lost a job which failed before says nothing of the present one.
func TestQueueFailureOfAnEarlierJob(t *testing.T) {
	h, _ := handoffIn(Queued)
	expectKinds(t, "the first job fails", h.HandlePrefillFailed(0, ref1, workerA, Incompatible, nil), EnqueueJob)
	expectKinds(t, "it is lost", h.HandleQueueFailed(0, ref1, nil))
	expectKinds(t, "the second is lost", h.HandleQueueFailed(0, ref2, nil), WithdrawJob, PrefillLocal)
}

// TestDuplicatePullIsFenced: a queue delivers jobs again. One worker is admitted to an attempt; only it gets a transfer.
func TestDuplicatePullIsFenced(t *testing.T) {
	h, _ := handoffIn(Queued)
	expectKinds(t, "the first", h.HandlePull(0, ref1, workerA, nil), OpenTransfer, AdmitPull)
	for _, by := range []Incarnation{workerA, workerB} {
		if out := h.HandlePull(0, ref1, by, nil); len(out) != 1 || out[0].Kind != RefusePull || out[0].Peer != by || out[0].Reason != Duplicate {
			t.Errorf("%v: %v", by, out)
		}
	}
	expectKinds(t, "the refused one fails", h.HandlePrefillFailed(0, ref1, workerB, PrefillFailed, nil))
	expectKinds(t, "the admitted one succeeds", h.HandleNotify(ref1, nil), StartDecode)
}

// TestTransferWhichHangsLeaksNothing: SGLang's receivers had a timeout while they waited for a transfer to begin and none
// while it ran. Those which never ended kept their slots until 4 % of the cache was in use (sglang#31800).
func TestTransferWhichHangsLeaksNothing(t *testing.T) {
	const slots = 8
	held := 0
	account := func(out []HandoffEffect) {
		for _, e := range out {
			switch {
			case e.Kind == ReserveBlocks:
				held++
			case e.Kind == FreeBlocks, e.Kind == StartDecode, e.Kind == PrefillLocal && e.Reserved:
				held--
			}
		}
	}
	now := kv.Mono(0)
	for range 50 * slots {
		h, _ := StartHandoff(now, testHandoff(), HandoffRequest{First: ref1, Tokens: 100, BlockSize: 16}, nil)
		account(h.HandlePrefix(now, &Decision{Remote: true}, nil))
		if held > slots {
			t.Fatalf("%d of %d slots are held", held, slots)
		}
		account(h.HandleReserved(now, 0, nil))
		for worker := kv.WorkerID(1); !h.State().IsEnd(); worker++ {
			h.HandlePull(now, h.Ref(), incarnationOf(worker, 1), nil) // the transfer begins, and hangs
			if h.State() != Prefilling {
				t.Fatalf("state %v", h.State())
			}
			now, _ = h.Deadline()
			account(h.Tick(now, nil))
		}
		if h.State() != Local {
			t.Fatalf("state %v: the request is not served", h.State())
		}
	}
	if held != 0 {
		t.Errorf("%d slots are leaked", held)
	}
}

// TestProgressWithoutEndMeetsTheBudget: a transfer which trickles renews its lease for ever, and ends nevertheless.
func TestProgressWithoutEndMeetsTheBudget(t *testing.T) {
	h, now := handoffIn(Prefilling)
	budget := kv.Mono(testHandoff().Budget)
	for ; now < budget; now += kv.Mono(100 * time.Millisecond) {
		h.HandleProgress(now, ref1)
		if out := h.Tick(now, nil); len(out) > 0 {
			t.Fatalf("at %v: %v", time.Duration(now), out)
		}
	}
	expectKinds(t, "at the budget", h.Tick(budget, nil), CloseTransfer, AbortPrefill, PrefillLocal)
}

// TestWriteWhichFailsIsTold: a prefill worker of vLLM which could not start a write only logged it, and the decode worker
// counted to a number of notifications which never came (vllm#50754).
func TestWriteWhichFailsIsTold(t *testing.T) {
	h, _ := handoffIn(Prefilling)
	j, _ := StartJob(0, testJob(), JobOffer{Ref: ref1, Start: 32, End: 96}, testMetadata(1), testMetadata(7), nil)
	j.HandlePrompt(0, 0, nil)
	j.HandleComputed(nil)
	out := j.HandleFailed(nil)
	expectKinds(t, "the prefill worker", out, TellDecode, AckJob, ReleasePrompt)
	// No time passes: the decode worker does not wait.
	expectKinds(t, "the decode worker", h.HandlePrefillFailed(0, out[0].Ref, workerA, out[0].Reason, nil), CloseTransfer, EnqueueJob)
}

// TestJobWhichIsOverDoesNothing: whatever comes after its end.
func TestJobWhichIsOverDoesNothing(t *testing.T) {
	for _, owner := range []*Metadata{nil, testMetadata(6)} {
		j, _ := StartJob(0, testJob(), JobOffer{Ref: ref1, Start: 32, End: 96}, testMetadata(1), owner, nil)
		out := j.HandlePrompt(0, 0, nil)
		out = j.HandleComputed(out)
		out = j.HandleWritten(out)
		out = j.HandleRefused(out)
		out = j.HandleFailed(out)
		out = j.Tick(kv.Mono(time.Hour), out)
		expectKinds(t, "after its end", out)
	}
}

// TestEachSideSaysThatItGivesUp: whatever ends an attempt, the other side is told, unless it is what told.
func TestEachSideSaysThatItGivesUp(t *testing.T) {
	tells := map[HandoffEffectKind]bool{AbortPrefill: true, AbortDecode: true, ReleaseHandoff: true, TellDecode: true, WithdrawJob: true}
	check := func(what string, out []HandoffEffect, want ...HandoffEffectKind) {
		t.Helper()
		got := slices.DeleteFunc(kindsOf(out), func(k HandoffEffectKind) bool { return !tells[k] })
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v", what, out)
		}
	}
	late := kv.Mono(time.Hour)
	for _, tt := range []struct {
		what string
		end  func(*Handoff) []HandoffEffect
	}{
		{"cancelled", func(h *Handoff) []HandoffEffect { return h.CancelHandoff(nil) }},
		{"reclaimed", func(h *Handoff) []HandoffEffect { return h.ReclaimBlocks(nil) }},
		{"time", func(h *Handoff) []HandoffEffect { return h.Tick(late, nil) }},
		{"transfer failed", func(h *Handoff) []HandoffEffect { return h.HandleTransferFailed(late, ref1, nil) }},
	} {
		h, _ := handoffIn(Prefilling)
		check("prefilling, "+tt.what, tt.end(h), AbortPrefill)
		if tt.what != "transfer failed" {
			h, _ = handoffIn(Queued)
			check("queued, "+tt.what, tt.end(h), WithdrawJob)
		}
	}
	check("both legs, cancelled", legsIn(BothAtOnce, BothLegs).CancelLegs(nil), AbortPrefill, AbortDecode)
	check("both legs, time", legsIn(BothAtOnce, BothLegs).Tick(late, nil), AbortPrefill, AbortDecode)
	check("both legs, no prefill", legsIn(BothAtOnce, BothLegs).HandlePrefillFailed(late, ref1, workerA, nil), AbortDecode)
	check("both legs, no decode", legsIn(BothAtOnce, BothLegs).HandleDecodeFailed(late, ref1, nil), AbortPrefill)
	check("the decode leg of a room, time", legsIn(BothAtOnce, DecodeLeg).Tick(late, nil), AbortDecode)
	check("the decode leg, time", legsIn(PrefillFirst, DecodeLeg).Tick(late, nil), AbortDecode, ReleaseHandoff)
	check("the decode leg, cancelled", legsIn(PrefillFirst, DecodeLeg).CancelLegs(nil), AbortDecode, ReleaseHandoff)
	check("the prefill leg, time", legsIn(PrefillFirst, PrefillLeg).Tick(late, nil), AbortPrefill)
	check("the prefill leg, cancelled", legsIn(PrefillFirst, PrefillLeg).CancelLegs(nil), AbortPrefill)
}

// TestTimeAloneFreesAFullPool: TensorRT-LLM looked for timed out transfers when it scheduled a new request. Once leaked
// blocks filled the pool it scheduled none, and so never looked (TensorRT-LLM#12313). Here no event is needed but time,
// and no worker is waited for: closing the transfer and giving the blocks on are effects of the same event.
func TestTimeAloneFreesAFullPool(t *testing.T) {
	cfg := testHandoff()
	cfg.MaxAttempts = 1
	var pool []*Handoff
	for range 100 { // fills it, with prefill workers which never say anything again
		h, _ := StartHandoff(0, cfg, HandoffRequest{First: ref1, Tokens: 100, BlockSize: 16}, nil)
		h.HandlePrefix(0, &Decision{Remote: true}, nil)
		h.HandleReserved(0, 0, nil)
		h.HandlePull(0, ref1, workerA, nil)
		pool = append(pool, h)
	}
	for _, h := range pool {
		at, ok := h.Deadline()
		if !ok || at > kv.Mono(cfg.Silence) {
			t.Fatalf("deadline %v %t", at, ok)
		}
		out := h.Tick(at, nil)
		expectKinds(t, "after its deadline", out, CloseTransfer, AbortPrefill, PrefillLocal)
		if !out[2].Reserved {
			t.Errorf("the reservation is not given on: %v", out[2])
		}
	}
	h, _ := handoffIn(Prefilling)
	expectKinds(t, "the engine takes blocks back", h.ReclaimBlocks(nil), CloseTransfer, AbortPrefill, FreeBlocks, PrefillLocal)
}

// TestEveryStateHasADeadline: in each live state of each machine time alone leads to an end.
func TestEveryStateHasADeadline(t *testing.T) {
	type machine interface {
		Deadline() (kv.Mono, bool)
		Tick(now kv.Mono, out []HandoffEffect) []HandoffEffect
	}
	ends := func(name string, m machine, limit time.Duration) {
		t.Helper()
		for range 1000 {
			at, ok := m.Deadline()
			if !ok {
				return
			}
			if at > kv.Mono(limit) {
				break
			}
			m.Tick(at, nil)
		}
		t.Errorf("%s: no end within %v", name, limit)
	}
	cfg := testHandoff()
	for s := LookingUp; s <= Prefilling; s++ {
		h, _ := handoffIn(s)
		ends(s.String(), h, 2*cfg.LocalWait+cfg.Budget)
	}
	for s := Claiming; s <= Writing; s++ {
		j, _ := StartJob(0, testJob(), JobOffer{Ref: ref1}, testMetadata(1), testMetadata(7), nil)
		if s > Claiming {
			j.HandlePrompt(0, 0, nil)
		}
		if s > Computing {
			j.HandleComputed(nil)
		}
		if j.State() != s {
			t.Fatalf("state %v, want %v", j.State(), s)
		}
		ends(s.String(), j, testJob().Budget)
	}
	for _, order := range []LegOrder{PrefillFirst, BothAtOnce} {
		c := testLegs(order)
		for _, s := range []LegsState{LegsLookingUp, PrefillLeg, BothLegs, DecodeLeg} {
			if s == PrefillLeg && order == BothAtOnce || s == BothLegs && order == PrefillFirst {
				continue
			}
			l := legsIn(order, s)
			if l.State() != s {
				t.Fatalf("state %v, want %v", l.State(), s)
			}
			ends(s.String(), l, c.LocalWait+c.Budget+c.FirstTokenWait)
		}
	}
}

// TestCancelLeaksNothing: a request is cancelled in each state. What it had is freed in this order: the transfer is
// closed before its blocks are free. After that nothing has an effect, and a pull is refused.
func TestCancelLeaksNothing(t *testing.T) {
	for state, want := range [][]HandoffEffectKind{
		LookingUp:  nil,
		Reserving:  {FreeBlocks},
		Queued:     {WithdrawJob, FreeBlocks},
		Prefilling: {CloseTransfer, AbortPrefill, FreeBlocks},
		Decoding:   nil,
		Local:      nil,
		Aborted:    nil,
	} {
		state := HandoffState(state)
		h, _ := handoffIn(state)
		if h.State() != state {
			t.Fatalf("state %v, want %v", h.State(), state)
		}
		expectKinds(t, state.String(), h.CancelHandoff(nil), want...)
		out := h.CancelHandoff(nil)
		out = h.HandlePrefix(1, &Decision{Remote: true}, out)
		out = h.HandleReserved(1, 0, out)
		out = h.HandleNotify(ref1, out)
		out = h.HandleTransferFailed(1, ref1, out)
		out = h.HandlePrefillFailed(1, ref1, workerA, PrefillFailed, out)
		out = h.HandleQueueFailed(0, ref1, out)
		out = h.ReclaimBlocks(out)
		h.HandleProgress(1, ref1)
		out = h.Tick(kv.Mono(time.Hour), out)
		expectKinds(t, state.String()+", after it", out)
		if _, ok := h.Deadline(); ok {
			t.Errorf("%v: a deadline after the end", state)
		}
		expectKinds(t, state.String()+", a pull", h.HandlePull(1, ref1, workerB, nil), RefusePull)
	}
}

// TestFailedPrefillNeverFailsTheRequest: whatever fails, and how often, the request is prefilled here at last, with what
// is reserved for it.
func TestFailedPrefillNeverFailsTheRequest(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(*Handoff) []HandoffEffect
	}{
		{"the worker", func(h *Handoff) []HandoffEffect {
			return h.HandlePrefillFailed(0, h.Ref(), h.puller, PrefillFailed, nil)
		}},
		{"the transfer", func(h *Handoff) []HandoffEffect { return h.HandleTransferFailed(0, h.Ref(), nil) }},
	} {
		h, _ := handoffIn(Queued)
		jobs := 1
		for worker := kv.WorkerID(1); !h.State().IsEnd(); worker++ {
			h.HandlePull(0, h.Ref(), incarnationOf(worker, 1), nil)
			out := tt.fail(h)
			switch last := out[len(out)-1]; last.Kind {
			case EnqueueJob:
				jobs++
			case PrefillLocal:
				if !last.Reserved || last.Start != 32 {
					t.Errorf("%s: %v", tt.name, last)
				}
			default:
				t.Fatalf("%s: %v", tt.name, out)
			}
		}
		if h.State() != Local || jobs != testHandoff().MaxAttempts {
			t.Errorf("%s: state %v after %d jobs", tt.name, h.State(), jobs)
		}
	}
}

// TestFailedWorkersAreNotCalledAgain: a worker which failed a request, or was too slow for it, is named so until it
// restarts.
func TestFailedWorkersAreNotCalledAgain(t *testing.T) {
	late := kv.Mono(time.Hour)
	for _, tt := range []struct {
		name string
		end  func(*Legs)
	}{
		{"it failed", func(l *Legs) { l.HandlePrefillFailed(0, ref1, workerA, nil) }},
		{"it was slow", func(l *Legs) { l.Tick(late, nil) }},
	} {
		for _, l := range []*Legs{legsIn(PrefillFirst, PrefillLeg), legsIn(PrefillFirst, DecodeLeg), legsIn(BothAtOnce, BothLegs), legsIn(BothAtOnce, DecodeLeg)} {
			if tt.end(l); !slices.Equal(l.Failed(), []Incarnation{workerA}) {
				t.Errorf("%s: %v are named", tt.name, l.Failed())
			}
		}
	}
	h, _ := handoffIn(Prefilling)
	h.Tick(kv.Mono(testHandoff().Silence), nil)
	if !slices.Equal(h.Failed(), []Incarnation{workerA}) {
		t.Errorf("%v are named", h.Failed())
	}
	at := kv.Mono(testHandoff().Silence)
	restarted := incarnationOf(workerA.Worker.ID, 2)
	expectKinds(t, "after its restart", h.HandlePull(at, ref2, restarted, nil), OpenTransfer, AdmitPull)
	h, _ = handoffIn(Prefilling)
	h.Tick(at, nil)
	expectKinds(t, "before it", h.HandlePull(at, ref2, workerA, nil), RefusePull, PrefillLocal)
}

// TestResumedRequestLooksFirst: a request which comes back with tokens that it generated looks at what it holds before
// anything else, and moves none of it.
func TestResumedRequestLooksFirst(t *testing.T) {
	const prompt, generated = 90, 30
	h, out := StartHandoff(0, testHandoff(), HandoffRequest{First: ref1, Tokens: prompt + generated, BlockSize: 16}, nil)
	expectKinds(t, "the first effect", out, LookUpPrefix)
	if out[0].Tokens != prompt+generated {
		t.Errorf("%v", out[0])
	}
	h.HandlePrefix(0, &Decision{Remote: true}, nil)
	expectKinds(t, "all is held", h.HandleReserved(0, 112, nil), PrefillLocal)
	_, out = StartLegs(0, testLegs(PrefillFirst), ref1, prompt+generated, nil)
	expectKinds(t, "the first effect of legs", out, LookUpPrefix)
	in := SplitInputs{Tokens: prompt + generated, Cached: 112, BlockSize: 16, PrefillWorkers: 1}
	c := SplitConfig{Policy: AlwaysRemote}
	if d := Decide(&c, &in, testRates(t), testRates(t)); d.Remote || d.Reason != AllBlocksHeld {
		t.Errorf("%v: %v", d.Remote, d.Reason)
	}
}

// TestLegsKeepOneStream: a prefill leg whose decode leg has given a token is not aborted, and its failure is no failure.
func TestLegsKeepOneStream(t *testing.T) {
	l := legsIn(BothAtOnce, BothLegs)
	expectKinds(t, "the first token", l.HandleFirstToken(ref1, nil), DrainPrefill)
	out := l.HandlePrefillFailed(0, ref1, workerA, nil)
	out = l.HandleDecodeFailed(0, ref1, out)
	out = l.HandlePrefilled(0, ref1, workerA, GaveNothing, 0, out)
	out = l.HandlePrefilled(0, ref1, workerA, GaveAnswer, 0, out)
	out = l.HandlePrefillPlaced(0, ref1, workerB, 0, out)
	out = l.HandleNoPrefillWorker(ref1, out)
	out = l.HandlePrefix(0, &Decision{Remote: true}, out)
	out = l.CancelLegs(out)
	out = l.Tick(kv.Mono(time.Hour), out)
	expectKinds(t, "after it", out)
}

// TestConfigsAreChecked: every problem of a config is reported at once.
func TestConfigsAreChecked(t *testing.T) {
	for _, c := range []interface{ Validate() error }{testHandoff(), testJob(), testLegs(PrefillFirst)} {
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		got  error
		want int
	}{
		{HandoffConfig{}.Validate(), 6},
		{HandoffConfig{MaxAttempts: 17, LocalWait: 1, QueueWait: 1, AddressedWait: 1, Silence: 1, Budget: 1}.Validate(), 1},
		{JobConfig{}.Validate(), 3},
		{LegsConfig{Order: 9}.Validate(), 6},
		{(&SplitConfig{Policy: 9, MaxLocalPrefillLength: -1, DecodeWeight: -1}).Validate(), 3},
	} {
		joined, ok := c.got.(interface{ Unwrap() []error })
		if !ok || len(joined.Unwrap()) != c.want {
			t.Errorf("%v: want %d problems", c.got, c.want)
		}
	}
}
