package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/rpc"
)

// stages are the moments at which a prefill worker stops. Each function makes it call reached there, once, and then wait
// until ended is closed.
var stages = []struct {
	name string
	stop func(n *prefillNode, reached func(), ended <-chan struct{})
}{
	{"in prefill", func(n *prefillNode, reached func(), ended <-chan struct{}) {
		n.cache.beforeBatch(sync.OnceFunc(func() { reached(); <-ended }))
	}},
	{"in mid-transfer", func(n *prefillNode, reached func(), ended <-chan struct{}) {
		n.bulk.during = sync.OnceFunc(func() { reached(); <-ended })
	}},
	{"before notify", func(n *prefillNode, reached func(), ended <-chan struct{}) {
		n.bulk.commit = sync.OnceFunc(func() { reached(); <-ended })
	}},
}

// large is a prompt whose blocks are more than one piece of a transfer, in tokens.
const large = 3000

// eachWay runs a test over calls and over a queue.
func eachWay(t *testing.T, name string, test func(t *testing.T, q bus.Queue)) {
	t.Run(name+", calls", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, nil) })
	})
	t.Run(name+", queue", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, newQueue(t)) })
	})
}

// TestPrefillWorkerDies: another prefill worker computes the prompt, or the decode worker does. Nothing waits for the dead
// one longer than the machine allows.
func TestPrefillWorkerDies(t *testing.T) {
	for _, stage := range stages {
		for _, others := range []int{0, 1} {
			eachWay(t, fmt.Sprintf("%s, %d others", stage.name, others), func(t *testing.T, q bus.Queue) {
				r := newRig(t, rigConfig{blocks: []int{16, 64, 64}[:2+others], queue: q})
				first, resume := r.prefills[0], func() {}
				if others == 1 {
					resume = r.prefills[1].holdBack()
				}
				stage.stop(first, func() { first.kill(); resume() }, first.killed)
				req := newRequest(1, large, 5)
				o := r.expect(req, r.start(r.ctx, req))
				if isRemote(o) != (others == 1) || o.Took > testHandoff.QueueWait+time.Second {
					t.Errorf("%+v", o)
				}
				if first.Stats().Written != 0 {
					t.Errorf("the dead worker has written: %+v", first.Stats())
				}
				r.expectIdle()
			})
		}
	}
}

// TestPrefillWorkerDiesWithJobs: a worker dies which has not claimed a job yet.
func TestPrefillWorkerDiesWithJobs(t *testing.T) {
	for _, others := range []int{0, 1} {
		eachWay(t, fmt.Sprintf("%d others", others), func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}[:2+others], queue: q})
			first, resume := r.prefills[0], func() {}
			if others == 1 {
				resume = r.prefills[1].holdBack()
			}
			first.calls.beforeCall(engine.MethodPull, func() { first.kill(); resume() })
			req := newRequest(1, large, 5)
			if o := r.expect(req, r.start(r.ctx, req)); isRemote(o) != (others == 1) || o.Took > testHandoff.QueueWait+time.Second {
				t.Errorf("%+v", o)
			}
			if s := r.decoder.Stats(); s.Pulls != uint64(others) {
				t.Errorf("%+v", s)
			}
			r.expectIdle()
		})
	}
}

