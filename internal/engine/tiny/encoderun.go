package tiny

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/obs"
)

// encodeRun is a run of a batch, or a part of one. It looks for the rows of each object elsewhere, computes missing
// rows together, and waits for rows which another run computes. What is ready before the rest becomes a run of its own,
// so that a slow object holds up no other.
type encodeRun struct {
	pool  *encodePool
	id    encode.RunID // 0 if the machine has given it up
	items []*runItem
}

// runItem is an object in a run.
type runItem struct {
	*encodeObject
	item encode.Item // as the run began: its request may be another one by now
	span obs.Span

	joins bool // it began by waiting for another item's run
	found bool // it is done or has content: the run knows it

	run   *rowRun         // which it leads, or waits for; nil if nothing identifies the object
	life  context.Context // in which its rows are made: the run's if it leads it
	leads bool
	stay  func() bool // prevents that it leaves the run which it leads; false if it has left

	in   *objectContent // which must be encoded
	done bool
	rows storedRows
	kind encode.FailureKind
	fail error
}

// startRunLocked starts a run.
func (p *encodePool) startRunLocked(a *encode.Action) {
	r := &encodeRun{pool: p, id: a.Run}
	for _, item := range a.Items {
		q := p.mu.requests[item.Request]
		i := &runItem{encodeObject: q.objects[item.Index], item: item}
		_, i.span = p.cfg.Tracer.Start(i.ctx, "encode "+i.object.Kind.String())
		i.span.SetInt("penstock.media_index", int64(i.index))
		i.span.SetInt("penstock.media_tokens", int64(i.tokens))
		i.span.SetInt("penstock.encode_batch", int64(len(a.Items)))
		i.span.SetInt("penstock.encode_attempt", int64(item.Attempt))
		r.items = append(r.items, i)
	}
	p.mu.busy++
	go r.run()
}

// run ends by a report to the machine, and so does each part.
func (r *encodeRun) run() {
	found := r.findItems()
	for {
		r.awaitFound(found)
		part := r.split(func(i *runItem) bool { return i.found })
		if part == r {
			r.finishItems()
			return
		}
		go part.finishItems()
	}
}

// findItems looks for the rows of each item, or else for its content. The channel has each item which is found.
func (r *encodeRun) findItems() <-chan *runItem {
	found := make(chan *runItem, len(r.items))
	for _, i := range r.items {
		i.joinRun(r.pool)
		i.joins = i.run != nil && !i.leads
	}
	for _, i := range r.items {
		go func() {
			i.findRows(r.pool)
			found <- i
		}()
	}
	return found
}

// awaitFound waits until an item is found, and then for the others, but not for ones which wait for another run, and no
// longer than a batch waits.
func (r *encodeRun) awaitFound(found <-chan *runItem) {
	(<-found).found = true
	timer := time.NewTimer(r.pool.cfg.BatchWait)
	defer timer.Stop()
	for slices.ContainsFunc(r.items, func(i *runItem) bool { return !i.found && !i.joins }) {
		select {
		case i := <-found:
			i.found = true
		case <-timer.C:
			return
		}
	}
}

// split makes the items which satisfy a condition a run of their own, on the same encoder. It returns r if all do, and
// nil if none does.
func (r *encodeRun) split(is func(i *runItem) bool) *encodeRun {
	part := &encodeRun{pool: r.pool}
	var places []int
	var rest []*runItem
	for at, i := range r.items {
		if is(i) {
			places, part.items = append(places, at), append(part.items, i)
		} else {
			rest = append(rest, i)
		}
	}
	switch {
	case len(rest) == 0:
		return r
	case len(places) == 0:
		return nil
	}
	r.items = rest
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.busy++
	id, actions, err := p.mu.machine.SplitRun(r.id, places, nil)
	if err == nil { // else the machine has given the run up, and its parts
		part.id = id
		p.performLocked(actions)
	}
	return part
}

// joinRun joins a run which makes the rows of an item already, or leads one.
func (i *runItem) joinRun(p *encodePool) {
	i.life = i.ctx
	if !identifies(&i.key) {
		return
	}
	i.run, i.life, i.leads = p.of.runs.join(i.ctx, runKey{i.key, i.pads}, true)
	if i.leads {
		run := i.run
		i.stay = context.AfterFunc(i.ctx, func() { run.leave() })
	}
}

// findRows waits for the run which an item has joined. If there is none, or it fails, it looks for the rows of the item
// elsewhere, or else for its content.
func (i *runItem) findRows(p *encodePool) {
	for i.run != nil && !i.leads {
		if i.awaitRun() {
			return
		}
		i.joinRun(p)
	}
	var in *objectContent
	err := guardPanic(func() (err error) {
		in, err = i.findContent(p)
		return err
	})
	switch {
	case err != nil:
		i.failItem(err)
	default:
		i.in = in // nil if it is done
	}
}

