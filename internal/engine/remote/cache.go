package remote

import (
	"context"
	"sync"

	"penstock/core/cachemodel"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/watch"
)

// CacheSource is the source of knowledge about an engine's cache: its own events ([NewEventFeed],
// [NewPulledEvents]), or a predicted model of it that follows requests ([PredictedSource]). Its methods
// except run are called with the tracker's lock held.
type CacheSource interface {
	// run follows the engine until ctx ends.
	run(ctx context.Context, c *cacheTracker)
	// appendContents appends a Cleared event and Stored events of everything known to be cached.
	appendContents(out []kv.Event) []kv.Event
	// predictsHits reports whether startCall returns the expected cached tokens; if not, the tracker derives
	// them from the events.
	predictsHits() bool
	// startCall records that p is sent. expected is valid if the source predicts hits, or is noExpectation.
	startCall(p *SubRequest, out []kv.Event) (guess int, events []kv.Event)
	addOutput(p *SubRequest, tokens []kv.Token, out []kv.Event) []kv.Event
	recordReport(p *SubRequest, cached int, out []kv.Event) []kv.Event
	finishCall(p *SubRequest, out []kv.Event) []kv.Event
	sourceWarnings() []engine.Warning
	fillStats(s *Stats)
}

// cacheTracker is the known content of an engine's cache and its watchers.
type cacheTracker struct {
	broadcaster *watch.Broadcaster[kv.Event]
	src         CacheSource
	noteHeard   func() // called when the engine published something; nil before New

	// predictsHits says that the source predicts the hits of a call, so that the tracker keeps no index of
	// the events.
	predictsHits bool

	mu struct {
		sync.Mutex
		held   map[kv.SeqHash]uint8 // tiers that have the prefix, as bits
		ever   bool                 // something was stored at some time
		events []kv.Event           // scratch of the current change
	}
}

// maxBacklog bounds how many block hashes a watcher may lag, for any size that the engine reports: 64 MiB.
const maxBacklog = 4 << 20

func newCacheTracker(blocks int, src CacheSource) *cacheTracker {
	c := &cacheTracker{broadcaster: watch.New(min(max(watch.MinBacklog, blocks), maxBacklog), watch.CountHashes), src: src, predictsHits: src.predictsHits()}
	c.mu.held = map[kv.SeqHash]uint8{}
	return c
}

// watchCache follows the engine's cache.
func (b *Base) watchCache(ctx context.Context) { b.cache.src.run(ctx, b.cache) }

// applyChange calls f to append the events of a change, and publishes them.
func (c *cacheTracker) applyChange(f func(out []kv.Event) []kv.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publishLocked(f(c.mu.events[:0]))
}

// publishLocked records events, whose memory is reused, and publishes them to watchers without waiting for
// any.
func (c *cacheTracker) publishLocked(events []kv.Event) {
	for i := range events {
		c.recordEventLocked(&events[i])
	}
	c.broadcaster.Publish(events)
	clear(events)
	if c.mu.events = events; cap(events) > maxScratch {
		c.mu.events = nil
	}
}

// maxScratch bounds the events whose memory is kept for reuse.
const maxScratch = 1024