// TestPrefillWorkerStands: a worker which stands still, with its connections open, is given up after Silence, and what it
// does when it goes on changes nothing.
func TestPrefillWorkerStands(t *testing.T) {
	for _, stage := range stages {
		eachWay(t, stage.name, func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q})
			first, resume, goOn := r.prefills[0], r.prefills[1].holdBack(), make(chan struct{})
			awake := make(chan func(), 1)
			stage.stop(first, func() {
				first.calls.blockCalls(engine.MethodProgress)
				awake <- first.standBy()
				resume()
			}, goOn)
			req := newRequest(1, large, 5)
			o := r.expect(req, r.start(r.ctx, req))
			if !isRemote(o) || o.Jobs != 2 || o.Took < testHandoff.Silence || o.Took > testHandoff.Silence+3*time.Second {
				t.Errorf("%+v", o)
			}
			if got := o.FailureLabels(); !slices.Equal(got, []string{"silent"}) || o.Lost < testHandoff.Silence {
				t.Errorf("the attempts %v failed, and lost %v: %+v", got, o.Lost, o)
			}
			close(goOn)
			(<-awake)()
			r.expectIdle()
			if s := first.Stats(); s.Written != 0 {
				t.Errorf("the worker which stood still has written: %+v", s)
			}
			// It works again.
			first.calls.unblockCalls(engine.MethodProgress)
			next := newRequest(2, large, 5)
			if o := r.expect(next, r.start(r.ctx, next)); !isRemote(o) {
				t.Errorf("%+v", o)
			}
			r.expectIdle()
		})
	}
}

// TestEngineStands: a worker whose engine or transfer stands still is given up after Silence, though its process answers.
func TestEngineStands(t *testing.T) {
	for _, stage := range stages {
		eachWay(t, stage.name, func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q})
			first, resume, goOn := r.prefills[0], r.prefills[1].holdBack(), make(chan struct{})
			stage.stop(first, func() { first.standBy(); resume() }, goOn)
			req := newRequest(1, large, 5)
			if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 2 || o.Took > testHandoff.Silence+3*time.Second {
				t.Errorf("%+v", o)
			}
			close(goOn)
			r.expectIdle()
		})
	}
}

// TestBrokenEngine: a worker whose engine does not answer takes no jobs from the queue until it does.
func TestBrokenEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: newQueue(t), prefill: func(c *PrefillWorkerConfig) { c.IsBroken = broken.Load }})
		synctest.Wait() // it pulls
		broken.Store(true)
		req := newRequest(1, 400, 5)
		done := r.start(r.ctx, req)
		time.Sleep(time.Second) // virtual time (synctest): it would have pulled again
		if s := r.prefills[0].Stats(); s.Jobs != 0 {
			t.Errorf("while the engine is broken: %+v", s)
		}
		broken.Store(false)
		if o := r.expect(req, done); !isRemote(o) || o.Jobs != 1 {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}

// TestLateWriter: a writer which goes on after its transfer was closed, while another worker writes, writes nothing.
func TestLateWriter(t *testing.T) {
	eachWay(t, "in mid-transfer", func(t *testing.T, q bus.Queue) {
		r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q})
		first, second, goOn, written := r.prefills[0], r.prefills[1], make(chan struct{}), make(chan error, 1)
		resume := second.holdBack()
		first.bulk.deaf = true
		first.bulk.during = sync.OnceFunc(func() {
			first.calls.blockCalls(engine.MethodProgress)
			first.standBy()
			resume()
			<-goOn
		})
		first.bulk.after = func(err error) { written <- err }
		second.bulk.during = sync.OnceFunc(func() {
			close(goOn)
			if err := <-written; err == nil {
				t.Error("a closed transfer takes bytes")
			}
		})
		req := newRequest(1, large, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 2 {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}

// TestPrefillWorkerStops: a worker which is stopped says so.
func TestPrefillWorkerStops(t *testing.T) {
	for _, stage := range stages {
		eachWay(t, stage.name, func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q})
			first, resume, goOn, stopped := r.prefills[0], r.prefills[1].holdBack(), make(chan struct{}), make(chan struct{})
			stage.stop(first, func() {
				go func() { first.stop(); close(stopped) }()
				resume()
			}, goOn)
			req := newRequest(1, large, 5)
			if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 2 || o.Took > testHandoff.Silence {
				t.Errorf("%+v", o)
			}
			close(goOn)
			<-stopped
			if s := first.Stats(); s.Failed != 1 {
				t.Errorf("%+v", s)
			}
			r.expectIdle()
		})
	}
}

