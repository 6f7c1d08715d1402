package handoff

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/rpc"
)

// addressTo makes a rig whose jobs are addressed to the prefill worker with an index.
func addressTo(at int, pinned bool) func(*DecodeWorkerConfig) {
	return func(d *DecodeWorkerConfig) {
		decide := d.Decide
		d.Decide = func(asked disagg.SplitSettings, in disagg.SplitInputs, hint *engine.PrefillHint) disagg.Decision {
			decision := decide(asked, in, hint)
			decision.To = disagg.Incarnation{Worker: kv.Worker{ID: kv.WorkerID(10 + at)}, Epoch: uint64(100 + at)}
			decision.Pinned = pinned
			return decision
		}
	}
}

// fill takes all the slots of a prefill worker for jobs of calls, until the function which it returns is called.
func (n *prefillNode) fill() (empty func()) {
	for range cap(n.slots) {
		n.slots <- struct{}{}
	}
	return func() {
		for range cap(n.slots) {
			<-n.slots
		}
	}
}

// TestAddressedJob: a job which is addressed to a worker is done by that one, although others are free.
func TestAddressedJob(t *testing.T) {
	for _, at := range []int{0, 1} {
		eachWay(t, "addressed", func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, change: addressTo(at, false)})
			for i := range 3 {
				req := newRequest(i, 400, 5)
				if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.By != r.prefills[at].self || o.Jobs != 1 {
					t.Errorf("%+v", o)
				}
			}
			r.expectIdle()
			if s := r.prefills[1-at].Stats(); s.Jobs != 0 {
				t.Errorf("the other worker had %+v", s)
			}
		})
	}
}

// TestAddressedWorkerDies: when the worker to which a job is addressed dies, at any moment, another one does it. A
// request which names its worker is computed by the decode worker then.
func TestAddressedWorkerDies(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		name := "any other"
		if pinned {
			name = "no other"
		}
		check := func(t *testing.T, r *rig, req *engine.Request, done <-chan answer) {
			t.Helper()
			switch o := r.expect(req, done); {
			case pinned && (isRemote(o) || o.Jobs != 1):
				t.Errorf("%+v", o)
			case !pinned && (!isRemote(o) || o.By != r.prefills[0].self || o.Jobs != 2):
				t.Errorf("%+v", o)
			}
			r.expectIdle()
		}
		for _, stage := range stages {
			eachWay(t, name+", "+stage.name, func(t *testing.T, q bus.Queue) {
				r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, change: addressTo(1, pinned)})
				n := r.prefills[1]
				stage.stop(n, n.kill, n.killed)
				req := newRequest(1, large, 5)
				check(t, r, req, r.start(r.ctx, req))
			})
		}
		eachWay(t, name+", before the call", func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, change: addressTo(1, pinned)})
			r.prefills[1].kill()
			req := newRequest(1, large, 5)
			check(t, r, req, r.start(r.ctx, req))
		})
		eachWay(t, name+", while the job waits there", func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, change: addressTo(1, pinned)})
			defer r.prefills[1].fill()()
			req := newRequest(1, large, 5)
			done := r.start(r.ctx, req)
			synctest.Wait()
			r.prefills[1].kill()
			check(t, r, req, done)
		})
		eachWay(t, name+", drained while the job waits there", func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, change: addressTo(1, pinned)})
			defer r.prefills[1].fill()()
			req := newRequest(1, large, 5)
			done := r.start(r.ctx, req)
			synctest.Wait()
			r.prefills[1].Drain()
			check(t, r, req, done)
		})
	}
}

