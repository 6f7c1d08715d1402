package batch

import (
	"context"
	"slices"
	"sync"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// loopCall is a function which the loop runs between two batches, for a caller which waits for its error.
type loopCall struct {
	run  func(*loop) error
	done chan error // capacity 1
}

// callLoop makes the loop run f, and returns its error. When ctx ends first, f is not run.
func (e *Engine) callLoop(ctx context.Context, f func(*loop) error) error {
	c := &loopCall{run: f, done: make(chan error, 1)}
	if err := e.submitCall(c); err != nil {
		return err
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	}
	e.mu.Lock()
	if i := slices.Index(e.mu.calls, c); i >= 0 {
		e.mu.calls = slices.Delete(e.mu.calls, i, i+1)
		e.mu.Unlock()
		return ctx.Err()
	}
	e.mu.Unlock()
	return <-c.done // the loop has it
}

func (e *Engine) submitCall(c *loopCall) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.phase == phaseStopped {
		return stoppedError()
	}
	e.mu.calls = append(e.mu.calls, c)
	e.wakeLoop()
	return nil
}

// takeCalls runs what was asked for.
func (l *loop) takeCalls() {
	l.mu.Lock()
	calls := l.mu.calls
	l.mu.calls = nil
	l.mu.Unlock()
	for _, c := range calls {
		c.done <- c.run(l)
	}
}

// blockComputer returns the computer, or why its blocks cannot be moved.
func (e *Engine) blockComputer() (BlockComputer, error) {
	if c, ok := e.computer.(BlockComputer); ok {
		return c, nil
	}
	return nil, fault.New(fault.Unimplemented, "this engine moves no KV blocks")
}

// BlockLayout implements [engine.BlockProvider] and [engine.BlockReceiver]. It is zero without a BlockComputer.
func (e *Engine) BlockLayout() engine.KVLayout {
	if c, err := e.blockComputer(); err == nil {
		return c.BlockLayout()
	}
	return engine.KVLayout{}
}

// heldPrompt implements [engine.HeldBlocks].
type heldPrompt struct {
	computer BlockComputer
	size     int // bytes of a block
	blocks   []int32
	cached   int
}

// Cached implements [engine.HeldBlocks].
func (h *heldPrompt) Cached() int { return h.cached }

// ReadBlocks implements [engine.HeldBlocks].
func (h *heldPrompt) ReadBlocks(ctx context.Context, dst []byte, first, last int) error {
	if first < 0 || last < first || last > len(h.blocks) || len(dst) != (last-first)*h.size {
		return fault.New(fault.Invalid, "the blocks %d to %d into %d bytes: the prompt has %d blocks of %d bytes", first, last, len(dst), len(h.blocks), h.size)
	}
	return h.computer.ReadBlocks(ctx, dst, h.blocks[first:last])
}

