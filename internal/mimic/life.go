package mimic

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
type life struct {
	eng    engine.Engine
	card   engine.Card
	ledger *ledger
	feed   *feed
	names  namer
	cfg    *Config

	// Only the watcher uses it: the tiers in which blocks are, and the engine's names of them.
	cached map[resident]uint64

	stop context.CancelFunc
	done sync.WaitGroup
}

// residentBlock is a block in a tier.
type resident struct {
	seq  kv.SeqHash
	tier kv.Tier
}

func newLife(cfg *Config, eng engine.Engine, f *feed, number uint64) *life {
	card := eng.Card()
	return &life{
		eng: eng, card: card, ledger: newLedger(card.BlockSize, cfg.release()), feed: f, cfg: cfg, cached: map[resident]uint64{},
		names: namer(splitmix.Mix(cfg.Seed + splitmix.Step*number)),
	}
}

// startServices runs the engine and the services which follow it. It calls fail for each that ends by itself.
func (l *life) start(ctx context.Context, fail func(error)) {
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
				l.feed.publish(l.translate(ctx, events))
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
func (l *life) end() {
	l.stop()
	l.done.Wait()
}

// translateEvents returns the changes which the engine would publish for events of its cache.
func (l *life) translate(ctx context.Context, events []kv.Event) []change {
	var out []change
	for i := range events {
		ev := &events[i]
		switch ev.Kind {
		case kv.Cleared:
			if len(l.cached) > 0 {
				l.forget()
				out = append(out, change{kind: allCleared})
			}
		case kv.Stored:
			out = l.stored(ctx, out, ev)
		case kv.Removed:
			out = l.removed(out, ev)
		case kv.Moved: // no engine has an event for it
		}
	}
	if l.ledger.release != nil {
		return l.ledger.release.group(out)
	}
	return out
}

// releaseCached releases all cached blocks.
func (l *life) forget() {
	for r := range l.cached {
		l.ledger.drops(r.seq)
	}
	clear(l.cached)
}

// appendStored appends the changes for stored blocks, up to the first block whose tokens are unknown.
func (l *life) stored(ctx context.Context, out []change, ev *kv.Event) []change {
	c := change{kind: blockStored, size: l.card.BlockSize, level: int(ev.Tier), medium: l.medium(ev.Tier)}
	parent := ev.Parent
	if ev.Start > 0 {
		if c.parent = l.known(parent); c.parent == 0 {
			return out // the parent was not published either
		}
	} else {
		parent = 0
	}
	for i, hash := range ev.Blocks {
		seq := kv.Extend(parent, ev.Start+uint32(i), hash)
		b := l.ledger.keep(ctx, parent, seq)
		if b == nil {
			break
		}
		name := l.name(seq, b)
		if r := (resident{seq, ev.Tier}); !l.add(r, name) {
			l.ledger.drops(seq)
		}
		if len(c.names) == 0 {
			c.salt, c.first = l.tells(b.salt), b.first
		}
		c.names = append(c.names, name)
		c.tokens, c.keys = append(c.tokens, b.tokens...), append(c.keys, b.keys)
		parent = seq
	}
	if len(c.names) == 0 {
		return out
	}
	return l.embellish(out, c)
}

// blockName is the engine's name of a block.
func (l *life) name(seq kv.SeqHash, b *block) uint64 {
	if b.name != 0 {
		return b.name
	}
	return l.names.name(seq)
}

// publishedSalt returns the part of a salt which events show.
func (l *life) tells(salt kv.Salt) kv.Salt {
	if r := l.ledger.release; r != nil {
		return r.tells(salt)
	}
	return salt
}

// cachedName returns the name of a block which is cached in any tier; 0 if it is in none.
func (l *life) known(seq kv.SeqHash) uint64 {
	for _, tier := range []kv.Tier{kv.TierDevice, kv.TierHost, kv.TierDisk, kv.TierPool} {
		if name := l.cached[resident{seq, tier}]; name != 0 {
			return name
		}
	}
	return 0
}

// addCached records that a block is cached, and reports whether it is new.
func (l *life) add(r resident, name uint64) bool {
	if _, ok := l.cached[r]; ok {
		return false
	}
	l.cached[r] = name
	return true
}

// appendRemoved appends the changes for removed blocks.
func (l *life) removed(out []change, ev *kv.Event) []change {
	c := change{kind: blockRemoved, level: int(ev.Tier), medium: l.medium(ev.Tier)}
	for _, seq := range ev.Seqs {
		r := resident{seq, ev.Tier}
		name, ok := l.cached[r]
		if !ok {
			continue
		}
		delete(l.cached, r)
		l.ledger.drops(seq)
		c.names = append(c.names, name)
	}
	if len(c.names) == 0 {
		return out
	}
	return l.embellish(out, c)
}

// appendVariants appends c, and the duplicate, offload and hybrid events which the features enable.
func (l *life) embellish(out []change, c change) []change {
	out = append(out, c)
	if l.cfg.Features.Duplicates.on(false) {
		out = append(out, c)
	}
	if l.cfg.Features.Offload.on(false) && c.level == 0 {
		o := change{kind: c.kind, names: c.names, medium: l.medium(kv.TierHost), level: 1}
		out = append(out, o)
	}
	if l.cfg.Features.Hybrid.on(false) && c.level == 0 {
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
func (l *life) medium(t kv.Tier) string {
	switch t {
	case kv.TierDevice:
		return "GPU"
	case kv.TierHost:
		if l.cfg.Dialect == SGLang {
			return "CPU_PINNED"
		}
		return "CPU"
	case kv.TierDisk:
		if l.cfg.Dialect == VLLM {
			return "STORAGE"
		}
		return "DISK"
	}
	return "EXTERNAL"
}

// rankServer is one data-parallel rank, with one engine at a time.
type rank struct {
	index int
	cfg   *Config
	feed  *feed
	mu    struct {
		sync.Mutex
		life    *life // nil while there is none
		busy    int   // requests that use it
		lives   uint64
		changed chan struct{} // closed when the instance is set or removed
	}
}

// acquireInstance returns the current engine, once there is one. The caller calls release.
func (r *rank) use(ctx context.Context) (l *life, release func(), err error) {
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
func (r *rank) now() *life {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.life
}

// setInstance makes l the current engine; nil is none.
func (r *rank) put(l *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(l)
}

// setInstanceLocked is setInstance with mu held.
func (r *rank) set(l *life) {
	r.mu.life = l
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

// removeInstance removes the engine, which the caller stops. With idle set it fails while requests use the
// engine.
func (r *rank) take(idle bool) (*life, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.life == nil {
		return nil, errors.New("the engine is about to be replaced")
	}
	if idle && r.mu.busy > 0 {
		return nil, fault.New(fault.Conflict, "%d requests are running", r.mu.busy)
	}
	l := r.mu.life
	r.set(nil)
	return l, nil
}

// startInstance starts an engine after the previous one was removed.
func (r *rank) begin(ctx context.Context, eng engine.Engine, fail func(error)) {
	r.mu.Lock()
	r.mu.lives++
	n := r.mu.lives
	r.mu.Unlock()
	l := newLife(r.cfg, eng, r.feed, n+uint64(r.index)<<32)
	l.start(ctx, fail)
	r.put(l)
}
