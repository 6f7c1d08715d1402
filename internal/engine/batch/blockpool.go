package batch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/core/pool"
	"penstock/internal/engine"
)

// PoolMemory is a pool of KV blocks which several engines share, as this process has mapped it. Its owner renews the
// lease. Without a lease the engine neither stores blocks nor fetches any.
type PoolMemory interface {
	// Use calls use with the pool and the time, while no other goroutine uses it, and returns its error, or why the pool
	// cannot be used.
	Use(use func(p *pool.View, now kv.Mono) error) error
}

// PoolStats count what an engine did with its pool of KV blocks.
type PoolStats struct {
	Stored  uint64 // blocks which it has put there
	Dropped uint64 // blocks which it has not: it was behind, they were evicted, the pool had no room, they have no identity
	Fetched uint64 // blocks which it used instead of computing them
	Damaged uint64 // blocks which could not be read, or were not what had been stored: each ended a fetch
	Evicted uint64 // blocks which it evicted from there to store others
	// Abandoned are look-ups and fetches which requests did not wait for, because the pool did not answer.
	Abandoned uint64
}

// Add adds the figures of another engine.
func (s *PoolStats) Add(o PoolStats) {
	s.Stored += o.Stored
	s.Dropped += o.Dropped
	s.Fetched += o.Fetched
	s.Damaged += o.Damaged
	s.Evicted += o.Evicted
	s.Abandoned += o.Abandoned
}

// maxStoring is how many blocks wait to be copied into the pool.
const maxStoring = 1024

// poolCopier copies the blocks of an engine into a pool, beside the batches.
type poolCopier struct {
	memory     PoolMemory
	computer   BlockComputer
	layout     engine.KVLayout
	label      func([]kv.Event) // Config.LabelEvents
	jobs       chan *storeJob
	identifier *pool.Identifier
	counts     struct{ stored, dropped, fetched, damaged, evicted, abandoned atomic.Uint64 }
	users      chan struct{} // one for each request which uses the pool, of capacity maxPoolUsers
	stuck      atomic.Int64  // uses which were given up and have not returned
	ending     atomic.Bool   // the engine ends: the pool is not listed any more
	damage     chan struct{} // of capacity 1: damaged blocks were evicted, which the copier has not announced

	feed poolFeed

	// Owned by the loop.
	known     []knownBlock // what is known of each registered block
	pending   []*storeJob  // whose blocks may not have been read yet
	evictions uint64       // of the scheduler, when evicted blocks were cancelled
}

// knownBlock is what the blocks after a registered one need to know of it. The zero value says that they have no identity.
type knownBlock struct {
	identity, salt kv.Digest
	ok             bool
}

// storeJob is a block to be copied into the pool.
type storeJob struct {
	block   int32
	content pool.Content
	label   kv.MoELabel
	// over, of capacity 1, is whether the block may not be read any more, or need not. Its holder reads the block.
	over chan bool
}

func (j *storeJob) isOver() bool {
	over := <-j.over
	j.over <- over
	return over
}

// hasEnded reports whether the block is not read any more. It does not wait for a read in progress.
func (j *storeJob) hasEnded() bool {
	select {
	case over := <-j.over:
		j.over <- over
		return over
	default:
		return false
	}
}

// end says that the block is not read any more, once it is not being read.
func (j *storeJob) end() {
	<-j.over
	j.over <- true
}

