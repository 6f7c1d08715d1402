package sim

import (
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine/batch"
)

// SharedPool is a [Pool] for engines that run in real time in one process. It is safe for concurrent use.
type SharedPool struct {
	delay time.Duration
	mu    struct {
		sync.Mutex
		pool *Pool
		all  []*attachment
	}
}

// NewSharedPool returns an empty pool with a capacity in blocks. A copy into it takes delay in addition to
// [Timing.TransferDuration].
func NewSharedPool(id kv.PoolID, room int, delay time.Duration) (*SharedPool, error) {
	pool, err := NewPool(id, room)
	if err != nil {
		return nil, err
	}
	s := &SharedPool{delay: delay}
	s.mu.pool = pool
	return s, nil
}

// poolAttachment is an engine's use of a SharedPool. The pool's lock guards its mutable fields.
type attachment struct {
	shared *SharedPool
	member *PoolMember
	copies time.Duration // duration for one block
	wake   func()        // makes the engine report pending events

	waiting []waiting   // unfinished copies, in the order in which they finish
	timer   *time.Timer // fires when the first of them finishes; nil before the first copy
}

// pendingCopy is a copy that finishes at end.
type waiting struct {
	end  time.Time
	seqs []kv.SeqHash
}

var _ batch.Shared = (*attachment)(nil)

// attachWorker makes a worker a member.
func (s *SharedPool) attach(as kv.Worker, block time.Duration) *attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &attachment{shared: s, member: s.mu.pool.Join(as), copies: block}
	s.mu.all = append(s.mu.all, a)
	return a
}

// setWake sets the function that wakes the engine, before it runs.
func (a *attachment) open(wake func()) {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	a.wake = wake
}

// detachWorker ends the membership of a stopped engine.
func (a *attachment) detach() {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
	a.waiting = nil
	a.member.Leave()
	for i, o := range a.shared.mu.all {
		if o == a {
			a.shared.mu.all = append(a.shared.mu.all[:i:i], a.shared.mu.all[i+1:]...)
			break
		}
	}
	a.shared.wakeOthers()
}

// wakePendingLocked wakes the engines that have pending events.
func (s *SharedPool) wakeOthers() {
	for _, o := range s.mu.all {
		if o.member.Waits() && o.wake != nil {
			o.wake()
		}
	}
}

// Has implements paged.Elsewhere.
func (a *attachment) Has(seq kv.SeqHash) bool {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	return a.member.Has(seq)
}

// ExchangeEvents implements [batch.SharedMemory]: it starts copies of stored blocks and reports finished
// copies.
func (a *attachment) Tell(changed []kv.Event) []kv.Event {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	now := time.Now()
	var out []kv.Event
	for len(a.waiting) > 0 && !a.waiting[0].end.After(now) {
		done := a.waiting[0].seqs
		a.waiting = a.waiting[1:]
		a.member.End(done)
		out = a.member.Moved(out, kv.Pooled, done)
	}
	if seqs := a.member.Offer(changed); len(seqs) > 0 {
		out = a.member.Moved(out, kv.InTransit, seqs)
		end := now.Add(a.shared.delay + time.Duration(len(seqs))*a.copies)
		if n := len(a.waiting); n > 0 && a.waiting[n-1].end.After(end) {
			end = a.waiting[n-1].end // copies are sequential
		}
		a.waiting = append(a.waiting, waiting{end, seqs})
	}
	out = a.member.News(out)
	a.arm(now)
	a.shared.wakeOthers()
	return out
}

// armTimerLocked schedules the wake-up for the next finished copy.
func (a *attachment) arm(now time.Time) {
	switch {
	case len(a.waiting) == 0:
	case a.timer == nil:
		a.timer = time.AfterFunc(a.waiting[0].end.Sub(now), a.wake)
	default:
		a.timer.Reset(a.waiting[0].end.Sub(now))
	}
}

// DescribeShared implements [batch.SharedMemory].
func (a *attachment) Describe() []kv.Event {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	return a.member.Describe(nil)
}