// TestAddressedWorkerIsGone: a job for a worker which is not known is the others'.
func TestAddressedWorkerIsGone(t *testing.T) {
	eachWay(t, "gone", func(t *testing.T, q bus.Queue) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q, change: addressTo(7, false)})
		req := newRequest(1, 400, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.By != r.prefills[0].self || o.Jobs != 1 || o.Took > testHandoff.AddressedWait {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}

// TestAddressedWorkerIsSlow: a job which its worker does not begin within AddressedWait is the others'. It is the same job.
func TestAddressedWorkerIsSlow(t *testing.T) {
	eachWay(t, "slow", func(t *testing.T, q bus.Queue) {
		r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, change: addressTo(0, false)})
		empty := r.prefills[0].fill()
		r.loads[1] = 9000 // it seems to be the better one
		if q != nil {     // it is busy with jobs of the queue, too
			defer r.prefills[0].holdBack()()
		}
		req := newRequest(1, 400, 5)
		o := r.expect(req, r.start(r.ctx, req))
		if !isRemote(o) || o.By != r.prefills[1].self || o.Jobs != 1 || o.Took < testHandoff.AddressedWait || o.Took > testHandoff.AddressedWait+time.Second {
			t.Errorf("%+v", o)
		}
		if s := r.prefills[0].Stats(); s.Waiting != 0 || s.Jobs != 0 {
			t.Errorf("the slow worker still has the job: %+v", s)
		}
		empty()
		r.expectIdle()
	})
}

// TestPlaceAddressed: the worker to which a job is addressed gets it by a call, whatever it has to do.
func TestPlaceAddressed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := rpc.NewMemPlane()
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		workers := []PrefillPeer{{Addr: "a", Tokens: 100}, {Addr: "b", Tokens: 50}, {Addr: "c", Tokens: 50, From: disagg.SameHost}}
		called := make(chan string, 3)
		for i := range workers {
			workers[i].Incarnation = disagg.Incarnation{Worker: kv.Worker{ID: kv.WorkerID(i + 1)}, Epoch: 9}
			go func() {
				_ = calls.Serve(ctx, workers[i].Addr, func(context.Context, string, []byte, func([]byte) error) error {
					called <- workers[i].Addr
					return nil
				}, nil)
			}()
		}
		synctest.Wait()
		byCall := NewCallPlacer(calls, func() []PrefillPeer { return workers })
		queue := newQueue(t)
		byQueue := &QueuePlacer{Queue: queue, MaxLifetime: time.Minute, Wait: time.Second, Else: byCall}
		job := &engine.PrefillRequest{Attempt: 1, Tokens: 90, Budget: 1000}
		for _, p := range []JobPlacer{byCall, byQueue} {
			by, err := p.PlaceJob(ctx, job, workers[0].Incarnation, nil)
			if to := <-called; by != workers[0].Incarnation || err != nil || to != "a" {
				t.Errorf("addressed to a: %v, %v, %s", by, err, to)
			}
			restarted := workers[0].Incarnation
			restarted.Epoch++
			if by, err := p.PlaceJob(ctx, job, restarted, nil); by != (disagg.Incarnation{}) || fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("to a worker which is not known: %v, %v", by, err)
			}
		}
		// Of two with as little to do the nearest gets it.
		if by, err := byCall.PlaceJob(ctx, job, disagg.Incarnation{}, nil); by != workers[2].Incarnation || err != nil {
			t.Errorf("addressed to none: %v, %v", by, err)
		}
		if depth, err := queue.DescribeDepth(ctx); err != nil || depth.Waiting != 0 {
			t.Errorf("in the queue: %+v, %v", depth, err)
		}
		if by, err := byQueue.PlaceJob(ctx, job, disagg.Incarnation{}, nil); by != (disagg.Incarnation{}) || err != nil {
			t.Errorf("addressed to none: %v, %v", by, err)
		}
		if depth, err := queue.DescribeDepth(ctx); err != nil || depth.Waiting != 1 {
			t.Errorf("in the queue: %+v, %v", depth, err)
		}
	})
}