// UsePool makes the engine copy its full blocks into a pool as they fill, and fetch blocks which are there instead of
// computing them. It is called before Run. It is Unimplemented for an engine whose blocks cannot be moved. The memory has
// to be open until Run and all calls of Generate have returned. A use of it which hangs may return later.
//
// The events of the cache announce what the engine, which is worker's, does in the pool, whose name is id. The card says
// which memory that is.
func (e *Engine) UsePool(m PoolMemory, id kv.PoolID, worker kv.Worker) error {
	computer, err := e.blockComputer()
	if err != nil {
		return err
	}
	layout := computer.BlockLayout()
	identifier, err := pool.NewIdentifier(layout.PoolConfig())
	if err != nil {
		return err
	}
	card := &engine.CardPool{ID: id}
	if err := m.Use(func(p *pool.View, _ kv.Mono) error {
		card.Generation = p.Generation()
		return nil
	}); err != nil {
		return err
	}
	e.cfg.Card.Pool = card
	e.pool = &poolCopier{
		memory: m, computer: computer, layout: layout, label: e.cfg.LabelEvents, identifier: identifier,
		users: make(chan struct{}, maxPoolUsers), damage: make(chan struct{}, 1),
		jobs: make(chan *storeJob, maxStoring), known: make([]knownBlock, e.cfg.Card.Blocks),
	}
	f := &e.pool.feed
	f.id, f.worker, f.wake, f.moves = id, worker, e.wakeLoop, make(chan kv.Event, maxMoves)
	return nil
}

// PoolStats returns what the engine did with its pool; zeros without one.
func (e *Engine) PoolStats() (s PoolStats) {
	if p := e.pool; p != nil {
		n := &p.counts
		s = PoolStats{Stored: n.stored.Load(), Dropped: n.dropped.Load(), Fetched: n.fetched.Load(), Damaged: n.damaged.Load(), Evicted: n.evicted.Load(), Abandoned: n.abandoned.Load()}
	}
	return s
}

// start copies blocks until stop is called, which waits for the end of the block in progress, though not for a pool which
// does not answer.
func (s *poolCopier) start(ctx context.Context) (stop func()) {
	if s == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		s.storeBlocks(ctx)
	}()
	return func() {
		cancel()
		s.ending.Store(true)
		s.feed.listers.Wait()
		select {
		case <-copied:
		case <-time.After(poolPatience):
		}
	}
}

// contentOf returns the content of a block, without the identity of the block before it.
func contentOf(c *paged.FullBlock, salt kv.Digest) pool.Content {
	return pool.Content{Name: c.Name, Parent: c.Parent, Hash: c.Hash, Index: c.Index, Salt: salt, Tokens: c.Tokens, Media: c.Media}
}

// BlockRegistered implements [paged.BlockObserver]: the block is copied after the blocks which were registered before it.
// One which was dropped has its identity, so the blocks after it are copied without it.
func (s *poolCopier) BlockRegistered(b, parent int32, full paged.FullBlock) {
	own := &s.known[b]
	*own = knownBlock{}
	content := contentOf(&full, kv.Digest{})
	if parent == paged.NoParent {
		content.Salt = pool.DigestSalt(full.Salt)
	} else {
		before := &s.known[parent]
		if !before.ok {
			s.counts.dropped.Add(1)
			return
		}
		content.ParentIdentity, content.Salt = before.identity, before.salt
	}
	identity, err := s.identifier.Identify(&content)
	if err != nil { // of media without a digest
		s.counts.dropped.Add(1)
		return
	}
	*own = knownBlock{identity: identity, salt: content.Salt, ok: true}
	job := &storeJob{block: b, content: content, label: s.labelOf(&full), over: make(chan bool, 1)}
	job.over <- false
	select {
	case s.jobs <- job:
		if len(s.pending) >= 2*cap(s.jobs) { // most have ended
			s.pending = slices.DeleteFunc(s.pending, (*storeJob).hasEnded)
		}
		s.pending = append(s.pending, job)
	default: // the writer is behind
		s.counts.dropped.Add(1)
	}
}

// labelOf returns the label of a block; zero if the engine has none.
func (s *poolCopier) labelOf(full *paged.FullBlock) kv.MoELabel {
	if s.label == nil {
		return kv.MoELabel{}
	}
	events := []kv.Event{{Kind: kv.Stored, Parent: full.Parent, Start: full.Index, Blocks: []kv.BlockHash{full.Hash}}}
	s.label(events)
	if len(events[0].Labels) != 1 {
		return kv.MoELabel{}
	}
	return events[0].Labels[0]
}

