package router

import (
	"context"
	"errors"
	"slices"
	"sync"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
	"penstock/internal/serve/servetest"
)

// scripted is an engine whose cache a test controls, and which copies what it stores into a pool. It
// serves no requests. The world's lock guards all of it.
type scripted struct {
	world    *sync.Mutex
	member   *sim.PoolMember // nil once the engine has stopped
	cache    []cached        // parents before their children, if they are held
	watchers []*watching
	copying  []kv.SeqHash
}

// cached is a block of the cache, as in a Stored event of one block.
type cached struct {
	seq, parent kv.SeqHash
	start       uint32
	block       kv.BlockHash
}

// watching is one call of WatchKV.
type watching struct {
	events []kv.Event
	lost   bool
	wake   chan struct{}
}

var (
	_ engine.Engine   = (*scripted)(nil)
	_ engine.KVSource = (*scripted)(nil)
)

func newScripted(world *sync.Mutex, member *sim.PoolMember) *scripted {
	return &scripted{world: world, member: member}
}

// Card implements engine.Engine.
func (e *scripted) Card() engine.Card { return servetest.ModelCard("m") }

// Run implements engine.Engine.
func (e *scripted) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Generate implements engine.Engine.
func (e *scripted) Generate(context.Context, *engine.Request, func(*engine.Delta) error) error {
	return errors.New("nothing is generated here")
}

// WatchKV implements engine.KVSource.
func (e *scripted) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	w := &watching{lost: true, wake: make(chan struct{}, 1)}
	w.wake <- struct{}{}
	e.world.Lock()
	e.watchers = append(e.watchers, w)
	e.world.Unlock()
	defer func() {
		e.world.Lock()
		defer e.world.Unlock()
		e.watchers = slices.DeleteFunc(e.watchers, func(o *watching) bool { return o == w })
	}()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		if events := e.take(w); len(events) > 0 {
			if err := sink(events); err != nil {
				return err
			}
		}
	}
}

// take returns the next events for w: a description of the cache if w has lost some.
func (e *scripted) take(w *watching) []kv.Event {
	e.world.Lock()
	defer e.world.Unlock()
	out := w.events
	if w.lost {
		out = []kv.Event{{Kind: kv.Cleared}}
		for _, b := range e.cache {
			out = append(out, b.event())
		}
		if e.member != nil {
			out = e.member.AppendContents(out)
		}
	}
	w.events, w.lost = nil, false
	return out
}

// mostWaiting bounds the events queued for a watcher; beyond it the cache is described again.
const mostWaiting = 16

// tell queues events for all watchers. The caller holds the lock.
func (e *scripted) tell(events ...kv.Event) {
	for _, w := range e.watchers {
		switch {
		case w.lost:
		case len(w.events)+len(events) > mostWaiting:
			w.events, w.lost = nil, true
		default:
			w.events = append(w.events, events...)
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (b *cached) event() kv.Event {
	return kv.Event{
		Kind: kv.Stored, Start: b.start, Parent: b.parent, Blocks: []kv.BlockHash{b.block}, Labels: []kv.MoELabel{labelOf(b.seq)},
	}
}

// labelOf is the label that every engine gives a block.
func labelOf(seq kv.SeqHash) kv.MoELabel {
	if seq%3 != 0 {
		return kv.MoELabel{}
	}
	return kv.MoELabel{Has: kv.HasExpert, Layer: 1, Expert: uint32(seq % 2)}
}

func (e *scripted) holds(seq kv.SeqHash) bool {
	return slices.ContainsFunc(e.cache, func(b cached) bool { return b.seq == seq })
}

// store caches the first n blocks of a prompt and starts to copy the new ones. The caller holds the
// lock.
func (e *scripted) store(p *prompt, n int) {
	var events []kv.Event
	for i := range n {
		if e.holds(p.chain[i]) {
			continue
		}
		b := cached{seq: p.chain[i], start: uint32(i), block: p.blocks[i]}
		if i > 0 {
			b.parent = p.chain[i-1]
		}
		e.cache = append(e.cache, b)
		events = append(events, b.event())
	}
	e.tell(events...)
	if copied := e.member.StartCopies(events); len(copied) > 0 {
		e.copying = append(e.copying, copied...)
		e.tell(e.member.AppendMoved(nil, kv.InTransit, copied)...)
	}
}

// finish completes all copies. The caller holds the lock, and makes all members report evictions from
// the pool.
func (e *scripted) finish() {
	e.member.FinishCopies(e.copying)
	e.tell(e.member.AppendMoved(nil, kv.Pooled, e.copying)...)
	e.copying = nil
}

// evict removes n blocks from an index on. The caller holds the lock.
func (e *scripted) evict(at, n int) {
	n = min(n, len(e.cache)-at)
	if n <= 0 {
		return
	}
	ev := kv.Event{Kind: kv.Removed}
	for _, b := range e.cache[at : at+n] {
		ev.Seqs = append(ev.Seqs, b.seq)
	}
	e.cache = slices.Delete(e.cache, at, at+n)
	e.tell(ev)
}

// clear empties the cache. The caller holds the lock.
func (e *scripted) clear() {
	e.cache = nil
	e.tell(kv.Event{Kind: kv.Cleared})
}

// stop ends the engine's membership in the pool. The caller holds the lock.
func (e *scripted) stop() {
	e.member.Detach()
	e.member, e.copying = nil, nil
}