// TestSplitterChooses: the hint of a request, the load of the workers and what their transfers took choose the worker.
func TestSplitterChooses(t *testing.T) {
	workers := []PrefillPeer{{Addr: "a"}, {Addr: "b"}}
	for i := range workers {
		workers[i].Incarnation = disagg.Incarnation{Worker: kv.Worker{ID: kv.WorkerID(i + 2)}, Epoch: 9}
	}
	newSplitter := func(policy disagg.SplitPolicy) *Splitter {
		s, err := NewSplitter(disagg.SplitConfig{Policy: policy, MaxPrefillQueueSize: 1, DecodeWeight: 1}, testHandoff, func() []PrefillPeer { return workers }, 512, func() int { return 3 })
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	in := disagg.SplitInputs{Tokens: 4000, BlockSize: 16}
	holds := func(all ...kv.PrefixHolder) *engine.PrefillHint { return &engine.PrefillHint{Holders: all} }
	s := newSplitter(disagg.AlwaysRemote)
	for _, tt := range []struct {
		name   string
		hint   *engine.PrefillHint
		want   kv.WorkerID
		cached int
	}{
		{"nothing is known", holds(), 0, 0},
		{"one holds it", holds(kv.PrefixHolder{Worker: 3, Tokens: 3200}), 3, 3200},
		{"two hold it", holds(kv.PrefixHolder{Worker: 2, Tokens: 3216}, kv.PrefixHolder{Worker: 3, Tokens: 3200}), 2, 3216},
		{"an unknown one holds it", holds(kv.PrefixHolder{Worker: 9, Tokens: 3200}), 0, 0},
		{"it is named", &engine.PrefillHint{Pin: 2, Holders: []kv.PrefixHolder{{Worker: 3, Tokens: 3200}}}, 2, 0},
	} {
		d := s.Decide(disagg.SplitSettings{}, in, tt.hint)
		if d.To.Worker.ID != tt.want || d.Inputs.RemoteCached != tt.cached || !d.Remote || d.Pinned != (tt.hint.Pin != 0) {
			t.Errorf("%s: %+v", tt.name, d)
		}
	}
	if d := s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{Pin: 9}); d.Remote || d.Reason != disagg.NamedIsUnknown {
		t.Errorf("an unknown one is named: %+v", d)
	}
	// The queue is full. A job for a worker which is named does not wait there.
	full := newSplitter(disagg.ByThreshold)
	if d := full.Decide(disagg.SplitSettings{}, in, holds()); d.Remote || d.Reason != disagg.FullQueue {
		t.Errorf("%+v", d)
	}
	if d := full.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{Pin: 2}); !d.Remote || d.To.Worker.ID != 2 || d.Inputs.QueuedJobs != 0 {
		t.Errorf("%+v", d)
	}
	// One is on this host: from there blocks come sooner, until it turns out that they do not.
	workers[1].From = disagg.SameHost
	if d := s.Decide(disagg.SplitSettings{}, in, holds()); d.To.Worker.ID != 3 {
		t.Errorf("one is on this host: %+v", d)
	}
	workers[1].Tokens = 20_000
	if d := s.Decide(disagg.SplitSettings{}, in, holds()); d.To.Worker.ID != 0 {
		t.Errorf("it is busy: %+v", d)
	}
	workers[1].Tokens = 0
	for range 20 {
		s.ObserveHandoff(&HandoffOutcome{State: disagg.Decoding, By: workers[1].Incarnation, End: 3984, Prefill: 10 * time.Millisecond, Transfer: time.Second})
	}
	if d := s.Decide(disagg.SplitSettings{}, in, holds()); d.To.Worker.ID != 0 || d.RemoteCost.Transfer > 100 {
		t.Errorf("its blocks come slowly: %+v", d)
	}
}

// TestSplitterLearnsFailures: when the attempts of remote prefill fail, prompts are computed where they are, until a
// retry arrives. What was cancelled or reclaimed changes nothing.
func TestSplitterLearnsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peers := []PrefillPeer{{Addr: "a", Incarnation: disagg.Incarnation{Worker: kv.Worker{ID: 2}, Epoch: 9}}}
		s, err := NewSplitter(disagg.DefaultSplit(), testHandoff, func() []PrefillPeer { return peers }, 512, func() int { return 0 })
		if err != nil {
			t.Fatal(err)
		}
		decide := func() disagg.Decision {
			in := disagg.SplitInputs{Tokens: 4000, BlockSize: 16, Decoding: 10}
			return s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{})
		}
		end := func(d disagg.Decision, state disagg.HandoffState, lost time.Duration) {
			s.ObserveHandoff(&HandoffOutcome{Decision: d, State: state, Lost: lost, By: peers[0].Incarnation, End: 3984, Prefill: 10 * time.Millisecond, Transfer: time.Millisecond})
		}
		for range 50 {
			for _, state := range []disagg.HandoffState{disagg.Local, disagg.Aborted} {
				d := decide()
				if d.Reason != disagg.CheaperRemote || d.RemoteCost.Failures != 0 {
					t.Fatalf("after handoffs which were cancelled or reclaimed: %+v", d)
				}
				end(d, state, 0)
			}
		}
		failures := 0
		for d := decide(); d.Remote; d = decide() {
			if failures++; failures > 50 {
				t.Fatalf("after %d failures: %+v", failures, d)
			}
			time.Sleep(5 * time.Second) // virtual time (synctest): so long it takes until a silent worker is given up
			end(d, disagg.Local, 5*time.Second)
		}
		time.Sleep(80 * time.Second) // virtual time (synctest): the pause
		for d := decide(); d.Reason != disagg.CheaperRemote; d = decide() {
			if failures++; d.Reason != disagg.RemoteRetry || failures > 100 {
				t.Fatalf("after retries which arrived: %+v", d)
			}
			end(d, disagg.Decoding, 0)
		}
	})
}

