package enginemock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
)

// engineInstance is one engine of a rank, from its start until it is replaced.
type engineInstance struct {
	eng    engine.Engine
	card   engine.Card
	ledger *blockLedger
	feed   *eventPublisher
	names  blockNamer
	cfg    *Config

	// Only the watcher uses it: the tiers in which blocks are, and the engine's names of them.
	cached map[residentBlock]uint64

	stop context.CancelFunc
	done sync.WaitGroup
}

// residentBlock is a block in a tier.
type residentBlock struct {
	seq  kv.SeqHash
	tier kv.Tier
}

func newEngineInstance(cfg *Config, eng engine.Engine, f *eventPublisher, number uint64) *engineInstance {
	card := eng.Card()
	return &engineInstance{
		eng: eng, card: card, ledger: newLedger(card.BlockSize, f.dialect.release), feed: f, cfg: cfg, cached: map[residentBlock]uint64{},
		names: blockNamer(splitmix.Mix(cfg.Seed + splitmix.Step*number)),
	}
}

// startServices runs the engine and the services which follow it. It calls fail for each that ends by itself.
func (l *engineInstance) startServices(ctx context.Context, fail func(error)) {
	ctx, l.stop = context.WithCancel(ctx)
	run := func(what string, f func(context.Context) error) {
		l.done.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				fail(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	run("engine", l.eng.Run)
	if src, ok := l.eng.(engine.KVSource); ok {
		run("cache events", func(ctx context.Context) error {
			return src.WatchKV(ctx, func(events []kv.Event) error {
				l.feed.publishChanges(l.translateEvents(ctx, events))
				return nil
			})
		})
	}
	if l.feed.replay != nil {
		run("replay", l.feed.serveReplay)
	}
	if l.feed.snapshot != nil {
		run("snapshots", l.feed.serveSnapshots)
	}
}

// stopAndWait stops everything and waits.
func (l *engineInstance) stopAndWait() {
	l.stop()
	l.done.Wait()
}

// translateEvents returns the changes which the engine would publish for events of its cache.
func (l *engineInstance) translateEvents(ctx context.Context, events []kv.Event) []cacheChange {
	var out []cacheChange
	for i := range events {
		ev := &events[i]
		switch ev.Kind {
		case kv.Cleared:
			if len(l.cached) > 0 {
				l.releaseCached()
				out = append(out, cacheChange{kind: allCleared})
			}
		case kv.Stored:
			out = l.appendStored(ctx, out, ev)
		case kv.Removed:
			out = l.appendRemoved(out, ev)
		case kv.Moved: // no engine has an event for it
		}
	}
	if l.ledger.release != nil {
		return l.ledger.release.groupEvents(out)
	}
	return out
}

// releaseCached releases all cached blocks.
func (l *engineInstance) releaseCached() {
	for r := range l.cached {
		l.ledger.releaseBlocks(r.seq)
	}
	clear(l.cached)
}

// appendStored appends the changes for stored blocks, up to the first block whose tokens are unknown.
func (l *engineInstance) appendStored(ctx context.Context, out []cacheChange, ev *kv.Event) []cacheChange {
	c := cacheChange{kind: blockStored, size: l.card.BlockSize, level: int(ev.Tier), medium: l.mediumName(ev.Tier)}
	parent := ev.Parent
	if ev.Start > 0 {
		if c.parent = l.cachedName(parent); c.parent == 0 {
			return out // the parent was not published either
		}
	} else {
		parent = 0
	}
	for i, hash := range ev.Blocks {
		seq := kv.ExtendSeq(parent, ev.Start+uint32(i), hash)
		b := l.ledger.awaitBlock(ctx, parent, seq)
		if b == nil {
			break
		}
		name := l.blockName(seq, b)
		if r := (residentBlock{seq, ev.Tier}); !l.addCached(r, name) {
			l.ledger.releaseBlocks(seq)
		}
		if len(c.names) == 0 {
			c.salt, c.first = l.publishedSalt(b.salt), b.first
		}
		c.names = append(c.names, name)
		c.tokens, c.keys = append(c.tokens, b.tokens...), append(c.keys, b.keys)
		parent = seq
	}
	if len(c.names) == 0 {
		return out
	}
	return l.appendVariants(out, c)
}

// blockName is the engine's name of a block.
func (l *engineInstance) blockName(seq kv.SeqHash, b *ledgerBlock) uint64 {
	if b.name != 0 {
		return b.name
	}
	return l.names.blockName(seq)
}

// publishedSalt returns the part of a salt which events show.
func (l *engineInstance) publishedSalt(salt kv.Salt) kv.Salt {
	if r := l.ledger.release; r != nil {
		return r.publishedSalt(salt)
	}
	return salt
}

// cachedName returns the name of a block which is cached in any tier; 0 if it is in none.
func (l *engineInstance) cachedName(seq kv.SeqHash) uint64 {
	for _, tier := range []kv.Tier{kv.TierDevice, kv.TierHost, kv.TierDisk, kv.TierPool} {
		if name := l.cached[residentBlock{seq, tier}]; name != 0 {
			return name
		}
	}
	return 0
}

// addCached records that a block is cached, and reports whether it is new.
func (l *engineInstance) addCached(r residentBlock, name uint64) bool {
	if _, ok := l.cached[r]; ok {
		return false
	}
	l.cached[r] = name
	return true
}

// appendRemoved appends the changes for removed blocks.
func (l *engineInstance) appendRemoved(out []cacheChange, ev *kv.Event) []cacheChange {
	c := cacheChange{kind: blockRemoved, level: int(ev.Tier), medium: l.mediumName(ev.Tier)}
	for _, seq := range ev.Seqs {
		r := residentBlock{seq, ev.Tier}
		name, ok := l.cached[r]
		if !ok {
			continue
		}
		delete(l.cached, r)
		l.ledger.releaseBlocks(seq)
		c.names = append(c.names, name)
	}
	if len(c.names) == 0 {
		return out
	}
	return l.appendVariants(out, c)
}

// appendVariants appends c, and the duplicate, offload and hybrid events which the features enable.
func (l *engineInstance) appendVariants(out []cacheChange, c cacheChange) []cacheChange {
	out = append(out, c)
	if l.cfg.Features.Duplicates.isOn(false) {
		out = append(out, c)
	}
	if l.cfg.Features.Offload.isOn(false) && c.level == 0 {
		o := cacheChange{kind: c.kind, names: c.names, medium: l.mediumName(kv.TierHost), level: 1}
		out = append(out, o)
	}
	if l.cfg.Features.Hybrid.isOn(false) && c.level == 0 {
		h := c
		h.group, h.names = 1, nil
		for _, n := range c.names[len(c.names)/2:] {
			h.names = append(h.names, splitmix.Mix(n))
		}
		out = append(out, h)
	}
	return out
}

// mediumName is the engine's name of a tier.
func (l *engineInstance) mediumName(t kv.Tier) string {
	switch t {
	case kv.TierDevice:
		return "GPU"
	case kv.TierHost:
		return l.feed.dialect.hostMedium
	case kv.TierDisk:
		return l.feed.dialect.diskMedium
	}
	return "EXTERNAL"
}

// rankServer is one data-parallel rank, with one engine at a time.
type rankServer struct {
	index int
	cfg   *Config
	feed  *eventPublisher
	mu    struct {
		sync.Mutex
		life    *engineInstance // nil while there is none
		busy    int             // requests that use it
		lives   uint64
		changed chan struct{} // closed when the instance is set or removed
	}
}

// acquireInstance returns the current engine, once there is one. The caller calls release.
func (r *rankServer) acquireInstance(ctx context.Context) (l *engineInstance, release func(), err error) {
	for {
		r.mu.Lock()
		l, changed := r.mu.life, r.mu.changed
		if l != nil {
			r.mu.busy++
			r.mu.Unlock()
			return l, sync.OnceFunc(func() {
				r.mu.Lock()
				r.mu.busy--
				r.mu.Unlock()
			}), nil
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// currentInstance returns the current engine; nil if there is none.
func (r *rankServer) currentInstance() *engineInstance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.life
}

// setInstance makes l the current engine; nil is none.
func (r *rankServer) setInstance(l *engineInstance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setInstanceLocked(l)
}

// setInstanceLocked is setInstance with mu held.
func (r *rankServer) setInstanceLocked(l *engineInstance) {
	r.mu.life = l
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

// removeInstance removes the engine, which the caller stops. With idle set it fails while requests use the
// engine.
func (r *rankServer) removeInstance(idle bool) (*engineInstance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.life == nil {
		return nil, errors.New("the engine is about to be replaced")
	}
	if idle && r.mu.busy > 0 {
		return nil, fault.New(fault.Conflict, "%d requests are running", r.mu.busy)
	}
	l := r.mu.life
	r.setInstanceLocked(nil)
	return l, nil
}

// startInstance starts an engine after the previous one was removed.
func (r *rankServer) startInstance(ctx context.Context, eng engine.Engine, fail func(error)) {
	r.mu.Lock()
	r.mu.lives++
	n := r.mu.lives
	r.mu.Unlock()
	l := newEngineInstance(r.cfg, eng, r.feed, n+uint64(r.index)<<32)
	l.startServices(ctx, fail)
	r.setInstance(l)
}
