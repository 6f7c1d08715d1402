package remote

import (
	"context"
	"sync"

	"penstock/core/kv"
	"penstock/core/shadow"
	"penstock/internal/engine"
	"penstock/internal/engine/watch"
)

// Source is where knowledge of an engine's cache comes from: its own events ([EventFeed],
// [PulledEvents]), or a model of it that is fed with requests ([Shadow]). Its methods but run
// are called under the cache's lock.
type Source interface {
	// run follows the engine until ctx ends.
	run(ctx context.Context, c *cache)
	// describe appends a Cleared event and all that is known to be cached.
	describe(out []kv.Event) []kv.Event
	// knows reports whether begin says what of a call the engine should have cached; if not, that is
	// found in the events.
	knows() bool
	// begin notes that p is sent. guess counts if the source knows, or is noGuess.
	begin(p *Part, out []kv.Event) (guess int, events []kv.Event)
	grew(p *Part, tokens []kv.Token, out []kv.Event) []kv.Event
	reported(p *Part, cached int, out []kv.Event) []kv.Event
	end(p *Part, out []kv.Event) []kv.Event
	warnings() []engine.Warning
	stats(s *Stats)
}

// cache is what is known of an engine's cache, and who watches it.
type cache struct {
	hub   *watch.Hub
	src   Source
	heard func() // the engine published something; nil before New

	// knows says that the source itself knows what a call should find, so that no account of the
	// events is kept for it.
	knows bool

	mu struct {
		sync.Mutex
		held   map[kv.SeqHash]uint8 // tiers that have the prefix, as bits
		ever   bool                 // something was stored once
		events []kv.Event           // scratch of the change that is made
	}
}

// maxBacklog bounds the names of blocks that a watcher may be behind by, whatever an engine says of its
// size: 64 MiB of them.
const maxBacklog = 4 << 20

func newCache(blocks int, src Source) *cache {
	c := &cache{hub: watch.New(min(max(watch.MinBacklog, blocks), maxBacklog)), src: src, knows: src.knows()}
	c.mu.held = map[kv.SeqHash]uint8{}
	return c
}

// watchCache follows the engine's cache.
func (b *Base) watchCache(ctx context.Context) { b.cache.src.run(ctx, b.cache) }

// change has f append the events of what happened, and hands them on.
func (c *cache) change(f func(out []kv.Event) []kv.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(f(c.mu.events[:0]))
}

// publish enters events, whose memory is used for the next ones, and hands them to watchers, none
// of whom it waits for.
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

// maxScratch bounds the events whose memory is kept for the next ones.
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

// watch is [engine.KVSource]'s.
func (c *cache) watch(ctx context.Context, sink func([]kv.Event) error) error {
	return c.hub.Watch(ctx, c.tell, errStopped(), sink)
}

// tell describes the cache to those who wait for it.
func (c *cache) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hub.Wanting() {
		c.hub.Describe(c.src.describe(nil))
	}
}

// stop ends all watches.
func (c *cache) stop() { c.hub.Stop() }

// begin notes that a call is sent, and enters in it what the engine should have cached.
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

// depth returns how many tokens of a call's prompt are known to be cached. The last token is
// always computed, and with it its block.
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

// placer is a source that knows slots.
type placer interface {
	placed(p *Part, slot int, out []kv.Event) []kv.Event
}

// placed notes in which slot a call runs.
func (c *cache) placed(p *Part, slot int, out []kv.Event) []kv.Event {
	if src, ok := c.src.(placer); ok {
		return src.placed(p, slot, out)
	}
	return out
}

// forgetter is a source that cannot know by itself that the engine was started anew.
type forgetter interface {
	restarted(out []kv.Event) []kv.Event
}

// probed notes that a prompt of no client is sent under several salts.
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

// mark returns a point in the account of the cache, for unloaded.
func (c *cache) mark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*feed); ok {
		return f.table.Mark()
	}
	return 0
}

// unloaded notes that the engine had unloaded adapters by a mark.
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

// slots reports whether the source knows in which slots calls run.
func (c *cache) slots() bool {
	s, ok := c.src.(*shadowed)
	if !ok {
		return false
	}
	_, ok = s.model.(slotted)
	return ok
}

// slotted is a model of an engine with slots.
type slotted interface {
	Placed(t shadow.Ticket, at int, out []kv.Event) []kv.Event
}

// restarted notes that the engine may have been started anew.
func (c *cache) restarted() {
	if src, ok := c.src.(forgetter); ok {
		c.change(src.restarted)
	}
}

// shows notes that a prompt with media is sent that is no request's.
func (c *cache) shows(p *Shown) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*feed); ok {
		f.table.Shown(p.Tokens, p.Media, kv.Salt{})
	}
}

// salted notes that a request of which the engine alone makes the tokens is sent under a salt.
func (c *cache) salted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*feed); ok {
		f.table.Salted(nil)
	}
}

// silent reports whether nothing was ever said to be stored.
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

// nothing is the source of an engine that reuses nothing.
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

// Model is what [Shadow] feeds: a model of package shadow.
type Model interface {
	Begin(r *shadow.Request, out []kv.Event) (shadow.Begun, []kv.Event)
	Grow(t shadow.Ticket, tokens []kv.Token, out []kv.Event) []kv.Event
	Report(t shadow.Ticket, cached int, out []kv.Event) []kv.Event
	End(t shadow.Ticket, out []kv.Event) []kv.Event
	Abort(t shadow.Ticket, out []kv.Event) []kv.Event
	Describe(out []kv.Event) []kv.Event
	Clear(out []kv.Event) []kv.Event
}

// Shadow is the source of an engine that says nothing of its cache: what it should have by the
// requests that it was sent, corrected by the cached tokens that it reports. The card should say
// KVGuessed.
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