// cancelEvicted cancels the copies of blocks which a step has evicted, before anything is written to them. It waits for
// the read of a block which is in progress, and that waits for nothing.
func (s *poolCopier) cancelEvicted(sched *paged.Scheduler) {
	if s == nil {
		return
	}
	evictions := sched.Stats().Evictions
	if evictions == s.evictions {
		return
	}
	s.evictions = evictions
	s.pending = slices.DeleteFunc(s.pending, func(j *storeJob) bool {
		if !sched.IsRegistered(j.block, j.content.Name) {
			j.end()
			return true
		}
		return j.hasEnded()
	})
}

// storeBlocks copies blocks into the pool until ctx ends.
func (s *poolCopier) storeBlocks(ctx context.Context) {
	block := make([]byte, s.layout.BlockBytes)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.damage:
			s.announceDamaged(ctx)
		case j := <-s.jobs:
			if stored := s.storeBlock(ctx, j, block); !stored {
				s.counts.dropped.Add(1)
			}
			j.end()
		}
	}
}

// storeBlock copies a block into the pool, and reports whether it is there. It uses block, which has room for it.
func (s *poolCopier) storeBlock(ctx context.Context, j *storeJob, block []byte) bool {
	if j.isOver() {
		return false // it must evict no other for nothing
	}
	var w pool.BlockWriter
	var evicted []pool.EvictedBlock
	err := s.memory.Use(func(p *pool.View, _ kv.Mono) (err error) {
		w, evicted, err = p.Reserve(&j.content, j.label, nil)
		s.counts.evicted.Add(uint64(len(evicted)))
		// What was evicted before this block is announced before it: it may be the same one.
		evicted = p.TakeDamaged(evicted)
		return err
	})
	s.announceEvicted(ctx, evicted)
	if err != nil {
		return errors.Is(err, pool.ErrExists)
	}
	s.feed.announceMove(ctx, kv.InTransit, j.label, j.content.Name)
	if err = s.readBlock(ctx, j, block); err == nil {
		err = s.writeBlock(&w, block)
	}
	if err != nil {
		_ = s.memory.Use(func(p *pool.View, _ kv.Mono) error { // otherwise the lease takes it back
			p.Abort(&w)
			return nil
		})
		s.feed.announceMove(ctx, kv.LocalGPU, kv.MoELabel{}, j.content.Name)
		return false
	}
	s.counts.stored.Add(1)
	s.feed.announceMove(ctx, kv.Pooled, j.label, j.content.Name)
	return true
}

// announceDamaged announces the damaged blocks which were evicted by look-ups and fetches. Only the copier announces what
// happens in the pool, so that the events have its order.
func (s *poolCopier) announceDamaged(ctx context.Context) {
	var evicted []pool.EvictedBlock
	_ = s.memory.Use(func(p *pool.View, _ kv.Mono) error { // of a lost pool nothing counts
		evicted = p.TakeDamaged(nil)
		return nil
	})
	s.announceEvicted(ctx, evicted)
}

// announceEvicted announces that blocks were evicted from the pool.
func (s *poolCopier) announceEvicted(ctx context.Context, evicted []pool.EvictedBlock) {
	gone := make([]kv.SeqHash, 0, len(evicted))
	for i := range evicted {
		gone = append(gone, evicted[i].Name)
	}
	s.feed.announceMove(ctx, kv.Evicted, kv.MoELabel{}, gone...)
}

// readBlock reads the block of a job, unless it was cancelled.
func (s *poolCopier) readBlock(ctx context.Context, j *storeJob, dst []byte) error {
	over := <-j.over
	defer func() { j.over <- true }()
	if over {
		return pool.ErrGone
	}
	return s.computer.ReadBlocks(ctx, dst, []int32{j.block})
}

// writeBlock writes a block chunk by chunk, between which others use the pool, and publishes it.
func (s *poolCopier) writeBlock(w *pool.BlockWriter, block []byte) error {
	for published := false; !published; {
		if err := s.memory.Use(func(p *pool.View, now kv.Mono) error {
			at, size := p.NextChunk(w)
			if size > 0 {
				return p.Write(now, w, block[at:at+size])
			}
			published = true
			return p.Publish(w)
		}); err != nil {
			return err
		}
	}
	return nil
}
