package batch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/core/pool"
	"penstock/internal/engine"
)

// poolPatience is how long a request waits while its pool does nothing, before it goes on without the pool. So long waits
// the end of an engine, too.
const poolPatience = time.Second

// maxPoolUsers is how many requests look blocks up, or fetch them, at once. The others wait for their turn.
const maxPoolUsers = 64

// runBeside calls use in a goroutine of its own, and reports whether it has returned. It gives use up which made no
// progress for poolPatience, and calls no other before that one returns: the memory of a pool may hang, such as a file on
// a disk which is away, and nothing ends an access to it.
func (s *poolCopier) runBeside(progress *atomic.Int64, use func()) bool {
	patience := time.NewTicker(poolPatience)
	defer patience.Stop()
	if s.stuck.Load() > 0 {
		s.counts.abandoned.Add(1)
		return false
	}
	select {
	case s.users <- struct{}{}:
	case <-patience.C:
		s.counts.abandoned.Add(1)
		return false
	}
	patience.Reset(poolPatience) // the time in line is none of the pool's
	var over atomic.Bool         // use has returned, or is given up
	done := make(chan struct{})
	go func() {
		defer close(done)
		use()
		<-s.users
		if over.Swap(true) {
			s.stuck.Add(-1)
		}
	}()
	for last := progress.Load(); ; {
		select {
		case <-done:
			return true
		case <-patience.C:
		}
		now := progress.Load()
		if now != last {
			last = now
			continue
		}
		s.stuck.Add(1)
		if over.Swap(true) { // it has just returned
			s.stuck.Add(-1)
			<-done
			return true
		}
		s.counts.abandoned.Add(1)
		return false
	}
}

// useView calls use with the pool, and has the copier announce the damaged blocks which it has evicted.
func (s *poolCopier) useView(use func(p *pool.View) error) error {
	return s.memory.Use(func(p *pool.View, _ kv.Mono) error {
		err := use(p)
		if p.HasDamaged() {
			select {
			case s.damage <- struct{}{}:
			default: // the copier is to look already
			}
		}
		return err
	})
}

// lookUpChunk is how many blocks are looked up before others use the pool.
const lookUpChunk = 64

// lookUp finds out which blocks of a sequence are in the pool; nil if none are, or the pool does not answer. It ends early
// if ctx ends.
func (s *poolCopier) lookUp(ctx context.Context, seq paged.Sequence) (f *poolFetch) {
	// A look-up which is given up may read the sequence for longer than its request lives.
	seq.Tokens, seq.Media = slices.Clone(seq.Tokens), slices.Clone(seq.Media)
	var progress atomic.Int64
	found := make(chan *poolFetch, 1)
	if s.runBeside(&progress, func() { found <- s.findBlocks(ctx, &seq, &progress) }) {
		f = <-found
	}
	return f
}