// TestDecodeCancels: the end of a request ends what was begun for it, at both workers.
func TestDecodeCancels(t *testing.T) {
	for _, stage := range stages {
		eachWay(t, stage.name, func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q})
			n, goOn := r.prefills[0], make(chan struct{})
			ctx, cancel := context.WithCancel(r.ctx)
			stage.stop(n, cancel, goOn)
			if got := <-r.start(ctx, newRequest(1, large, 5)); !errors.Is(got.err, context.Canceled) {
				t.Errorf("%v", got.err)
			}
			if o := <-r.outcomes; o.State != disagg.Aborted || o.Lost != 0 || len(o.FailureLabels()) > 0 {
				t.Errorf("%+v", o)
			}
			if s := r.decoder.Stats(); s.Open != 0 || s.LandingBytes != 0 || s.Aborted != 1 {
				t.Errorf("before the prefill worker knows: %+v", s)
			}
			close(goOn)
			r.expectIdle()
			if s := n.Stats(); s.Unwanted+s.Failed != 1 || s.Jobs != 1 {
				t.Errorf("%+v", s)
			}
			req := newRequest(2, large, 5)
			if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) {
				t.Errorf("%+v", o)
			}
			r.expectIdle()
		})
	}
}

// TestCancelInQueue: a request whose job no worker has is withdrawn. A worker which pulls it later is refused.
func TestCancelInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: newQueue(t)})
		resume := r.prefills[0].holdBack()
		ctx, cancel := context.WithCancel(r.ctx)
		done := r.start(ctx, newRequest(1, large, 5))
		synctest.Wait()
		cancel()
		if got := <-done; !errors.Is(got.err, context.Canceled) {
			t.Errorf("%v", got.err)
		}
		r.expectIdle()
		resume()
		time.Sleep(maxPullWait * 2)
		synctest.Wait()
		if s := r.prefills[0].Stats(); s.Jobs != 1 || s.Unwanted != 1 {
			t.Errorf("%+v", s)
		}
		if l := r.prefills[0].cache.takeComputed(); l != 0 {
			t.Errorf("%d tokens are computed for a request which is over", l)
		}
		r.expectIdle()
	})
}

// pullOf returns the pull of a job as a worker would make it.
func pullOf(job *engine.PrefillRequest, by disagg.Incarnation, l engine.KVLayout) *engine.PullRequest {
	return &engine.PullRequest{Attempt: job.Attempt, Epoch: job.Epoch, Handle: job.Handle, From: engine.BlockHandoff{
		Worker: by.Worker, Epoch: by.Epoch, Start: job.Into.Start, End: job.Into.End, Layout: l,
	}}
}

