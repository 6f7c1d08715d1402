package sim

import (
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine/batch"
)

// SharedPool is a [Pool] for engines that run in real time, in one process. It is safe for
// concurrent use.
type SharedPool struct {
	delay time.Duration
	mu    struct {
		sync.Mutex
		pool *Pool
		all  []*attachment
	}
}

// NewSharedPool returns an empty pool that has room for so many blocks. A copy into it
// takes delay beside the time of [Timing.Transfer].
func NewSharedPool(id kv.PoolID, room int, delay time.Duration) (*SharedPool, error) {
	pool, err := NewPool(id, room)
	if err != nil {
		return nil, err
	}
	s := &SharedPool{delay: delay}
	s.mu.pool = pool
	return s, nil
}

// attachment is what an engine has of a SharedPool. The pool's lock guards all but what
// does not change.
type attachment struct {
	shared *SharedPool
	member *PoolMember
	copies time.Duration // of one block
	wake   func()        // has the engine tell what there is to tell

	waiting []waiting   // copies that have not ended, in the order in which they will
	timer   *time.Timer // wakes when the first of them ends; nil before there is one
}

// waiting is a copy that ends at a time.
type waiting struct {
	end  time.Time
	seqs []kv.SeqHash
}

var _ batch.Shared = (*attachment)(nil)

// attach makes a worker a member.
func (s *SharedPool) attach(as kv.Worker, block time.Duration) *attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &attachment{shared: s, member: s.mu.pool.Join(as), copies: block}
	s.mu.all = append(s.mu.all, a)
	return a
}

// open says how the engine is woken. It runs after that.
func (a *attachment) open(wake func()) {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	a.wake = wake
}

// detach ends the membership of an engine that has stopped.
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

// wakeOthers wakes the engines that have something to tell. The caller holds the lock.
func (s *SharedPool) wakeOthers() {
	for _, o := range s.mu.all {
		if o.member.Waits() && o.wake != nil {
			o.wake()
		}
	}
}

// Has implements the scheduler's Elsewhere.
func (a *attachment) Has(seq kv.SeqHash) bool {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	return a.member.Has(seq)
}

// Tell implements [batch.Shared]: what is stored is copied, and what was copied is told of.
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
			end = a.waiting[n-1].end // one after another
		}
		a.waiting = append(a.waiting, waiting{end, seqs})
	}
	out = a.member.News(out)
	a.arm(now)
	a.shared.wakeOthers()
	return out
}

// arm has the engine woken when the next copy ends. The caller holds the lock.
func (a *attachment) arm(now time.Time) {
	switch {
	case len(a.waiting) == 0:
	case a.timer == nil:
		a.timer = time.AfterFunc(a.waiting[0].end.Sub(now), a.wake)
	default:
		a.timer.Reset(a.waiting[0].end.Sub(now))
	}
}

// Describe implements [batch.Shared].
func (a *attachment) Describe() []kv.Event {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	return a.member.Describe(nil)
}