func (c *cacheTracker) recordEventLocked(ev *kv.Event) {
	c.mu.ever = c.mu.ever || ev.Kind == kv.Stored
	if c.predictsHits {
		return
	}
	tier := uint8(1) << ev.Tier
	switch ev.Kind {
	case kv.Cleared:
		clear(c.mu.held)
	case kv.Stored:
		parent := ev.Parent
		for i, block := range ev.Blocks {
			parent = kv.ExtendSeq(parent, ev.Start+uint32(i), block)
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
func (c *cacheTracker) watchEvents(ctx context.Context, sink func([]kv.Event) error) error {
	return c.broadcaster.Watch(ctx, c.describeToWatchers, stoppedError(), sink)
}

// describeToWatchers sends the content of the cache to watchers that need it.
func (c *cacheTracker) describeToWatchers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broadcaster.NeedsDescription() {
		c.broadcaster.SendDescription(c.src.appendContents(nil))
	}
}

// startCall records that a call is sent, and sets its expected cached tokens.
func (c *cacheTracker) startCall(p *SubRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	guess, events := c.src.startCall(p, c.mu.events[:0])
	if !c.predictsHits && guess != noExpectation {
		guess = c.cachedPrefixLocked(p)
	}
	p.expectedCached = guess
	c.publishLocked(events)
}

// cachedPrefixLocked returns how many tokens of a call's prompt are known to be cached. Engines always
// compute the last token, and with it its block.
func (c *cacheTracker) cachedPrefixLocked(p *SubRequest) int {
	size := p.attempt.base.cfg.Card.BlockSize
	h, err := kv.NewHasher(size, p.Request.Salt)
	if err != nil || len(c.mu.held) == 0 {
		return 0
	}
	prompt := p.allTokens()
	most := (len(prompt) - 1) / size
	var parent kv.SeqHash
	for i := range most {
		parent = kv.ExtendSeq(parent, uint32(i), h.HashBlock(prompt[i*size:(i+1)*size], i*size, p.Request.Media))
		if c.mu.held[parent] == 0 {
			return i * size
		}
	}
	return most * size
}

func (c *cacheTracker) addOutput(p *SubRequest, tokens []kv.Token) {
	c.applyChange(func(out []kv.Event) []kv.Event { return c.src.addOutput(p, tokens, out) })
}

func (c *cacheTracker) recordReport(p *SubRequest, cached int) {
	c.applyChange(func(out []kv.Event) []kv.Event { return c.src.recordReport(p, cached, out) })
}

func (c *cacheTracker) finishCall(p *SubRequest) {
	c.applyChange(func(out []kv.Event) []kv.Event { return c.src.finishCall(p, out) })
}

// slotSource is a source that knows slots.
type slotSource interface {
	noteSlotLocked(p *SubRequest, slot int, out []kv.Event) []kv.Event
}

// noteSlotLocked records the slot in which a call runs.
func (c *cacheTracker) noteSlotLocked(p *SubRequest, slot int, out []kv.Event) []kv.Event {
	if src, ok := c.src.(slotSource); ok {
		return src.noteSlotLocked(p, slot, out)
	}
	return out
}

// restartSource is a source that cannot detect an engine restart itself.
type restartSource interface {
	engineRestarted(out []kv.Event) []kv.Event
}

// noteProbe records that the prompt of a probe is sent under several salts.
func (c *cacheTracker) noteProbe(prompt []kv.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch src := c.src.(type) {
	case *eventFeed:
		src.table.RecordProbe(prompt)
	case *PulledEvents:
		src.table.RecordProbe(prompt)
	}
}

// eventMark returns a position in the event table, for dropAdapters.
func (c *cacheTracker) eventMark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*eventFeed); ok {
		return f.table.ArrivalMark()
	}
	return 0
}

// dropAdapters records that the engine had unloaded adapters by a mark.
func (c *cacheTracker) dropAdapters(names []string, mark uint64) {
	f, ok := c.src.(*eventFeed)
	if !ok || len(names) == 0 {
		return
	}
	c.applyChange(func(out []kv.Event) []kv.Event {
		for _, name := range names {
			out = f.table.ForgetAdapter(name, mark, out)
		}
		return out
	})
}

// knowsSlots reports whether the source knows the slots of calls.
func (c *cacheTracker) knowsSlots() bool {
	s, ok := c.src.(*predictedSource)
	if !ok {
		return false
	}
	_, ok = s.model.(slotModel)
	return ok
}

// slotModel is a model of an engine with slots.
type slotModel interface {
	ReportSlot(t cachemodel.Ticket, at int, out []kv.Event) []kv.Event
}

// noteRestart records that the engine may have restarted.
func (c *cacheTracker) noteRestart() {
	if src, ok := c.src.(restartSource); ok {
		c.applyChange(src.engineRestarted)
	}
}

// noteShownMedia records that a prompt with media is sent by a check.
func (c *cacheTracker) noteShownMedia(p *MediaPrompt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*eventFeed); ok {
		f.table.RecordMediaPrompt(p.Tokens, p.Media, kv.Salt{})
	}
}