// TestReferences: a reference is used once. Pulls and progress of other attempts, other lives and without the handle are
// refused, and change nothing.
func TestReferences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q})
		n := r.prefills[0]
		resume := n.holdBack()
		req := newRequest(1, 400, 5)
		done := r.start(r.ctx, req)
		synctest.Wait()
		d, err := q.Pull(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		job := new(engine.PrefillRequest)
		if err := engine.DecodePrefillRequest(d.Data, job); err != nil {
			t.Fatal(err)
		}
		if d.ID != "1.0.77.1" || job.ID != req.ID || job.Decode != decodeSelf.Worker || len(job.Into.Descriptor) > 0 {
			t.Errorf("the job %s is %+v", d.ID, job)
		}
		pull := func(change func(*engine.PullRequest)) error {
			p := pullOf(job, n.self, n.cache.layout)
			change(p)
			return r.decoder.ServePull(t.Context(), engine.AppendPullRequest(nil, p), func([]byte) error {
				return errors.New("a prompt is given away")
			})
		}
		for name, change := range map[string]func(*engine.PullRequest){
			"the next attempt": func(p *engine.PullRequest) { p.Attempt++ },
			"another request":  func(p *engine.PullRequest) { p.Attempt += 3 },
			"an earlier life":  func(p *engine.PullRequest) { p.Epoch-- },
			"another handle":   func(p *engine.PullRequest) { p.Handle = slices.Concat(p.Handle[:15], []byte{p.Handle[15] + 1}) },
			"a short handle":   func(p *engine.PullRequest) { p.Handle = p.Handle[:15] },
		} {
			if err := pull(change); fault.CodeOf(err) != fault.Conflict {
				t.Errorf("%s: %v", name, err)
			}
		}
		gaveUp := engine.Prefilled{Attempt: job.Attempt + 1, Epoch: job.Epoch, By: n.self.Worker, ByEpoch: n.self.Epoch, GaveUp: engine.GaveUpFailed}
		for range 4 {
			_ = r.decoder.ServeProgress(engine.AppendPrefilled(nil, &gaveUp))
			gaveUp.Attempt++
		}
		gaveUp.Attempt, gaveUp.Handle = job.Attempt, slices.Concat(job.Handle[:15], []byte{job.Handle[15] + 1})
		for _, handle := range [][]byte{gaveUp.Handle, nil} {
			gaveUp.Handle = handle
			if err := r.decoder.ServeProgress(engine.AppendPrefilled(nil, &gaveUp)); fault.CodeOf(err) != fault.Conflict {
				t.Errorf("progress with the handle %x: %v", handle, err)
			}
		}
		if err := r.decoder.ServeProgress(engine.AppendPrefilled(nil, &engine.Prefilled{Attempt: 1, Epoch: job.Epoch})); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("progress without a pull: %v", err)
		}
		if s := r.decoder.Stats(); s.Jobs != 1 || s.RefusedPulls != 5 {
			t.Errorf("%+v", s)
		}
		if err := q.Release(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		resume()
		if o := r.expect(req, done); !isRemote(o) || o.Jobs != 1 {
			t.Errorf("%+v", o)
		}
		if err := pull(func(*engine.PullRequest) {}); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("after the end: %v", err)
		}
		r.expectIdle()
	})
}

// TestTwoPullOneJob: a queue which delivers each job twice. One worker is admitted, the other one drops the job.
func TestTwoPullOneJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		twice := bustest.NewFaultyQueue(newQueue(t), 1, bustest.QueueFaults{Duplicate: 1})
		r := newRig(t, rigConfig{blocks: []int{16, 64, 128}, queue: twice})
		for i := range 20 {
			req := newRequest(i, 400, 5)
			if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 {
				t.Errorf("%+v", o)
			}
			r.expectIdle()
		}
		if s := r.decoder.Stats(); s.Pulls != 20 || s.RefusedPulls < 5 || s.Remote != 20 {
			t.Errorf("%+v", s)
		}
	})
}

// TestUnknownDecodeWorker: a job whose decode worker the prefill worker does not know yet comes again when its lease
// passes: its attempts last until discovery has caught up. The log says so, once.
func TestUnknownDecodeWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, log := time.Now(), new(strings.Builder)
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: newQueue(t), prefill: func(c *PrefillWorkerConfig) {
			c.Log = slog.New(slog.NewTextHandler(log, nil))
			find := c.FindOwner
			c.FindOwner = func(w kv.Worker) *disagg.Metadata {
				if time.Since(start) < 3*time.Second { // virtual
					return nil
				}
				return find(w)
			}
		}})
		req := newRequest(1, 400, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
		if s := r.prefills[0].Stats(); s.Jobs != 3 || s.Failed != 2 {
			t.Errorf("%+v", s)
		}
		if strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), `reason="unknown decode worker"`) {
			t.Errorf("the log is\n%s", log)
		}
	})
}

// TestStopReturnsJob: a worker which stops before it has the prompt gives its job back at once.
func TestStopReturnsJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: newQueue(t)})
		first, resume, stopped := r.prefills[0], r.prefills[1].holdBack(), make(chan struct{})
		first.calls.blockCalls(engine.MethodPull)
		first.calls.blockCalls(engine.MethodProgress)
		first.calls.beforeCall(engine.MethodPull, func() {
			go func() { first.stop(); close(stopped) }()
			resume()
		})
		req := newRequest(1, 400, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 || o.Took > time.Second {
			t.Errorf("%+v", o)
		}
		<-stopped
		r.expectIdle()
	})
}

