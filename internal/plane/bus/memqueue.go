package bus

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// MemQueue is a queue within one process. It has no goroutines.
type MemQueue struct {
	mu struct {
		sync.Mutex
		line    *jobLine
		changed chan struct{} // closed when a job was put or released
	}
}

var (
	_ Queue  = (*MemQueue)(nil)
	_ Queues = (*MemBus)(nil)
)

// OpenQueue implements Queues.
func (b *MemBus) OpenQueue(cfg QueueConfig) (Queue, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.mu.queues[cfg.Name]
	if q == nil {
		q = &MemQueue{}
		q.mu.line, q.mu.changed = newJobLine(cfg), make(chan struct{})
		b.mu.queues[cfg.Name] = q
	}
	if q.mu.line.cfg != cfg {
		return nil, errQueueMismatch(cfg, q.mu.line.cfg)
	}
	return q, nil
}

// ListQueues implements Queues.
func (b *MemBus) ListQueues(ctx context.Context, prefix string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	names := slices.Sorted(maps.Keys(b.mu.queues))
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	if len(names) > MaxQueues {
		return nil, errManyQueues(prefix)
	}
	return names, nil
}

// Put implements Queue.
func (q *MemQueue) Put(ctx context.Context, j Job) error {
	return q.runOnLine(ctx, func(now time.Time, l *jobLine) error {
		j, err := l.cfg.checkJob(j)
		if err != nil {
			return err
		}
		defer q.wakeWorkersLocked()
		return l.putJob(now, j)
	})
}

// Pull implements Queue.
func (q *MemQueue) Pull(ctx context.Context) (Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Delivery{}, err
		}
		d, ok, changed, lapse := q.tryPull()
		if ok {
			return d, nil
		}
		var timer *time.Timer
		var lapsed <-chan time.Time
		if !lapse.IsZero() {
			timer = time.NewTimer(time.Until(lapse))
			lapsed = timer.C
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-lapsed:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// tryPull returns a job, or what must happen before there is one: changed is closed, or the time lapse,
// which is zero if no worker has a job.
func (q *MemQueue) tryPull() (d Delivery, ok bool, changed <-chan struct{}, lapse time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, ok = q.mu.line.pullJob(time.Now())
	lapse, _ = q.mu.line.held.nextLapse()
	return d, ok, q.mu.changed, lapse
}

// Extend implements Queue.
func (q *MemQueue) Extend(ctx context.Context, d Delivery) error {
	return q.runOnLine(ctx, func(now time.Time, l *jobLine) error { return l.extendJob(now, d) })
}

// Ack implements Queue.
func (q *MemQueue) Ack(ctx context.Context, d Delivery) error {
	return q.runOnLine(ctx, func(now time.Time, l *jobLine) error { return l.ackJob(now, d) })
}

// Release implements Queue.
func (q *MemQueue) Release(ctx context.Context, d Delivery) error {
	return q.runOnLine(ctx, func(now time.Time, l *jobLine) error {
		defer q.wakeWorkersLocked()
		return l.releaseJob(now, d)
	})
}

// DescribeDepth implements Queue.
func (q *MemQueue) DescribeDepth(ctx context.Context) (depth QueueDepth, err error) {
	err = q.runOnLine(ctx, func(now time.Time, l *jobLine) error {
		depth = l.describeDepth(now)
		return nil
	})
	return depth, err
}

// DescribeState implements Queue.
func (q *MemQueue) DescribeState(ctx context.Context) (state QueueState, err error) {
	err = q.runOnLine(ctx, func(now time.Time, l *jobLine) error {
		state = l.describeState(now)
		return nil
	})
	return state, err
}

// ListDead implements Queue.
func (q *MemQueue) ListDead(ctx context.Context) (list []DeadJob, err error) {
	err = q.runOnLine(ctx, func(now time.Time, l *jobLine) error {
		list = l.listDead(now)
		return nil
	})
	return list, err
}

// DropDead implements Queue.
func (q *MemQueue) DropDead(ctx context.Context, id string) error {
	return q.runOnLine(ctx, func(_ time.Time, l *jobLine) error {
		if err := l.cfg.checkJobID(id); err != nil {
			return err
		}
		l.dropDead(id)
		return nil
	})
}

// runOnLine runs an operation on the line, under the lock.
func (q *MemQueue) runOnLine(ctx context.Context, f func(now time.Time, l *jobLine) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return f(time.Now(), q.mu.line)
}

// wakeWorkersLocked lets the workers which wait look again.
func (q *MemQueue) wakeWorkersLocked() {
	close(q.mu.changed)
	q.mu.changed = make(chan struct{})
}
