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
		all  []*poolAttachment
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
type poolAttachment struct {
	shared   *SharedPool
	member   *PoolMember
	copyTime time.Duration // duration for one block
	wake     func()        // makes the engine report pending events

	pending []pendingCopy // unfinished copies, in the order in which they finish
	timer   *time.Timer   // fires when the first of them finishes; nil before the first copy
}

// pendingCopy is a copy that finishes at end.
type pendingCopy struct {
	end  time.Time
	seqs []kv.SeqHash
}

var _ batch.SharedMemory = (*poolAttachment)(nil)

// attachWorker makes a worker a member.
func (s *SharedPool) attachWorker(as kv.Worker, block time.Duration) *poolAttachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &poolAttachment{shared: s, member: s.mu.pool.AddMember(as), copyTime: block}
	s.mu.all = append(s.mu.all, a)
	return a
}

// setWake sets the function that wakes the engine, before it runs.
func (a *poolAttachment) setWake(wake func()) {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	a.wake = wake
}

// detachWorker ends the membership of a stopped engine.
func (a *poolAttachment) detachWorker() {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
	a.pending = nil
	a.member.Detach()
	for i, o := range a.shared.mu.all {
		if o == a {
			a.shared.mu.all = append(a.shared.mu.all[:i:i], a.shared.mu.all[i+1:]...)
			break
		}
	}
	a.shared.wakePendingLocked()
}

// wakePendingLocked wakes the engines that have pending events.
func (s *SharedPool) wakePendingLocked() {
	for _, o := range s.mu.all {
		if o.member.HasPending() && o.wake != nil {
			o.wake()
		}
	}
}

// Has implements paged.Elsewhere.
func (a *poolAttachment) Has(seq kv.SeqHash) bool {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	return a.member.Has(seq)
}

// ExchangeEvents implements [batch.SharedMemory]: it starts copies of stored blocks and reports finished
// copies.
func (a *poolAttachment) ExchangeEvents(changed []kv.Event) []kv.Event {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	now := time.Now()
	var out []kv.Event
	for len(a.pending) > 0 && !a.pending[0].end.After(now) {
		done := a.pending[0].seqs
		a.pending = a.pending[1:]
		a.member.FinishCopies(done)
		out = a.member.AppendMoved(out, kv.Pooled, done)
	}
	if seqs := a.member.StartCopies(changed); len(seqs) > 0 {
		out = a.member.AppendMoved(out, kv.InTransit, seqs)
		end := now.Add(a.shared.delay + time.Duration(len(seqs))*a.copyTime)
		if n := len(a.pending); n > 0 && a.pending[n-1].end.After(end) {
			end = a.pending[n-1].end // copies are sequential
		}
		a.pending = append(a.pending, pendingCopy{end, seqs})
	}
	out = a.member.AppendPending(out)
	a.armTimerLocked(now)
	a.shared.wakePendingLocked()
	return out
}

// armTimerLocked schedules the wake-up for the next finished copy.
func (a *poolAttachment) armTimerLocked(now time.Time) {
	switch {
	case len(a.pending) == 0:
	case a.timer == nil:
		a.timer = time.AfterFunc(a.pending[0].end.Sub(now), a.wake)
	default:
		a.timer.Reset(a.pending[0].end.Sub(now))
	}
}

// DescribeShared implements [batch.SharedMemory].
func (a *poolAttachment) DescribeShared() []kv.Event {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	return a.member.AppendContents(nil)
}