// TestDuplicateFails: a worker gets a job again whose lease has passed, and gives up that delivery, whose pull is not
// answered. The first one, which it works on, goes on.
func TestDuplicateFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: hangingQueue{newQueue(t)}})
		n := r.prefills[0]
		n.cache.beforeBatch(func() { time.Sleep(time.Second) }) // virtual time (synctest): a batch takes so long
		n.calls.beforeCall(engine.MethodPull, func() { n.calls.blockCalls(engine.MethodPull) })
		req := newRequest(1, large, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
		if s := n.Stats(); s.Failed == 0 || s.Written != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestQueueLost: without the queue, jobs go to workers by calls, or the decode worker prefills.
func TestQueueLost(t *testing.T) {
	for _, calls := range []bool{true, false} {
		t.Run(fmt.Sprintf("calls %v", calls), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lost := bustest.NewFaultyQueue(newQueue(t), 1, bustest.QueueFaults{Cut: true})
				r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: lost, noCalls: !calls})
				req := newRequest(1, 400, 5)
				o := r.expect(req, r.start(r.ctx, req))
				if isRemote(o) != calls || !calls && o.Reason != disagg.QueueLost {
					t.Errorf("%+v", o)
				}
				r.expectIdle()
			})
		})
	}
}

// TestNoRoom: a request for whose blocks no memory is free is prefilled by the decode worker, which says so. It does not
// wait.
func TestNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, change: func(c *DecodeWorkerConfig) { c.LandingBytes = tokenBytes * 1500 }})
		n, goOn := r.prefills[0], make(chan struct{})
		reached := make(chan struct{})
		stages[0].stop(n, func() { close(reached) }, goOn)
		first, second, third := newRequest(1, 900, 5), newRequest(2, 900, 5), newRequest(3, 90, 5)
		done := r.start(r.ctx, first)
		<-reached
		if o := r.expect(second, r.start(r.ctx, second)); isRemote(o) || o.Reason != disagg.Decided || o.Decision.Reason != disagg.NoLandingRoom || o.Jobs != 0 {
			t.Errorf("%+v", o)
		}
		small := r.start(r.ctx, third)
		synctest.Wait()
		close(goOn)
		for _, w := range []struct {
			req  *engine.Request
			done <-chan answer
		}{{first, done}, {third, small}} {
			if o := r.expect(w.req, w.done); !isRemote(o) {
				t.Errorf("%+v", o)
			}
		}
		r.expectIdle()
	})
}

// TestTooLarge: a prompt whose blocks are larger than all the memory in which they could arrive is prefilled by the decode
// worker, for a reason of its own, and the log says once that there are such prompts.
func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(strings.Builder)
		r := newRig(t, rigConfig{blocks: []int{16, 64}, change: func(c *DecodeWorkerConfig) {
			c.LandingBytes, c.Log = tokenBytes*1500, slog.New(slog.NewTextHandler(log, nil))
		}})
		for i := range 2 {
			req := newRequest(i, 1600, 5)
			if o := r.expect(req, r.start(r.ctx, req)); o.Jobs != 0 || o.Label() != "larger_than_the_landing_memory" {
				t.Errorf("%+v: %s", o, o.Label())
			}
		}
		r.expectIdle()
		if strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), "context_length=4096") {
			t.Errorf("the log is\n%s", log)
		}
	})
}

// sizedEngine is an engine with a cache of so many blocks.
type sizedEngine struct {
	exchangeEngine
	blocks int
}

func (e sizedEngine) Card() engine.Card {
	c := e.exchangeEngine.Card()
	c.Blocks = e.blocks
	return c
}