// noteSaltedCall records that a request whose tokens only the engine makes is sent under a salt.
func (c *cacheTracker) noteSaltedCall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.src.(*eventFeed); ok {
		f.table.RecordSalted(nil)
	}
}

// nothingStored reports whether no event ever stored a block.
func (c *cacheTracker) nothingStored() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.mu.ever
}

func (c *cacheTracker) cacheWarnings() []engine.Warning {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.src.sourceWarnings()
}

// noCacheSource is the source of an engine without prefix cache.
type noCacheSource struct{}

func (noCacheSource) run(ctx context.Context, _ *cacheTracker) { <-ctx.Done() }
func (noCacheSource) appendContents(out []kv.Event) []kv.Event {
	return append(out, kv.Event{Kind: kv.Cleared})
}

func (noCacheSource) predictsHits() bool { return true }

func (noCacheSource) startCall(*SubRequest, []kv.Event) (int, []kv.Event) { return 0, nil }

func (noCacheSource) addOutput(_ *SubRequest, _ []kv.Token, out []kv.Event) []kv.Event { return out }

func (noCacheSource) recordReport(_ *SubRequest, _ int, out []kv.Event) []kv.Event { return out }

func (noCacheSource) finishCall(_ *SubRequest, out []kv.Event) []kv.Event { return out }

func (noCacheSource) sourceWarnings() []engine.Warning { return nil }
func (noCacheSource) fillStats(*Stats)                 {}

// CacheModel is the model which [PredictedSource] updates: one of package cachemodel.
type CacheModel interface {
	StartRequest(r *cachemodel.EngineRequest, out []kv.Event) (cachemodel.Prediction, []kv.Event)
	AppendTokens(t cachemodel.Ticket, tokens []kv.Token, out []kv.Event) []kv.Event
	ReportCached(t cachemodel.Ticket, cached int, out []kv.Event) []kv.Event
	FinishRequest(t cachemodel.Ticket, out []kv.Event) []kv.Event
	AbortRequest(t cachemodel.Ticket, out []kv.Event) []kv.Event
	Describe(out []kv.Event) []kv.Event
	Clear(out []kv.Event) []kv.Event
}

// PredictedSource is the source of an engine that reports no cache events: it predicts the cache from the
// requests sent, corrected by the reported cached tokens. The card should say KVPredicted.
func PredictedSource(m CacheModel) CacheSource { return &predictedSource{model: m} }

type predictedSource struct{ model CacheModel }

func (s *predictedSource) run(ctx context.Context, _ *cacheTracker) { <-ctx.Done() }
func (s *predictedSource) appendContents(out []kv.Event) []kv.Event { return s.model.Describe(out) }
func (s *predictedSource) sourceWarnings() []engine.Warning         { return nil }
func (s *predictedSource) fillStats(*Stats)                         {}

func (s *predictedSource) predictsHits() bool { return true }

func (s *predictedSource) startCall(p *SubRequest, out []kv.Event) (int, []kv.Event) {
	begun, out := s.model.StartRequest(&cachemodel.EngineRequest{Salt: p.Request.Salt, Tokens: p.allTokens(), Media: p.Request.Media}, out)
	p.ticket, p.Slot, p.Mixed = begun.Ticket, begun.Slot, begun.MixesSalts
	return begun.Cached, out
}

func (s *predictedSource) engineRestarted(out []kv.Event) []kv.Event { return s.model.Clear(out) }

func (s *predictedSource) noteSlotLocked(p *SubRequest, slot int, out []kv.Event) []kv.Event {
	if m, ok := s.model.(slotModel); ok {
		return m.ReportSlot(p.ticket, slot, out)
	}
	return out
}

func (s *predictedSource) addOutput(p *SubRequest, tokens []kv.Token, out []kv.Event) []kv.Event {
	return s.model.AppendTokens(p.ticket, tokens, out)
}

func (s *predictedSource) recordReport(p *SubRequest, cached int, out []kv.Event) []kv.Event {
	return s.model.ReportCached(p.ticket, cached, out)
}

func (s *predictedSource) finishCall(p *SubRequest, out []kv.Event) []kv.Event {
	if p.isFinished() {
		return s.model.FinishRequest(p.ticket, out)
	}
	return s.model.AbortRequest(p.ticket, out)
}