// TestFailureLabels: each failed attempt has a label. One of a request which was cancelled has not failed.
func TestFailureLabels(t *testing.T) {
	o := &HandoffOutcome{GivenUp: []disagg.HandoffReason{disagg.Silent, disagg.QueueSlow, disagg.Cancelled, disagg.BlocksReclaimed}}
	if got, want := o.FailureLabels(), []string{"silent", "queue_too_slow", "blocks_reclaimed"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestNamedWorkerIsDead: a worker which a request names and which does not begin its job costs the wait of one request, not
// of each. The next ones are computed by the decode worker at once, with their reason, until it is tried again.
func TestNamedWorkerIsDead(t *testing.T) {
	eachWay(t, "named", func(t *testing.T, q bus.Queue) {
		var r *rig
		r = newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, change: func(c *DecodeWorkerConfig) {
			s, err := NewSplitter(disagg.SplitConfig{Policy: disagg.AlwaysRemote, DecodeWeight: 1}, c.Handoff, func() []PrefillPeer { return r.peers() }, tokenBytes, func() int { return 0 })
			if err != nil {
				t.Fatal(err)
			}
			observe := c.Observe
			c.Decide, c.Observe = s.Decide, func(o *HandoffOutcome) {
				s.ObserveHandoff(o)
				observe(o)
			}
		}})
		seed := 0
		serve := func(pin kv.WorkerID) *HandoffOutcome {
			t.Helper()
			seed++
			req := newRequest(seed, 400, 5)
			req.Prefill.Pin = pin
			return r.expect(req, r.start(r.ctx, req))
		}
		for range DefaultConcurrency {
			r.prefills[0].slots <- struct{}{} // it answers no call
		}
		first := newRequest(0, 400, 5)
		first.Prefill.Pin = 10
		done := r.start(r.ctx, first)
		synctest.Wait()
		if jobs, tokens := r.prefills[0].WaitingLoad(); jobs != 1 || tokens != 384 {
			t.Errorf("%d jobs with %d tokens wait at the worker", jobs, tokens)
		}
		if o := r.expect(first, done); isRemote(o) || o.Reason != disagg.QueueSlow || o.Took < testHandoff.QueueWait {
			t.Errorf("the first request: %+v", o)
		}
		for range 3 {
			if o := serve(10); isRemote(o) || o.Jobs != 0 || o.Label() != "the_named_prefill_worker_has_failed" {
				t.Errorf("a further request: %q, %+v", o.Label(), o)
			}
		}
		if o := serve(11); !isRemote(o) || o.By != r.prefills[1].self {
			t.Errorf("a request which names another worker: %+v", o)
		}
		if o := serve(99); isRemote(o) || o.Jobs != 0 || o.Label() != "the_named_prefill_worker_is_not_known" {
			t.Errorf("a request which names no worker that there is: %q, %+v", o.Label(), o)
		}
		for range DefaultConcurrency {
			<-r.prefills[0].slots
		}
		time.Sleep(2 * time.Minute) // virtual time (synctest): it is tried again
		for range 2 {
			if o := serve(10); !isRemote(o) || o.By != r.prefills[0].self {
				t.Errorf("when it answers again: %+v", o)
			}
		}
		r.expectIdle()
	})
}