// TestLandingBytes: the memory in which blocks arrive is a quarter of the KV cache, and at least 256 MiB.
func TestLandingBytes(t *testing.T) {
	eng := newEngine(t, newTokenCache(16, 64))
	for blocks, want := range map[int]int64{100: 256 << 20, 1 << 20: 16 * tokenBytes << 18} {
		cfg := DecodeWorkerConfig{Self: decodeSelf, Addr: "decode", Handoff: testHandoff, Decide: func(_ disagg.SplitSettings, in disagg.SplitInputs, _ *engine.PrefillHint) disagg.Decision {
			return disagg.Decision{Inputs: in}
		}}
		d, err := NewDecodeWorker(cfg, sizedEngine{eng, blocks}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d.cfg.LandingBytes != want {
			t.Errorf("with %d blocks of %d bytes it is %d, want %d", blocks, 16*tokenBytes, d.cfg.LandingBytes, want)
		}
	}
}

// TestReclaimed: the engine takes the blocks back for an older request. The prefill ends, and the decode worker computes the
// prompt later.
func TestReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, capacity: 16 * 40})
		older, req := newRequest(1, 16, 400), newRequest(2, 400, 5)
		r.cache.beforeBatch(func() { time.Sleep(time.Millisecond) }) // virtual: everything else goes on between two batches
		n, goOn := r.prefills[0], make(chan struct{})
		stages[1].stop(n, func() {}, goOn)
		first := r.start(r.ctx, older) // a prompt of one block is not sent away
		synctest.Wait()
		done := r.start(r.ctx, req)
		if o := r.expect(older, first); o.Reason != disagg.Decided {
			t.Errorf("the older request: %+v", o)
		}
		if o := r.expect(req, done); o.State != disagg.Local || o.Reason != disagg.BlocksReclaimed {
			t.Errorf("the other: %+v", o)
		}
		close(goOn)
		r.expectIdle()
		if s := n.Stats(); s.Written != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestIncompatible: workers which compute other bits exchange nothing, whether the prefill worker finds that or the decode
// worker.
func TestIncompatible(t *testing.T) {
	for _, who := range []string{"prefill", "decode"} {
		eachWay(t, who, func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q, prefill: func(c *PrefillWorkerConfig) {
				if who == "prefill" {
					c.Exchange.Numerics = "others"
				}
			}, layout: func(l *engine.KVLayout) {
				if who == "decode" {
					l.Numerics = "others"
				}
			}})
			req := newRequest(1, 400, 5)
			if o := r.expect(req, r.start(r.ctx, req)); isRemote(o) || o.Took > time.Second {
				t.Errorf("%+v", o)
			}
			if n := r.prefills[0].cache.takeComputed(); n != 0 {
				t.Errorf("%d tokens are computed in vain", n)
			}
			r.expectIdle()
		})
	}
}

