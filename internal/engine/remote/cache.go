package remote

import (
	"context"
	"sync"

	"penstock/core/kv"
	"penstock/core/shadow"
	"penstock/internal/engine"
	"penstock/internal/engine/watch"
)

// CacheSource is the source of knowledge about an engine's cache: its own events ([NewEventFeed],
// [NewPulledEvents]), or a predicted model of it that follows requests ([PredictedSource]). Its methods
// except run are called with the tracker's lock held.
type Source interface {
	// run follows the engine until ctx ends.
	run(ctx context.Context, c *cache)
	// appendContents appends a Cleared event and Stored events of everything known to be cached.
	describe(out []kv.Event) []kv.Event
	// predictsHits reports whether startCall returns the expected cached tokens; if not, the tracker derives
	// them from the events.
	knows() bool
	// startCall records that p is sent. expected is valid if the source predicts hits, or is noExpectation.
	begin(p *Part, out []kv.Event) (guess int, events []kv.Event)
	grew(p *Part, tokens []kv.Token, out []kv.Event) []kv.Event
	reported(p *Part, cached int, out []kv.Event) []kv.Event
	end(p *Part, out []kv.Event) []kv.Event
	warnings() []engine.Warning
	stats(s *Stats)
}

// cacheTracker is the known content of an engine's cache and its watchers.
type cache struct {
	hub   *watch.Hub
	src   Source
	heard func() // called when the engine published something; nil before New

	// predictsHits says that the source predicts the hits of a call, so that the tracker keeps no index of
	// the events.
	knows bool

	mu struct {
		sync.Mutex
		held   map[kv.SeqHash]uint8 // tiers that have the prefix, as bits
		ever   bool                 // something was stored at some time
		events []kv.Event           // scratch of the current change
	}
}

// maxBacklog bounds how many block hashes a watcher may lag, for any size that the engine reports: 64 MiB.
const maxBacklog = 4 << 20

func newCache(blocks int, src Source) *cache {
	c := &cache{hub: watch.New(min(max(watch.MinBacklog, blocks), maxBacklog)), src: src, knows: src.knows()}
	c.mu.held = map[kv.SeqHash]uint8{}
	return c
}

// watchCache follows the engine's cache.
func (b *Base) watchCache(ctx context.Context) { b.cache.src.run(ctx, b.cache) }

// applyChange calls f to append the events of a change, and publishes them.
func (c *cache) change(f func(out []kv.Event) []kv.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(f(c.mu.events[:0]))
}

// publishLocked records events, whose memory is reused, and publishes them to watchers without waiting for
// any.
func (c *cache) publish(events []kv.Event) {
	for i := range events {
		c.enter(&events[i])
	}
	c.hub.Publish(events)
	clear(events)
	if c.mu.events = events; cap(events) > maxScratch {
		c.mu.events = nil
	}
}

// maxScratch bounds the events whose memory is kept for reuse.
const maxScratch = 1024

func (c *cache) enter(ev *kv.Event) {
	c.mu.ever = c.mu.ever || ev.Kind == kv.Stored
	if c.knows {
		return
	}
	tier := uint8(1) << ev.Tier
	switch ev.Kind {
	case kv.Cleared:
		clear(c.mu.held)
	case kv.Stored:
		parent := ev.Parent
		for i, block := range ev.Blocks {
			parent = kv.Extend(parent, ev.Start+uint32(i), block)
			c.mu.held[parent] |= tier
		}
	case kv.Removed:
		for _, seq := range ev.Seqs {
			if left := c.mu.held[seq] &^ tier; left == 0 {
				delete(c.mu.held, seq)
			} else {
				c.mu.held[seq] = left
			}
		}
	}
}

// watchEvents implements [engine.KVSource].
func (c *cache) watch(ctx context.Context, sink func([]kv.Event) error) error {
	return c.hub.Watch(ctx, c.tell, errStopped(), sink)
}

// describeToWatchers sends the content of the cache to watchers that need it.
func (c *cache) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hub.Wanting() {
		c.hub.Describe(c.src.describe(nil))
	}
}

// stopWatches ends all watches.
func (c *cache) stop() { c.hub.Stop() }

// startCall records that a call is sent, and sets its expected cached tokens.
func (c *cache) begin(p *Part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	guess, events := c.src.begin(p, c.mu.events[:0])
	if !c.knows && guess != noGuess {
		guess = c.depth(p)
	}
	p.guess = guess
	c.publish(events)
}

// cachedPrefixLocked returns how many tokens of a call's prompt are known to be cached. Engines always
// compute the last token, and with it its block.
func (c *cache) depth(p *Part) int {
	size := p.a.b.cfg.Card.BlockSize
	h, err := kv.NewHasher(size, p.Request.Salt)
	if err != nil || len(c.mu.held) == 0 {
		return 0
	}
	prompt := p.tokens()
	most := (len(prompt) - 1) / size
	var parent kv.SeqHash
	for i := range most {
		parent = kv.Extend(parent, uint32(i), h.Block(prompt[i*size:(i+1)*size], i*size, p.Request.Media))
		if c.mu.held[parent] == 0 {
			return i * size
		}
	}
	return most * size
}

func (c *cache) grew(p *Part, tokens []kv.Token) {
	c.change(func(out []kv.Event) []kv.Event { return c.src.grew(p, tokens, out) })
}

func (c *cache) reported(p *Part, cached int) {
	c.change(func(out []kv.Event) []kv.Event { return c.src.reported(p, cached, out) })
}

func (c *cache) end(p *Part) {
	c.change(func(out []kv.Event) []kv.Event { return c.src.end(p, out) })
}

// slotSource is a source that knows slots.
type placer interface {
	placed(p *Part, slot int, out []kv.Event) []kv.Event
}

