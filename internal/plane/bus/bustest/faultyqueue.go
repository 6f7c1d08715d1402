package bustest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
)

// QueueFaults configures how a queue misbehaves. Probabilities are from 0 to 1. The zero value is a queue
// without faults.
type QueueFaults struct {
	// Fail is the probability that a call returns Unavailable. Half of the failed calls take effect: a
	// put job, an acknowledgement whose confirmation is lost, a delivery which does not arrive.
	Fail float64
	// Duplicate is the probability that a delivery comes once more, to the next Pull.
	Duplicate float64
	// Delay is the upper bound of a random delay before each call, and before a delivery arrives.
	Delay time.Duration
	// Cut is a lost connection: every call returns Unavailable, and so does a Pull which waits.
	Cut bool
}

// FaultyQueue wraps another queue and injects faults. It deliberately violates the contract of Queue, for
// tests of the code that must tolerate that.
type FaultyQueue struct {
	inner bus.Queue
	mu    struct {
		sync.Mutex
		faults QueueFaults
		rng    *rand.Rand
		again  []bus.Delivery // to be delivered once more
		cut    chan struct{}  // closed while Cut is set
	}
}

var _ bus.Queue = (*FaultyQueue)(nil)

// NewFaultyQueue wraps inner. The fate of a call depends only on the seed and the calls before it.
func NewFaultyQueue(inner bus.Queue, seed uint64, f QueueFaults) *FaultyQueue {
	q := &FaultyQueue{inner: inner}
	q.mu.rng, q.mu.cut = rand.New(rand.NewPCG(seed, 0)), make(chan struct{})
	q.Set(f)
	return q
}

// Set replaces the faults of subsequent calls.
func (q *FaultyQueue) Set(f QueueFaults) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f.Cut && !q.mu.faults.Cut {
		close(q.mu.cut)
	}
	if !f.Cut && q.mu.faults.Cut {
		q.mu.cut = make(chan struct{})
	}
	q.mu.faults = f
}

// queueFate is the random choice for one call.
type queueFate struct {
	fail, done, twice bool
	before, after     time.Duration
	cut               <-chan struct{} // closed when the connection is lost
}

func (q *FaultyQueue) drawFate() queueFate {
	q.mu.Lock()
	defer q.mu.Unlock()
	f, rng := q.mu.faults, q.mu.rng
	fate := queueFate{fail: rng.Float64() < f.Fail, done: rng.Float64() < 0.5, twice: rng.Float64() < f.Duplicate, cut: q.mu.cut}
	if f.Delay > 0 {
		fate.before, fate.after = time.Duration(rng.Int64N(int64(f.Delay))), time.Duration(rng.Int64N(int64(f.Delay)))
	}
	return fate
}

// waitDelay waits for d, or until ctx ends.
func waitDelay(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runCall runs a call of the queue.
func (q *FaultyQueue) runCall(ctx context.Context, op string, f func(ctx context.Context) error) error {
	fate := q.drawFate()
	lost := fault.New(fault.Unavailable, "%s: whether it was done is not known (injected)", op)
	cctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-fate.cut:
			cancel(lost)
		case <-cctx.Done():
		}
	})
	select {
	case <-fate.cut:
		return lost
	default:
	}
	err := waitDelay(cctx, fate.before)
	if err == nil && fate.fail && !fate.done {
		return lost
	}
	if err == nil {
		err = f(cctx)
	}
	switch {
	case err == nil && fate.fail:
		return lost
	case err != nil && ctx.Err() == nil && cctx.Err() != nil:
		return context.Cause(cctx)
	}
	return err
}

// Put implements Queue.
func (q *FaultyQueue) Put(ctx context.Context, j bus.Job) error {
	return q.runCall(ctx, "put", func(ctx context.Context) error { return q.inner.Put(ctx, j) })
}

