// Package servetest provides an engine for the tests of services: it computes no model, but keeps a
// real prefix cache.
package servetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// WatchQueue is the number of events queued for one watcher; beyond it the watcher is restarted, as the
// contract says.
const WatchQueue = 64

// Config is the behavior of an Engine. Set it before Run.
type Config struct {
	Card engine.Card
	// Step is the time between tokens.
	Step time.Duration
	// Batch is how many requests run at once, each at the same pace; the others wait until the caller's
	// context ends. 0 is unbounded.
	Batch int
	// Cached is when the engine reports its cached tokens.
	Cached CachedReporting
	// Passes are the paths of the passthrough requests that it takes. FailPass, if set, is called
	// before one starts.
	Passes   []string
	FailPass func(*engine.PassthroughRequest) error
	// Fail, if set, is called before a request starts.
	Fail func(*engine.Request) error
}

// CachedReporting is when an engine reports how much of a prompt it had cached.
type CachedReporting uint8

// The times of CachedReporting: with the first tokens, with the last, or not at all.
const (
	ReportsFirst CachedReporting = iota
	ReportsLast
	ReportsNever
)

// Engine answers the token at output position i of choice c with [OutputToken], and caches the full
// blocks of every prompt until they are evicted.
type Engine struct {
	cfg        Config
	hasher     kv.Hasher
	batchSlots chan struct{} // has room for a batch; nil if unbounded

	mu struct {
		sync.Mutex
		cache    []cachedBlock // in order of storing, so parents come first
		ever     map[kv.SeqHash]bool
		watchers []*eventWatcher
		running  int
		waiting  int
	}
}

type cachedBlock struct {
	seq    kv.SeqHash
	parent kv.SeqHash
	start  uint32
	block  kv.BlockHash
}

type eventWatcher struct {
	events   []kv.Event
	overflow bool
	wake     chan struct{}
}

var (
	_ engine.Engine     = (*Engine)(nil)
	_ engine.KVSource   = (*Engine)(nil)
	_ engine.LoadSource = (*Engine)(nil)
)

// ModelCard returns a valid card of a model with blocks of 4 tokens.
func ModelCard(model string) engine.Card {
	return engine.Card{
		Name: model, Engine: "fake", BlockSize: 4, Blocks: 1 << 16, Ranks: 1,
		ContextLength: 1 << 20, VocabSize: 1 << 20, DefaultMaxTokens: 8, Numerics: "fake",
	}
}

// New returns an engine with an empty cache. It panics if the card has an invalid block size.
func New(cfg Config) *Engine {
	h, err := kv.NewHasher(cfg.Card.BlockSize, kv.Salt{})
	if err != nil {
		panic(err)
	}
	e := &Engine{cfg: cfg, hasher: h}
	if cfg.Batch > 0 {
		e.batchSlots = make(chan struct{}, cfg.Batch)
	}
	e.mu.ever = map[kv.SeqHash]bool{}
	return e
}

// OutputToken is an engine's answer to a prompt, the same for all engines.
func OutputToken(prompt []kv.Token, choice, pos int) kv.Token {
	return (prompt[len(prompt)-1] + kv.Token(choice*1000+pos+1)) % (1 << 20)
}

// Card implements engine.Engine.
func (e *Engine) Card() engine.Card { return e.cfg.Card }