// noteSlotLocked records the slot in which a call runs.
func (c *cache) placed(p *Part, slot int, out []kv.Event) []kv.Event {
	if src, ok := c.src.(placer); ok {
		return src.placed(p, slot, out)
	}
	return out
}

// restartSource is a source that cannot detect an engine restart itself.
type forgetter interface {
	restarted(out []kv.Event) []kv.Event
}

// noteProbe records that the prompt of a probe is sent under several salts.
func (c *cache) probed(prompt []kv.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch src := c.src.(type) {
	case *feed:
		src.table.Probed(prompt)
	case *Pulled:
		src.table.Probed(prompt)
	}
}

// eventMark returns a position in the event table, for dropAdapters.
func (c *cache) mark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*feed); ok {
		return f.table.Mark()
	}
	return 0
}

// dropAdapters records that the engine had unloaded adapters by a mark.
func (c *cache) unloaded(names []string, mark uint64) {
	f, ok := c.src.(*feed)
	if !ok || len(names) == 0 {
		return
	}
	c.change(func(out []kv.Event) []kv.Event {
		for _, name := range names {
			out = f.table.ForgetAdapter(name, mark, out)
		}
		return out
	})
}

// knowsSlots reports whether the source knows the slots of calls.
func (c *cache) slots() bool {
	s, ok := c.src.(*shadowed)
	if !ok {
		return false
	}
	_, ok = s.model.(slotted)
	return ok
}

// slotModel is a model of an engine with slots.
type slotted interface {
	Placed(t shadow.Ticket, at int, out []kv.Event) []kv.Event
}

// noteRestart records that the engine may have restarted.
func (c *cache) restarted() {
	if src, ok := c.src.(forgetter); ok {
		c.change(src.restarted)
	}
}

// noteShownMedia records that a prompt with media is sent by a check.
func (c *cache) shows(p *Shown) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*feed); ok {
		f.table.Shown(p.Tokens, p.Media, kv.Salt{})
	}
}

// noteSaltedCall records that a request whose tokens only the engine makes is sent under a salt.
func (c *cache) salted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*feed); ok {
		f.table.Salted(nil)
	}
}

// nothingStored reports whether no event ever stored a block.
func (c *cache) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.mu.ever
}

func (c *cache) warnings() []engine.Warning {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.src.warnings()
}

// noCacheSource is the source of an engine without prefix cache.
type nothing struct{}

func (nothing) run(ctx context.Context, _ *cache)                     { <-ctx.Done() }
func (nothing) describe(out []kv.Event) []kv.Event                    { return append(out, kv.Event{Kind: kv.Cleared}) }
func (nothing) knows() bool                                           { return true }
func (nothing) begin(*Part, []kv.Event) (int, []kv.Event)             { return 0, nil }
func (nothing) grew(_ *Part, _ []kv.Token, out []kv.Event) []kv.Event { return out }
func (nothing) reported(_ *Part, _ int, out []kv.Event) []kv.Event    { return out }
func (nothing) end(_ *Part, out []kv.Event) []kv.Event                { return out }
func (nothing) warnings() []engine.Warning                            { return nil }
func (nothing) stats(*Stats)                                          {}

// CacheModel is the model which [PredictedSource] updates: one of package cachemodel.
type Model interface {
	Begin(r *shadow.Request, out []kv.Event) (shadow.Begun, []kv.Event)
	Grow(t shadow.Ticket, tokens []kv.Token, out []kv.Event) []kv.Event
	Report(t shadow.Ticket, cached int, out []kv.Event) []kv.Event
	End(t shadow.Ticket, out []kv.Event) []kv.Event
	Abort(t shadow.Ticket, out []kv.Event) []kv.Event
	Describe(out []kv.Event) []kv.Event
	Clear(out []kv.Event) []kv.Event
}

// PredictedSource is the source of an engine that reports no cache events: it predicts the cache from the
// requests sent, corrected by the reported cached tokens. The card should say KVPredicted.
func Shadow(m Model) Source { return &shadowed{model: m} }

type shadowed struct{ model Model }

func (s *shadowed) run(ctx context.Context, _ *cache)  { <-ctx.Done() }
func (s *shadowed) describe(out []kv.Event) []kv.Event { return s.model.Describe(out) }
func (s *shadowed) warnings() []engine.Warning         { return nil }
func (s *shadowed) stats(*Stats)                       {}

func (s *shadowed) knows() bool { return true }

func (s *shadowed) begin(p *Part, out []kv.Event) (int, []kv.Event) {
	begun, out := s.model.Begin(&shadow.Request{Salt: p.Request.Salt, Tokens: p.tokens(), Media: p.Request.Media}, out)
	p.ticket, p.Slot, p.Mixed = begun.Ticket, begun.Slot, begun.Mixed
	return begun.Cached, out
}

func (s *shadowed) restarted(out []kv.Event) []kv.Event { return s.model.Clear(out) }

func (s *shadowed) placed(p *Part, slot int, out []kv.Event) []kv.Event {
	if m, ok := s.model.(slotted); ok {
		return m.Placed(p.ticket, slot, out)
	}
	return out
}

func (s *shadowed) grew(p *Part, tokens []kv.Token, out []kv.Event) []kv.Event {
	return s.model.Grow(p.ticket, tokens, out)
}

func (s *shadowed) reported(p *Part, cached int, out []kv.Event) []kv.Event {
	return s.model.Report(p.ticket, cached, out)
}

func (s *shadowed) end(p *Part, out []kv.Event) []kv.Event {
	if p.over() {
		return s.model.End(p.ticket, out)
	}
	return s.model.Abort(p.ticket, out)
}