// findContent returns the content which must be encoded; nil if the rows are found.
func (i *runItem) findContent(p *encodePool) (*objectContent, error) {
	s := p.of
	if rows, err := s.findBelow(i.life, &i.rowRequest, &i.key); err != errNotCached {
		if err == nil {
			i.succeed(rows)
		}
		return nil, err
	}
	if s.asksOthers(&i.rowRequest) {
		rows, err := i.askOthers(p)
		switch {
		case err == nil:
			i.succeed(rows)
			return nil, nil
		case i.life.Err() != nil:
			return nil, i.life.Err()
		}
	}
	if i.content != nil {
		return i.content, nil
	}
	return i.from.findContent(i.life, i.object)
}

// askOthers has another worker make the rows. Its turn and the answer together may take a quarter of the time which a
// request has: what no worker does is then encoded here.
func (i *runItem) askOthers(p *encodePool) (storedRows, error) {
	within, cancel := context.WithTimeout(i.life, p.cfg.Timeout/4)
	defer cancel()
	if err := acquireSem(within, p.asking); err != nil {
		return storedRows{}, err
	}
	defer releaseSem(p.asking)
	return p.of.fetchRows(within, &i.rowRequest, &i.key)
}

// succeed ends the item with rows, which it gives to all which wait for them too.
func (i *runItem) succeed(rows storedRows) {
	i.done = true
	if i.run == nil {
		i.rows = rows
		return
	}
	i.run.finish(rows, nil)
	if i.stay() {
		i.rows = i.run.share()
	}
}

// failItem ends the item for good.
func (i *runItem) failItem(err error) {
	i.done, i.kind, i.fail = true, failureKindOf(err), err
	i.endRun(err)
}

// endRun leaves the run of the item, which fails if the item leads it.
func (i *runItem) endRun(err error) {
	switch {
	case i.run == nil:
	case !i.leads:
		i.run.leave()
	default:
		i.run.finish(storedRows{}, err)
		if i.stay() {
			i.run.leave()
		}
	}
	i.run = nil
}

// awaitRun waits for the run of another item, and reports whether the item is done: it is not if that run has failed.
func (i *runItem) awaitRun() bool {
	run := i.run
	select {
	case <-run.done:
	case <-i.ctx.Done():
		i.failItem(i.ctx.Err())
		return true
	}
	if run.err == nil {
		i.done, i.rows = true, run.share()
		return true
	}
	i.endRun(nil)
	return false
}

// finishItems ends a run whose items are found: it reports what is done, and encodes the others.
func (r *encodeRun) finishItems() {
	if !r.finishDone() {
		r.compute(r.encodeItems)
	}
}

// finishDone reports the items which are done, and returns whether all are.
func (r *encodeRun) finishDone() bool {
	part := r.split(func(i *runItem) bool { return i.done })
	if part != nil {
		part.finishRun()
	}
	return part == r
}

// compute calls f, which ends the run, once a processor is free.
func (r *encodeRun) compute(f func()) {
	ctx, cancel := batchContext(r.items)
	defer cancel()
	p := r.pool
	if err := acquireSem(ctx, p.cores); err != nil {
		for _, i := range r.items {
			i.failItem(err)
		}
		r.finishRun()
		return
	}
	defer releaseSem(p.cores)
	p.computing.Add(1)
	defer p.computing.Add(-1)
	f()
}

// encodeItems encodes the items of a run, all of which have content, and ends it. Items which turn out to have another
// shape than the first one become runs of their own.
func (r *encodeRun) encodeItems() {
	groups := r.decodeItems()
	if r.finishDone() {
		return
	}
	for _, group := range groups[1:] {
		part := r.split(func(i *runItem) bool {
			return slices.ContainsFunc(group, func(d decodedItem) bool { return d.runItem == i })
		})
		go part.compute(func() { part.encodeGroup(group) })
	}
	r.encodeGroup(groups[0])
}

// decodeItems decodes the items of a run, and returns groups of one shape. An item which cannot be decoded is done, and
// in no group.
func (r *encodeRun) decodeItems() (groups [][]decodedItem) {
	at := map[[4]int]int{}
	for _, i := range r.items {
		d, err := i.decode(r.pool.of)
		if err != nil {
			continue
		}
		name := [4]int{int(i.object.Kind), d.layout.Grid[0], d.layout.Grid[1], d.layout.Grid[2]}
		if i.object.Kind == media.Audio {
			name[1] = d.layout.PadCount
		}
		k, ok := at[name]
		if !ok {
			k = len(groups)
			at[name], groups = k, append(groups, nil)
		}
		groups[k] = append(groups[k], d)
	}
	return groups
}

