package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"penstock/core/fault"
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
}

// Add adds the figures of another engine.
func (s *PoolStats) Add(o PoolStats) {
	s.Stored += o.Stored
	s.Dropped += o.Dropped
	s.Fetched += o.Fetched
	s.Damaged += o.Damaged
	s.Evicted += o.Evicted
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
	counts     struct{ stored, dropped, fetched, damaged, evicted atomic.Uint64 }

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
// to be open until Run and all calls of Generate have returned.
func (e *Engine) UsePool(m PoolMemory) error {
	computer, err := e.blockComputer()
	if err != nil {
		return err
	}
	layout := computer.BlockLayout()
	identifier, err := pool.NewIdentifier(layout.PoolConfig())
	if err != nil {
		return err
	}
	e.pool = &poolCopier{
		memory: m, computer: computer, layout: layout, label: e.cfg.LabelEvents, identifier: identifier,
		jobs: make(chan *storeJob, maxStoring), known: make([]knownBlock, e.cfg.Card.Blocks),
	}
	return nil
}

// PoolStats returns what the engine did with its pool; zeros without one.
func (e *Engine) PoolStats() (s PoolStats) {
	if p := e.pool; p != nil {
		n := &p.counts
		s = PoolStats{Stored: n.stored.Load(), Dropped: n.dropped.Load(), Fetched: n.fetched.Load(), Damaged: n.damaged.Load(), Evicted: n.evicted.Load()}
	}
	return s
}

// start copies blocks until stop is called, which waits for the end of the block in progress.
func (s *poolCopier) start(ctx context.Context) (stop func()) {
	if s == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var copying sync.WaitGroup
	copying.Go(func() { s.storeBlocks(ctx) })
	return func() {
		cancel()
		copying.Wait()
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
	err := s.memory.Use(func(p *pool.View, _ kv.Mono) (err error) {
		var evicted []pool.EvictedBlock
		w, evicted, err = p.Reserve(&j.content, j.label, nil)
		s.counts.evicted.Add(uint64(len(evicted)))
		return err
	})
	if err != nil {
		return errors.Is(err, pool.ErrExists)
	}
	if err = s.readBlock(ctx, j, block); err == nil {
		err = s.writeBlock(&w, block)
	}
	if err != nil {
		_ = s.memory.Use(func(p *pool.View, _ kv.Mono) error { // otherwise the lease takes it back
			p.Abort(&w)
			return nil
		})
		return false
	}
	s.counts.stored.Add(1)
	return true
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

// lookUpChunk is how many blocks are looked up before others use the pool.
const lookUpChunk = 64

// lookUp finds out which blocks of a sequence are in the pool; nil if none are. It ends early if ctx ends.
func (s *poolCopier) lookUp(ctx context.Context, seq *paged.Sequence) *poolFetch {
	blocks, err := paged.AppendFullBlocks(nil, seq, s.layout.BlockSize)
	if err != nil || len(blocks) == 0 {
		return nil
	}
	f := &poolFetch{of: s, reserved: make(chan struct{}, 1)}
	salt, before, found, contents := pool.DigestSalt(seq.Salt), kv.Digest{}, false, []pool.Content(nil)
	for part := range slices.Chunk(blocks, lookUpChunk) {
		if ctx.Err() != nil {
			return nil
		}
		err := s.memory.Use(func(p *pool.View, _ kv.Mono) error {
			if !p.IsOwner() {
				return pool.ErrEnded
			}
			for i := range part {
				c := contentOf(&part[i], salt)
				c.ParentIdentity = before
				at, err := p.Find(&c)
				if err != nil {
					return err
				}
				before = at.Identity
				contents, f.pooled = append(contents, c), append(f.pooled, at.State == kv.Pooled)
				found = found || at.State == kv.Pooled
			}
			return nil
		})
		if err != nil {
			break // what comes after it has no identity, or there is no pool
		}
	}
	if !found {
		return nil
	}
	f.contents.Store(&contents)
	return f
}

// poolFetch is what of a sequence can be fetched from a pool. It watches the import of its request.
type poolFetch struct {
	of       *poolCopier
	contents atomic.Pointer[[]pool.Content] // of the first full blocks of the sequence; nil when the fetch is over
	pooled   []bool                         // whether they were in the pool; the loop's
	reserved chan struct{}                  // gets a value when there are blocks for them
}

// BlocksReserved implements [engine.ImportWatcher].
func (f *poolFetch) BlocksReserved(int) {
	select {
	case f.reserved <- struct{}{}:
	default: // the request has not taken the last one
	}
}

// BlocksReclaimed implements [engine.ImportWatcher]: a block without room ends the fetch.
func (f *poolFetch) BlocksReclaimed() {}

// endAfter returns up to which token a sequence can be fetched whose first held tokens are cached; 0 if none can.
func (f *poolFetch) endAfter(held int) int {
	first := held / f.of.layout.BlockSize
	n := first
	for n < len(f.pooled) && f.pooled[n] {
		n++
	}
	if n == first {
		return 0
	}
	return n * f.of.layout.BlockSize
}

// dropContents releases the memory of what was looked up, which is not fetched again; a fetch in progress has it. f may be
// nil.
func (f *poolFetch) dropContents() {
	if f != nil {
		f.contents.Store(nil)
		f.pooled = nil
	}
}

// readBlocks reads the blocks of the tokens from start to end, and gives each to write, until one is not there any more or
// write refuses it. It returns the end of the last one.
func (f *poolFetch) readBlocks(ctx context.Context, start, end int, write func(*engine.BlockData) error) int {
	s, size := f.of, f.of.layout.BlockSize
	data := engine.BlockData{Layout: s.layout, Bytes: make([]byte, s.layout.BlockBytes)}
	contents := f.contents.Load()
	if contents == nil {
		return start
	}
	var held []pool.BlockRef
	defer func() {
		_ = s.memory.Use(func(p *pool.View, _ kv.Mono) error { // a lost pool needs no release
			for _, ref := range slices.Backward(held) {
				p.Release(ref)
			}
			return nil
		})
	}()
	for start < end && ctx.Err() == nil {
		data.First = start / size
		if err := s.memory.Use(func(p *pool.View, _ kv.Mono) error {
			found, ok := p.Acquire(&(*contents)[data.First])
			if !ok {
				return pool.ErrGone
			}
			held = append(held, found.Ref)
			return p.Read(found.Ref, data.Bytes)
		}); err != nil {
			if errors.Is(err, pool.ErrDamaged) || fault.CodeOf(err) == fault.PoolLost {
				s.counts.damaged.Add(1)
			}
			break
		}
		if write(&data) != nil {
			break
		}
		start += size
	}
	return start
}

// preparePool makes a request one which fetches blocks from the pool, if some of its blocks are there.
func (e *Engine) preparePool(ctx context.Context, r *request) {
	if e.pool == nil || e.cfg.Reuse == paged.Off || len(r.open) == 0 {
		return
	}
	seq := r.open[0].sequence()
	if f := e.pool.lookUp(ctx, &seq); f != nil {
		r.imp = newImport(e, r.req, f)
		r.imp.fetch = f
	}
}

// reservedBlocks returns what gets a value when blocks of r can be fetched; nil if it fetches none.
func (r *request) reservedBlocks() <-chan struct{} {
	if r.imp == nil || r.imp.fetch == nil {
		return nil
	}
	return r.imp.fetch.reserved
}

// fetchBlocks fetches blocks from the pool into the reserved ones. The engine computes what does not come.
func (i *blockImport) fetchBlocks(ctx context.Context) {
	room := <-i.room
	i.room <- room
	if room == nil {
		return // reclaimed already
	}
	end := i.fetch.readBlocks(ctx, room.start, room.end, i.writeTokens)
	_ = i.e.callLoop(ctx, func(l *loop) error { // an error is of the whole request, which learns of it
		l.finishFetch(i, end)
		return nil
	})
}

// writeTokens writes the tokens of b into the reserved blocks.
func (i *blockImport) writeTokens(b *engine.BlockData) error {
	room := <-i.room
	defer func() { i.room <- room }()
	if room == nil {
		return i.e.notReserved()
	}
	start := b.First * b.Layout.BlockSize
	return i.fetch.of.computer.WriteTokens(room.blocks, start, start+b.Layout.BlockSize, b)
}

// finishFetch makes the tokens of the request of i computed up to end, which were fetched, and has the others computed.
func (l *loop) finishFetch(i *blockImport, end int) {
	c := i.lead
	if c == nil || c.request.finished || c.transferEnd == 0 {
		return // reclaimed
	}
	size, last := l.cfg.Card.BlockSize, c.transferEnd
	c.closeImport()
	if ready, _ := l.sched.SequenceBlocks(c.id); end > ready {
		if l.sched.ImportTokens(c.id, end) {
			l.pool.counts.fetched.Add(uint64((end - ready) / size))
			c.request.cached = max(c.request.cached, min(end, len(c.request.req.Prompt)))
		} else {
			end = ready // impossible: the blocks are reserved
		}
	}
	if end < last {
		l.sched.FinishTransfer(c.id)
		l.startMissing(c)
		return
	}
	c.ready = end
	l.acceptEncoded(c)
}