// TestLongPrefill: a worker which takes longer than Silence, and than the lease of a job, keeps both by its heartbeats.
func TestLongPrefill(t *testing.T) {
	eachWay(t, "12 s", func(t *testing.T, q bus.Queue) {
		r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q})
		for _, n := range r.prefills {
			n.cache.beforeBatch(func() { time.Sleep(time.Second) }) // virtual time (synctest): a batch takes so long
		}
		req := newRequest(1, large, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 || o.Took < 10*time.Second {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
		if s := r.decoder.Stats(); s.Pulls != 1 || s.RefusedPulls != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestUnreachableMemory: a worker with computed blocks which does not reach the memory of the decode worker tries again, and
// says meanwhile that its work goes on, also if one attempt takes longer than Silence. No block is computed or sent twice.
func TestUnreachableMemory(t *testing.T) {
	unreachable := fault.New(fault.Unavailable, "the handshake takes too long")
	for name, tt := range map[string]struct {
		tokens, failures int           // attempts which fail
		each             time.Duration // which each of them takes
	}{
		"large, refused":      {large, 4, 0},
		"large, without word": {large, 1, testHandoff.Silence + 500*time.Millisecond},
		"small, without word": {400, 1, testHandoff.Silence + 500*time.Millisecond},
	} {
		eachWay(t, name, func(t *testing.T, q bus.Queue) {
			r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q})
			opened := 0
			for _, n := range r.prefills {
				n.bulk.opening = func() error {
					if opened++; opened > tt.failures {
						return nil
					}
					time.Sleep(tt.each) // virtual time (synctest): a handshake takes so long
					return unreachable
				}
			}
			req := newRequest(1, tt.tokens, 5)
			o := r.expect(req, r.start(r.ctx, req))
			if !isRemote(o) || o.Jobs != 1 || opened != tt.failures+1 || o.Took < time.Duration(tt.failures)*tt.each {
				t.Errorf("%d transfers were opened: %+v", opened, o)
			}
			r.expectIdle()
			computed := r.prefills[0].cache.takeComputed() + r.prefills[1].cache.takeComputed()
			if computed != tt.tokens {
				t.Errorf("%d tokens were computed, want %d", computed, tt.tokens)
			}
		})
	}
}

// TestNeverReachedMemory: a worker which does not reach the memory of the decode worker gives the job up in bounded time, and
// another one gets it.
func TestNeverReachedMemory(t *testing.T) {
	eachWay(t, "one of two", func(t *testing.T, q bus.Queue) {
		const reachWait = 3 * time.Second
		r := newRig(t, rigConfig{blocks: []int{16, 64, 64}, queue: q, prefill: func(c *PrefillWorkerConfig) { c.ReachWait = reachWait }})
		first, resume := r.prefills[0], r.prefills[1].holdBack()
		first.bulk.opening = func() error {
			first.standBy()
			resume()
			return fault.New(fault.Unavailable, "refused")
		}
		req := newRequest(1, large, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 2 || o.Took > reachWait+2*time.Second {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
		if s := first.Stats(); s.Failed != 1 || s.Written != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// hangingQueue does not answer Extend.
type hangingQueue struct{ bus.Queue }

func (hangingQueue) Extend(ctx context.Context, _ bus.Delivery) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestQueueHangs: a queue which does not answer does not end a long prefill, which its decode worker hears of.
func TestQueueHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: hangingQueue{newQueue(t)}})
		r.prefills[0].cache.beforeBatch(func() { time.Sleep(time.Second) }) // virtual time (synctest): a batch takes so long
		req := newRequest(1, large, 5)
		if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 || o.Took < 10*time.Second {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}

// TestWrongNote: blocks whose note names another attempt, or none, are not used.
func TestWrongNote(t *testing.T) {
	for name, change := range map[string]func(*engine.Prefilled){
		"another attempt": func(p *engine.Prefilled) { p.Attempt++ },
		"another life":    func(p *engine.Prefilled) { p.Epoch-- },
		"not done":        func(p *engine.Prefilled) { p.Done = false },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, rigConfig{blocks: []int{16, 64}})
				r.prefills[0].bulk.note = func(b []byte) []byte {
					var p engine.Prefilled
					if err := engine.DecodePrefilled(b, &p); err != nil {
						t.Error(err)
					}
					change(&p)
					return engine.AppendPrefilled(nil, &p)
				}
				req := newRequest(1, 400, 5)
				if o := r.expect(req, r.start(r.ctx, req)); isRemote(o) {
					t.Errorf("%+v", o)
				}
				r.expectIdle()
			})
		})
	}
}

// repeatingCalls gets the last frame of each pull twice. second gets what is said of the second one.
type repeatingCalls struct {
	rpc.Plane
	second chan error
}

func (c repeatingCalls) Call(ctx context.Context, addr, method string, body []byte, recv func([]byte) error) error {
	if method != engine.MethodPull {
		return c.Plane.Call(ctx, addr, method, body, recv)
	}
	return c.Plane.Call(ctx, addr, method, body, func(frame []byte) error {
		var f engine.Pulled
		err := recv(frame)
		if err == nil && engine.DecodePulled(frame, &f) == nil && f.Last {
			err = recv(frame)
			c.second <- err
		}
		return err
	})
}