// encodeGroup encodes the items of a run, and ends it.
func (r *encodeRun) encodeGroup(group []decodedItem) {
	ctx, cancel := batchContext(r.items)
	defer cancel()
	if err := r.pool.of.encodeGroup(ctx, group); err != nil {
		r.failRun(err)
		return
	}
	r.finishRun()
}

// releaseContent gives back what the items were encoded from.
func (r *encodeRun) releaseContent() {
	for _, i := range r.items {
		if i.in != nil {
			i.in.release()
			i.in = nil
		}
	}
}

// batchContext returns a context which ends with the last one of the items'.
func batchContext(batch []*runItem) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(batch[0].life))
	var left atomic.Int64
	left.Store(int64(len(batch)))
	stops := []func() bool{}
	for _, i := range batch {
		stops = append(stops, context.AfterFunc(i.life, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// decodedItem is an item which can be encoded.
type decodedItem struct {
	*runItem
	tensor media.Tensor
	layout media.Layout
}

// decode decodes an item. After an error the item is done.
func (i *runItem) decode(s *mediaEncoders) (d decodedItem, err error) {
	err = guardPanic(func() (err error) {
		d.runItem = i
		if d.tensor, err = i.in.decodeTensor(i.object); err != nil {
			return err
		}
		d.layout, err = s.layoutOf(i.object, &d.tensor, i.pads)
		return err
	})
	if err != nil {
		i.failItem(err)
	}
	return d, err
}

// encodeGroup encodes objects of one shape together. An error of one object is its own; it returns one of several.
func (s *mediaEncoders) encodeGroup(ctx context.Context, group []decodedItem) error {
	var rows []float32
	err := guardPanic(func() (err error) {
		rows, err = s.encodeRows(ctx, group)
		return err
	})
	switch {
	case err == nil:
		n := len(rows) / len(group)
		for k, d := range group {
			s.encoded.Add(1)
			stored := s.rows.storeRows(&d.key, d.object, rows[k*n:(k+1)*n:(k+1)*n], d.layout.Grid)
			if len(group) > 1 && !stored.isCached() {
				stored.rows = slices.Clone(stored.rows) // they outlive the others
			}
			d.succeed(stored)
		}
	case ctx.Err() != nil:
		for _, d := range group {
			s.cancelled.Add(1)
			d.failItem(ctx.Err())
		}
	case len(group) > 1:
		return err
	default:
		s.failed.Add(1)
		group[0].failItem(&fault.Error{
			Code: fault.Internal, Message: "the engine failed to encode a media object; report this with the worker's log", Err: err,
		})
	}
	return nil
}

// failRun reports that objects have failed together.
func (r *encodeRun) failRun(err error) {
	r.releaseContent()
	for _, i := range r.items {
		i.endRun(err)
		i.span.End(err)
	}
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.endGoroutineLocked()
	if actions, err := p.mu.machine.FailRun(p.nowLocked(), r.id, encode.EncoderFailed, fmt.Sprint(err), nil); err == nil {
		p.performLocked(actions)
	}
}

// finishRun reports what the run has made.
func (r *encodeRun) finishRun() {
	r.releaseContent()
	p := r.pool
	results := make([]encode.Result, len(r.items))
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.endGoroutineLocked()
	for k, i := range r.items {
		i.span.End(i.fail)
		if i.fail != nil || i.rows.rows == nil { // without rows: it has left
			results[k] = encode.Result{Failure: max(i.kind, encode.Corrupt), Detail: fmt.Sprint(i.fail)}
			i.err = i.fail
			continue
		}
		results[k] = encode.Result{Tokens: len(i.rows.rows) / p.of.rows.width, Bytes: int64(elementBytes * len(i.rows.rows))}
		if i.rows.isCached() {
			results[k].Place = encode.InCache
		}
	}
	actions, err := p.mu.machine.FinishRun(p.nowLocked(), r.id, results, nil)
	for k, i := range r.items {
		switch {
		case results[k].Failure != encode.NotFailed:
		case err != nil: // the machine has given the run up
			p.of.rows.releaseRows(&i.rows)
		case results[k].Place == encode.InCache:
			p.mu.pins[i.name] = i.rows
		default:
			p.mu.rows[i.item.Rows] = i.rows
		}
	}
	if err == nil {
		p.performLocked(actions)
	}
}