// Pull implements Queue.
func (q *FaultyQueue) Pull(pullCtx context.Context) (d bus.Delivery, err error) {
	err = q.runCall(pullCtx, "pull", func(ctx context.Context) (err error) {
		var again bool
		if d, again = q.takeAgain(); again {
			return nil
		}
		if d, err = q.inner.Pull(ctx); err != nil {
			return err
		}
		fate := q.drawFate()
		if fate.twice {
			q.deliverAgain(d)
		}
		if fate.after == 0 {
			return nil // the job came before ctx ended, if it did
		}
		err = waitDelay(ctx, fate.after)
		if pullCtx.Err() != nil {
			_ = q.inner.Release(context.WithoutCancel(ctx), d) // as a bus gives back what comes too late
		}
		return err
	})
	if err != nil {
		return bus.Delivery{}, err
	}
	return d, nil
}

func (q *FaultyQueue) takeAgain() (d bus.Delivery, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.again) == 0 {
		return d, false
	}
	d = q.mu.again[0]
	q.mu.again = q.mu.again[1:]
	return d, true
}

func (q *FaultyQueue) deliverAgain(d bus.Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d.Data = append([]byte(nil), d.Data...)
	q.mu.again = append(q.mu.again, d)
}

// Extend implements Queue.
func (q *FaultyQueue) Extend(ctx context.Context, d bus.Delivery) error {
	return q.runCall(ctx, "extend", func(ctx context.Context) error { return q.inner.Extend(ctx, d) })
}

// Ack implements Queue.
func (q *FaultyQueue) Ack(ctx context.Context, d bus.Delivery) error {
	return q.runCall(ctx, "acknowledge", func(ctx context.Context) error { return q.inner.Ack(ctx, d) })
}

// Release implements Queue.
func (q *FaultyQueue) Release(ctx context.Context, d bus.Delivery) error {
	return q.runCall(ctx, "release", func(ctx context.Context) error { return q.inner.Release(ctx, d) })
}

// DescribeDepth implements Queue.
func (q *FaultyQueue) DescribeDepth(ctx context.Context) (depth bus.QueueDepth, err error) {
	err = q.runCall(ctx, "describe", func(ctx context.Context) (err error) {
		depth, err = q.inner.DescribeDepth(ctx)
		return err
	})
	if err != nil {
		return bus.QueueDepth{}, err
	}
	return depth, nil
}

// DescribeState implements Queue.
func (q *FaultyQueue) DescribeState(ctx context.Context) (state bus.QueueState, err error) {
	err = q.runCall(ctx, "describe", func(ctx context.Context) (err error) {
		state, err = q.inner.DescribeState(ctx)
		return err
	})
	if err != nil {
		return bus.QueueState{}, err
	}
	return state, nil
}

// ListDead implements Queue.
func (q *FaultyQueue) ListDead(ctx context.Context) (list []bus.DeadJob, err error) {
	err = q.runCall(ctx, "list dead letters", func(ctx context.Context) (err error) {
		list, err = q.inner.ListDead(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// DropDead implements Queue.
func (q *FaultyQueue) DropDead(ctx context.Context, id string) error {
	return q.runCall(ctx, "drop a dead letter", func(ctx context.Context) error { return q.inner.DropDead(ctx, id) })
}

// FaultyQueues opens queues which misbehave.
type FaultyQueues struct {
	inner  bus.Queues
	seed   uint64
	faults QueueFaults
}

var _ bus.Queues = FaultyQueues{}

// NewFaultyQueues wraps the queues which inner opens, see [NewFaultyQueue].
func NewFaultyQueues(inner bus.Queues, seed uint64, f QueueFaults) FaultyQueues {
	return FaultyQueues{inner, seed, f}
}

// OpenQueue implements bus.Queues.
func (q FaultyQueues) OpenQueue(cfg bus.QueueConfig) (bus.Queue, error) {
	inner, err := q.inner.OpenQueue(cfg)
	if err != nil {
		return nil, err
	}
	return NewFaultyQueue(inner, q.seed, q.faults), nil
}

// ListQueues implements bus.Queues, without faults.
func (q FaultyQueues) ListQueues(ctx context.Context, prefix string) ([]string, error) {
	return q.inner.ListQueues(ctx, prefix)
}