// Run implements engine.Engine.
func (e *Engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Generate implements engine.Engine.
func (e *Engine) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if e.cfg.Fail != nil {
		if err := e.cfg.Fail(req); err != nil {
			return err
		}
	}
	if req.OutputSchema != nil && !e.cfg.Card.StructuredOutput {
		return engine.RefuseSchema()
	}
	if len(req.Prompt)+1 > e.cfg.Card.ContextLength {
		return fault.New(fault.Invalid, "the prompt is too long")
	}
	if err := e.waitTurn(ctx); err != nil {
		return err
	}
	defer e.finishRequest()
	if err := sink(&engine.Delta{Attempt: req.Attempt, Accepted: true}); err != nil {
		return err
	}
	cached := e.storePrompt(req.Prompt)
	for pos := range req.Stop.MaxTokens {
		t := time.NewTimer(e.cfg.Step)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		for choice := range req.Choices {
			if err := sink(e.newDelta(req, choice, pos, cached)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Engine) newDelta(req *engine.Request, choice, pos, cached int) *engine.Delta {
	d := &engine.Delta{Attempt: req.Attempt, Choice: choice, Pos: pos, Tokens: []kv.Token{OutputToken(req.Prompt, choice, pos)}}
	last := pos == req.Stop.MaxTokens-1
	if last {
		d.Finish = engine.FinishLength
	}
	d.Cached = e.cfg.Cached.cachedCount(pos == 0, last, cached)
	return d
}

// cachedCount is the number of cached tokens in a delta, which may be the first and the last.
func (t CachedReporting) cachedCount(first, last bool, cached int) int {
	switch {
	case t == ReportsFirst && first, t == ReportsLast && last:
		return cached
	case t == ReportsFirst, !first && !last:
		return 0
	}
	return engine.CachedUnknown
}

// Load implements engine.LoadSource.
func (e *Engine) Load() engine.Load {
	e.mu.Lock()
	defer e.mu.Unlock()
	return engine.Load{Running: e.mu.running, Waiting: e.mu.waiting, CachedBlocks: len(e.mu.cache), TotalBlocks: e.cfg.Card.Blocks}
}

// waitTurn waits until the request may run.
func (e *Engine) waitTurn(ctx context.Context) error {
	e.addCounts(0, 1)
	defer e.addCounts(0, -1)
	if e.batchSlots != nil {
		select {
		case e.batchSlots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e.addCounts(1, 0)
	return nil
}

func (e *Engine) finishRequest() {
	e.addCounts(-1, 0)
	if e.batchSlots != nil {
		<-e.batchSlots
	}
}

func (e *Engine) addCounts(running, waiting int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.running += running
	e.mu.waiting += waiting
}

// HeldPrefixes returns the prefixes in the cache, ascending.
func (e *Engine) HeldPrefixes() []kv.SeqHash {
	e.mu.Lock()
	defer e.mu.Unlock()
	var held []kv.SeqHash
	for _, c := range e.mu.cache {
		held = append(held, c.seq)
	}
	slices.Sort(held)
	return held
}

// HasHeld reports whether the cache has ever held a prefix.
func (e *Engine) HasHeld(seq kv.SeqHash) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.ever[seq]
}

// EvictBlocks removes the n blocks stored last.
func (e *Engine) EvictBlocks(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := kv.Event{Kind: kv.Removed}
	for range min(n, len(e.mu.cache)) {
		last := len(e.mu.cache) - 1
		ev.Seqs = append(ev.Seqs, e.mu.cache[last].seq)
		e.mu.cache = e.mu.cache[:last]
	}
	e.publishLocked(ev)
}

// storePrompt caches the full blocks of prompt and returns how many of its tokens were cached before.
func (e *Engine) storePrompt(prompt []kv.Token) (cached int) {
	blocks := e.hasher.AppendBlockHashes(nil, prompt, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	var parent kv.SeqHash
	contiguous := true
	for i, b := range blocks {
		seq := kv.ExtendSeq(parent, uint32(i), b)
		if slices.ContainsFunc(e.mu.cache, func(c cachedBlock) bool { return c.seq == seq }) {
			if contiguous {
				cached += e.cfg.Card.BlockSize
			}
		} else {
			contiguous = false
			c := cachedBlock{seq: seq, parent: parent, start: uint32(i), block: b}
			e.mu.cache = append(e.mu.cache, c)
			e.mu.ever[seq] = true
			e.publishLocked(c.storedEvent())
		}
		parent = seq
	}
	return cached
}

func (c cachedBlock) storedEvent() kv.Event {
	return kv.Event{Kind: kv.Stored, Start: c.start, Parent: c.parent, Blocks: []kv.BlockHash{c.block}}
}

// publishLocked queues an event for all watchers.
func (e *Engine) publishLocked(ev kv.Event) {
	for _, w := range e.mu.watchers {
		if len(w.events) == WatchQueue {
			w.events, w.overflow = w.events[:0], true
		}
		if !w.overflow {
			w.events = append(w.events, ev)
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// WatchKV implements engine.KVSource.
func (e *Engine) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	w := &eventWatcher{overflow: true, wake: make(chan struct{}, 1)}
	w.wake <- struct{}{}
	e.mu.Lock()
	e.mu.watchers = append(e.mu.watchers, w)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.mu.watchers = slices.DeleteFunc(e.mu.watchers, func(o *eventWatcher) bool { return o == w })
	}()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := sink(e.takeEvents(w)); err != nil {
			return err
		}
	}
}

// takeEvents returns the next events of w.
func (e *Engine) takeEvents(w *eventWatcher) []kv.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := w.events
	if w.overflow {
		out = []kv.Event{{Kind: kv.Cleared}}
		for _, c := range e.mu.cache {
			out = append(out, c.storedEvent())
		}
	}
	w.events, w.overflow = nil, false
	return out
}