// PrefillBlocks computes a prompt and holds its blocks while use runs; see [engine.BlockProvider].
func (e *Engine) PrefillBlocks(ctx context.Context, req *engine.Request, use func(engine.HeldBlocks) error) error {
	if _, err := e.blockComputer(); err != nil {
		return err
	}
	if err := e.checkRequest(req); err != nil {
		return err
	}
	r, err := e.newRequest(ctx, req)
	if err != nil {
		return err
	}
	defer r.releaseStates()
	if len(r.open) == 0 {
		return fault.New(fault.Invalid, "all choices of the request have ended: there is nothing to compute")
	}
	r.open = r.open[:1] // the others continue from the same blocks
	r.held = make(chan *heldPrompt, 1)
	e.preparePool(ctx, r)
	r.preempted = nil // what is held is fetched once
	if err := e.submitRequest(r); err != nil {
		return err
	}
	defer e.abortRequest(r)
	for {
		select {
		case <-r.reservedBlocks():
			r.imp.fetchBlocks(ctx)
		case h := <-r.held:
			return use(h)
		case <-r.out.ready:
			if _, last, err := r.out.takeDeltas(); last {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// deliverHeld delivers the blocks of prompts of PrefillBlocks which the last batch completed.
func (l *loop) deliverHeld() {
	for i, c := range l.choices {
		w := &l.plan.Work[i]
		if c.request.held == nil || c.request.finished || w.Start+len(w.Tokens) < len(c.request.req.Prompt)+c.output {
			continue
		}
		computer := l.computer.(BlockComputer)
		_, blocks := l.sched.SequenceBlocks(c.id)
		c.request.held <- &heldPrompt{computer: computer, size: computer.BlockLayout().BlockBytes, blocks: slices.Clone(blocks), cached: c.request.cached}
	}
}

// blockImport implements [engine.BlockImport].
type blockImport struct {
	e      *Engine
	req    *engine.Request
	ending sync.Once // of PrefillLocal
	// Owned by the loop.
	watcher engine.ImportWatcher // of what another engine computes; nil if none does, such as after PrefillLocal
	lead    *choiceSequence      // the first open choice; nil before the loop has the request
	fetch   *poolFetch           // what comes from a pool, before another engine computes the rest; nil if nothing does
	// room, of capacity 1, is where tokens are written; nil is nowhere. Its holder writes, and the loop takes it before
	// it gives the blocks to another: it waits for a write of them, which waits for nothing.
	room chan *importRoom
}

// importRoom are the reserved blocks of the tokens from start to end, in a table. Those up to fetchEnd are fetched from a
// pool.
type importRoom struct {
	blocks               []int32
	start, fetchEnd, end int
}

// setRoom says where tokens are written from now on. When it returns nothing is written elsewhere.
func (i *blockImport) setRoom(r *importRoom) {
	<-i.room
	i.room <- r
}

// OpenImport prepares a request whose prompt another engine computes; see [engine.BlockReceiver].
func (e *Engine) OpenImport(req *engine.Request, w engine.ImportWatcher) (engine.BlockImport, error) {
	if _, err := e.blockComputer(); err != nil {
		return nil, err
	}
	return newImport(e, req, w), nil
}

func newImport(e *Engine, req *engine.Request, w engine.ImportWatcher) *blockImport {
	i := &blockImport{e: e, req: req, watcher: w, room: make(chan *importRoom, 1)}
	i.room <- nil
	return i
}

// CountCached implements [engine.BlockReceiver].
func (e *Engine) CountCached(ctx context.Context, req *engine.Request) (n int, err error) {
	if err := e.checkRequest(req); err != nil {
		return 0, err
	}
	tokens := slices.Concat(req.Prompt, deliveredTokens(req, max(0, slices.Index(req.Done, false))))
	seq := paged.Sequence{Salt: req.Salt, Tokens: tokens, Media: req.Media, Reuse: paged.On}
	err = e.callLoop(ctx, func(l *loop) error {
		n = l.sched.CachedPrefix(seq)
		return nil
	})
	if err == nil && e.pool != nil && e.cfg.Reuse != paged.Off {
		n = max(n, e.pool.lookUp(ctx, seq).endAfter(n))
	}
	return n, err
}

// Generate implements [engine.BlockImport].
func (i *blockImport) Generate(ctx context.Context, sink func(*engine.Delta) error) error {
	if err := i.e.checkRequest(i.req); err != nil {
		return err
	}
	r, err := i.e.newRequest(ctx, i.req)
	if err != nil {
		return err
	}
	defer r.releaseStates()
	r.imp, i.fetch = i, i.e.lookUpPool(ctx, r)
	return i.e.serveRequest(ctx, r, sink)
}

// startImport makes the first choice of a request one whose tokens are to be imported.
func (l *loop) startImport(r *request) {
	c := r.open[0]
	r.imp.lead = c
	if f := r.imp.fetch; r.imp.watcher == nil {
		if c.transferEnd = f.endAfter(l.sched.CachedPrefix(c.sequence())); c.transferEnd == 0 {
			f.dropContents()
		}
		return
	}
	if c.transferEnd = disagg.MovableEnd(len(r.req.Prompt)+c.output, l.cfg.Card.BlockSize); c.transferEnd == 0 {
		r.imp.watcher.BlocksReserved(0) // nothing can be imported
	}
}

// reportReserved tells the watcher of an import that c has its blocks.
func (l *loop) reportReserved(c *choiceSequence, ready int) {
	if c.transferEnd == 0 {
		return
	}
	i := c.request.imp
	fetchEnd := c.transferEnd
	if i.watcher != nil {
		fetchEnd = min(fetchEnd, i.fetch.endAfter(ready))
	}
	if fetchEnd > ready {
		l.openRoom(c, ready, fetchEnd)
		i.fetch.start()
		return
	}
	l.awaitBlocks(c, ready)
}

// awaitBlocks lets another engine move the tokens of an import after the first ready ones, if there are any.
func (l *loop) awaitBlocks(c *choiceSequence, ready int) {
	i := c.request.imp
	if ready < c.transferEnd {
		l.openRoom(c, ready, ready)
		i.fetch.dropContents()
	} else {
		c.closeImport()
	}
	if i.watcher != nil {
		i.watcher.BlocksReserved(ready)
	}
}

// openRoom has the tokens of c written into its blocks from now on which are not ready.
func (l *loop) openRoom(c *choiceSequence, ready, fetchEnd int) {
	_, blocks := l.sched.SequenceBlocks(c.id)
	c.request.imp.setRoom(&importRoom{blocks: slices.Clone(blocks), start: ready, fetchEnd: fetchEnd, end: c.transferEnd})
}

// reportReclaimed tells the watchers of imports whose reservation the plan has taken away, before anything is computed.
func (l *loop) reportReclaimed() {
	for _, id := range l.plan.Preempted {
		c := l.scheduled[id]
		if c == nil || c.transferEnd == 0 {
			continue
		}
		c.closeImport()
		if w := c.request.imp.watcher; w != nil {
			w.BlocksReclaimed()
		}
		c.reserved = false
		l.startMissing(c)
	}
}

// closeImport ends the import of c, if there is one. When it returns nothing is written to its blocks.
func (c *choiceSequence) closeImport() {
	if c.transferEnd > 0 {
		c.transferEnd = 0
		c.request.imp.setRoom(nil)
		c.request.imp.fetch.dropContents()
	}
}

// startMissing encodes what c needs, whose tokens were not imported, and accepts it if that is nothing.
func (l *loop) startMissing(c *choiceSequence) {
	if len(c.unfinished) > 0 {
		ready, _ := l.sched.SequenceBlocks(c.id)
		if !c.reserved {
			ready = l.sched.CachedTokens(c.id)
		}
		l.startEncoding(c, ready)
	}
	l.acceptEncoded(c)
}

// PrefillLocal implements [engine.BlockImport].
func (i *blockImport) PrefillLocal() {
	i.ending.Do(func() {
		_ = i.e.submitCall(&loopCall{run: i.prefillLocal, done: make(chan error, 1)}) // an engine which has stopped computes nothing
	})
}

func (i *blockImport) prefillLocal(l *loop) error {
	i.watcher = nil
	room := <-i.room
	i.room <- room
	if room != nil && room.fetchEnd > room.start {
		return nil // finishFetch has the tokens computed which are not fetched
	}
	if c := i.lead; c != nil && c.transferEnd > 0 && !c.request.finished && c.request.imp == i {
		c.closeImport()
		l.sched.FinishTransfer(c.id)
		l.startMissing(c)
	}
	return nil
}

// ImportBlocks implements [engine.BlockImport]. It writes the blocks beside the batches.
func (i *blockImport) ImportBlocks(ctx context.Context, b *engine.BlockData, cached int) error {
	if err := i.writeBlocks(b); err != nil {
		return err
	}
	return i.e.callLoop(ctx, func(l *loop) error { return l.finishImport(i, cached) })
}

// writeBlocks writes b into the reserved blocks.
func (i *blockImport) writeBlocks(b *engine.BlockData) error {
	computer, err := i.e.blockComputer()
	if err != nil {
		return err
	}
	room := <-i.room
	defer func() { i.room <- room }()
	if room == nil || room.fetchEnd > room.start {
		return i.e.notReserved()
	}
	layout := computer.BlockLayout()
	if err := layout.CheckImport(b, room.start, room.end); err != nil {
		return err
	}
	return computer.WriteTokens(room.blocks, room.start, room.end, b)
}

// notReserved returns why nothing can be imported.
func (e *Engine) notReserved() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.phase == phaseStopped {
		return stoppedError()
	}
	return fault.New(fault.Conflict, "no blocks are reserved for the import")
}

// finishImport makes the tokens of i computed, which have been written.
func (l *loop) finishImport(i *blockImport, cached int) error {
	c := i.lead
	if c == nil || c.request.finished || c.transferEnd == 0 || c.request.imp != i {
		return l.notReserved()
	}
	end := c.transferEnd
	c.closeImport()
	if !l.sched.ImportTokens(c.id, end) {
		return fault.New(fault.Internal, "the blocks of an import are not reserved; report this")
	}
	c.ready = end
	c.request.cached = max(c.request.cached, min(cached, len(c.request.req.Prompt)))
	l.acceptEncoded(c)
	return nil
}