// TestTwoPrompts: a decode worker which sends a frame after the last one of a prompt breaks the rules: its pull fails.
func TestTwoPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}})
		calls := repeatingCalls{r.prefills[0].calls, make(chan error, 1)}
		r.prefills[0].PrefillWorker.calls = calls
		r.prefills[0].cache.beforeBatch(func() { time.Sleep(time.Millisecond) }) // virtual: the pull fails before the first batch
		req := newRequest(1, 400, 5)
		if o := r.expect(req, r.start(r.ctx, req)); isRemote(o) {
			t.Errorf("%+v", o)
		}
		if err := <-calls.second; fault.CodeOf(err) != fault.Invalid {
			t.Errorf("of the second prompt: %v", err)
		}
		r.expectIdle()
	})
}

// TestNoJobs: bytes which are no job are removed from the queue, and refused in a call.
func TestNoJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q})
		for i, data := range [][]byte{nil, []byte("no job"), engine.AppendPrefillRequest(nil, &engine.PrefillRequest{})} {
			if err := q.Put(t.Context(), bus.Job{ID: fmt.Sprint(i), Data: data, Lifetime: time.Second * 30}); err != nil {
				t.Fatal(err)
			}
			if err := r.prefills[0].ServePrefill(t.Context(), data); fault.CodeOf(err) != fault.Invalid && fault.CodeOf(err) != fault.Unimplemented {
				t.Errorf("%q: %v", data, err)
			}
			if err := r.decoder.ServePull(t.Context(), data, nil); fault.CodeOf(err) != fault.Invalid && fault.CodeOf(err) != fault.Unimplemented {
				t.Errorf("%q: %v", data, err)
			}
		}
		r.expectIdle()
		depth, err := q.DescribeDepth(t.Context())
		if s := r.prefills[0].Stats(); err != nil || depth.Waiting+depth.Started != 0 || s.Malformed != 3 || s.Jobs != 0 {
			t.Errorf("%v, %+v: %+v", err, depth, s)
		}
	})
}

// TestDrain: a worker which drains does what it has, and takes nothing more.
func TestDrain(t *testing.T) {
	eachWay(t, "in prefill", func(t *testing.T, q bus.Queue) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q})
		n, goOn := r.prefills[0], make(chan struct{})
		stages[0].stop(n, n.Drain, goOn)
		first, second := newRequest(1, 400, 5), newRequest(2, 400, 5)
		done := r.start(r.ctx, first)
		synctest.Wait()
		close(goOn)
		if o := r.expect(first, done); !isRemote(o) {
			t.Errorf("%+v", o)
		}
		if o := r.expect(second, r.start(r.ctx, second)); isRemote(o) {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
		if s := n.Stats(); s.Written != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// lateQueue delivers a job when its pull ends.
type lateQueue struct{ bus.Queue }

func (q lateQueue) Pull(ctx context.Context) (bus.Delivery, error) {
	<-ctx.Done()
	return q.Queue.Pull(context.WithoutCancel(ctx))
}

// TestJobAtTheEnd: a job which comes as its worker stops goes back to the queue. Its decode worker is told nothing.
func TestJobAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q})
		resume := r.prefills[0].holdBack()
		req := newRequest(1, 400, 5)
		done := r.start(r.ctx, req)
		synctest.Wait()
		cfg := r.prefills[0].cfg
		cfg.Concurrency = 1
		p, err := NewPrefillWorker(cfg, r.prefills[0].eng, r.calls, r.bulk)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		if err := p.Run(ctx, lateQueue{q}); err != nil {
			t.Error(err)
		}
		if s := p.Stats(); s.Jobs != 0 {
			t.Errorf("%+v", s)
		}
		resume()
		if o := r.expect(req, done); !isRemote(o) || o.Jobs != 1 {
			t.Errorf("%+v", o)
		}
		r.expectIdle()
	})
}