// findBlocks is lookUp, and counts the parts of the sequence which are looked up. Blocks in the pool count as used,
// whether they are fetched or not: an engine which has them itself needs them in the pool as long as it uses them,
// because the blocks after them there are of no use without them.
func (s *poolCopier) findBlocks(ctx context.Context, seq *paged.Sequence, progress *atomic.Int64) *poolFetch {
	blocks, err := paged.AppendFullBlocks(nil, seq, s.layout.BlockSize)
	if err != nil || len(blocks) == 0 {
		return nil
	}
	f := &poolFetch{of: s, reserved: make(chan struct{}, 1)}
	var use pool.Use
	salt, before, found, contents := pool.DigestSalt(seq.Salt), kv.Digest{}, false, []pool.Content(nil)
	for part := range slices.Chunk(blocks, lookUpChunk) {
		progress.Add(1)
		if ctx.Err() != nil {
			return nil
		}
		err := s.useView(func(p *pool.View) error {
			if !p.IsOwner() {
				return pool.ErrEnded
			}
			for i := range part {
				c := contentOf(&part[i], salt)
				c.ParentIdentity = before
				at, err := p.FindUsed(&c, &use)
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

// poolFetch is what of a sequence can be fetched from a pool.
type poolFetch struct {
	of       *poolCopier
	contents atomic.Pointer[[]pool.Content] // of the first full blocks of the sequence; nil when the fetch is over
	pooled   []bool                         // whether they were in the pool; the loop's
	reserved chan struct{}                  // gets a value when there are blocks for them
	written  atomic.Int64                   // the end of the tokens which were fetched
}

// start has the request fetch blocks, for which there is room.
func (f *poolFetch) start() {
	select {
	case f.reserved <- struct{}{}:
	default: // the request has not taken the last one
	}
}

// endAfter returns up to which token a sequence can be fetched whose first held tokens are cached; 0 if none can. f may be
// nil.
func (f *poolFetch) endAfter(held int) int {
	if f == nil {
		return 0
	}
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

// endWith returns up to which token a sequence can be fetched, or is cached, whose first held tokens are cached: by the time
// when it is admitted they may have been evicted.
func (f *poolFetch) endWith(held int) int {
	n := 0
	for n < len(f.pooled) && (f.pooled[n] || n < held/f.of.layout.BlockSize) {
		n++
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
// write refuses it. written is the end of the last one.
func (f *poolFetch) readBlocks(ctx context.Context, start, end int, write func(*engine.BlockData) error) {
	s, size := f.of, f.of.layout.BlockSize
	data := engine.BlockData{Layout: s.layout, Bytes: make([]byte, s.layout.BlockBytes)}
	contents := f.contents.Load()
	if contents == nil {
		return
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
		if err := s.useView(func(p *pool.View) error {
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
		f.written.Store(int64(start))
	}
}

// lookUpPool returns what of a request can be fetched from the pool; nil if nothing can. It makes the request one which
// looks its blocks up again when it is preempted.
func (e *Engine) lookUpPool(ctx context.Context, r *request) *poolFetch {
	if e.pool == nil || e.cfg.Reuse == paged.Off || len(r.open) == 0 {
		return nil
	}
	r.preempted = make(chan preemptedChoice, 1)
	return e.pool.lookUp(ctx, r.open[0].sequence())
}

// preparePool makes a request one which fetches blocks from the pool, if some of its blocks are there.
func (e *Engine) preparePool(ctx context.Context, r *request) {
	if f := e.lookUpPool(ctx, r); f != nil {
		r.imp = newImport(e, r.req, nil)
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
	i.fetch.written.Store(int64(room.start))
	i.e.pool.runBeside(&i.fetch.written, func() { i.fetch.readBlocks(ctx, room.start, room.fetchEnd, i.writeTokens) })
	_ = i.e.callLoop(ctx, func(l *loop) error { // an error is of the whole request, which learns of it
		l.finishFetch(i)
		return nil
	})
}

// writeTokens writes the tokens of b into the reserved blocks.
func (i *blockImport) writeTokens(b *engine.BlockData) error {
	room := <-i.room
	defer func() { i.room <- room }()
	start := b.First * b.Layout.BlockSize
	end := start + b.Layout.BlockSize
	if room == nil || end > room.fetchEnd { // the fetch was given up
		return i.e.notReserved()
	}
	if err := i.fetch.of.computer.WriteTokens(room.blocks, start, end, b); err != nil {
		return err
	}
	i.e.poolReads.Add(1)
	return nil
}

// finishFetch makes the tokens of the request of i computed which were fetched, and has the others computed, here or by the
// engine from which they are imported.
func (l *loop) finishFetch(i *blockImport) {
	c := i.lead
	if c == nil || c.request.finished || c.transferEnd == 0 || c.request.imp != i {
		return // reclaimed
	}
	last, isRemote := c.transferEnd, i.watcher != nil
	i.setRoom(nil) // a fetch which was given up writes nothing from here on
	end := int(i.fetch.written.Load())
	if ready, _ := l.sched.SequenceBlocks(c.id); end > ready {
		if l.sched.ImportTokens(c.id, end) {
			l.pool.counts.fetched.Add(uint64((end - ready) / l.cfg.Card.BlockSize))
			c.request.cached = max(c.request.cached, min(end, len(c.request.req.Prompt)))
		} else {
			end = ready // impossible: the blocks are reserved
		}
	}
	switch {
	case end < last && isRemote:
		l.awaitBlocks(c, end)
	case end < last:
		c.closeImport()
		l.sched.FinishTransfer(c.id)
		l.startMissing(c)
	default:
		l.awaitBlocks(c, end)
		c.ready = end
		l.acceptEncoded(c)
	}
}

// preemptedChoice is a choice which was preempted, and its tokens.
type preemptedChoice struct {
	id       paged.SeqID
	sequence paged.Sequence
}

// reportPreempted makes the requests which the plan has preempted look their blocks up again. Only one choice of a request
// fetches at a time, and none whose media are encoded anew: the others are computed.
func (l *loop) reportPreempted() {
	for _, id := range l.plan.Preempted {
		c := l.scheduled[id]
		if c == nil || c.request.preempted == nil || len(c.unfinished) > 0 {
			continue
		}
		p := preemptedChoice{id: id, sequence: c.sequence()}
		p.sequence.Tokens = slices.Clone(l.sched.SequenceTokens(id))
		select {
		case c.request.preempted <- p:
		default: // another choice of it is looked up
		}
	}
}

// fetchPreempted prepares a fetch of what a preempted choice has computed, if it still waits when its blocks are found.
func (e *Engine) fetchPreempted(ctx context.Context, r *request, p preemptedChoice) {
	f := e.pool.lookUp(ctx, p.sequence)
	if f == nil {
		return
	}
	_ = e.callLoop(ctx, func(l *loop) error { // an error is of the whole request, which learns of it
		l.awaitFetch(r, p.id, f)
		return nil
	})
}

// awaitFetch makes a choice which waits one which fetches blocks when it is admitted again.
func (l *loop) awaitFetch(r *request, id paged.SeqID, f *poolFetch) {
	c := l.scheduled[id]
	if c == nil || r.imp != nil && r.imp.lead != nil && r.imp.lead.transferEnd > 0 {
		return
	}
	end := f.endWith(l.sched.CachedTokens(id))
	if !l.sched.AwaitTransfer(id, end) {
		return
	}
	r.imp = newImport(l.Engine, r.req, nil)
	r.imp.fetch, r.imp.lead = f, c
	c.transferEnd, c.reserved = end, false
}
