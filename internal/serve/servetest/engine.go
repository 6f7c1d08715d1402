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
	Cached Telling
	// Passes are the paths of the passthrough requests that it takes. FailPass, if set, is called
	// before one starts.
	Passes   []string
	FailPass func(*engine.PassRequest) error
	// Fail, if set, is called before a request starts.
	Fail func(*engine.Request) error
}

// CachedReporting is when an engine reports how much of a prompt it had cached.
type Telling uint8

// The times of CachedReporting: with the first tokens, with the last, or not at all.
const (
	TellsFirst Telling = iota
	TellsLast
	TellsNever
)

// Engine answers the token at output position i of choice c with [OutputToken], and caches the full
// blocks of every prompt until they are evicted.
type Engine struct {
	cfg    Config
	hasher kv.Hasher
	turns  chan struct{} // has room for a batch; nil if unbounded

	mu struct {
		sync.Mutex
		cache    []entry // in order of storing, so parents come first
		ever     map[kv.SeqHash]bool
		watchers []*watcher
		running  int
		waiting  int
	}
}

type entry struct {
	seq    kv.SeqHash
	parent kv.SeqHash
	start  uint32
	block  kv.BlockHash
}

type watcher struct {
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
func Card(model string) engine.Card {
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
		e.turns = make(chan struct{}, cfg.Batch)
	}
	e.mu.ever = map[kv.SeqHash]bool{}
	return e
}

// OutputToken is an engine's answer to a prompt, the same for all engines.
func Token(prompt []kv.Token, choice, pos int) kv.Token {
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
	if req.Guide != nil && !e.cfg.Card.Guided {
		return engine.RefuseGuide()
	}
	if len(req.Prompt)+1 > e.cfg.Card.ContextLength {
		return fault.New(fault.Invalid, "the prompt is too long")
	}
	if err := e.wait(ctx); err != nil {
		return err
	}
	defer e.leave()
	if err := sink(&engine.Delta{Attempt: req.Attempt, Accepted: true}); err != nil {
		return err
	}
	cached := e.store(req.Prompt)
	for pos := range req.Stop.MaxTokens {
		t := time.NewTimer(e.cfg.Step)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		for choice := range req.Choices {
			if err := sink(e.delta(req, choice, pos, cached)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Engine) delta(req *engine.Request, choice, pos, cached int) *engine.Delta {
	d := &engine.Delta{Attempt: req.Attempt, Choice: choice, Pos: pos, Tokens: []kv.Token{Token(req.Prompt, choice, pos)}}
	last := pos == req.Stop.MaxTokens-1
	if last {
		d.Finish = engine.FinishLength
	}
	d.Cached = e.cfg.Cached.at(pos == 0, last, cached)
	return d
}

// cachedCount is the number of cached tokens in a delta, which may be the first and the last.
func (t Telling) at(first, last bool, cached int) int {
	switch {
	case t == TellsFirst && first, t == TellsLast && last:
		return cached
	case t == TellsFirst, !first && !last:
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
func (e *Engine) wait(ctx context.Context) error {
	e.count(0, 1)
	defer e.count(0, -1)
	if e.turns != nil {
		select {
		case e.turns <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e.count(1, 0)
	return nil
}

func (e *Engine) leave() {
	e.count(-1, 0)
	if e.turns != nil {
		<-e.turns
	}
}

func (e *Engine) count(running, waiting int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.running += running
	e.mu.waiting += waiting
}

// HeldPrefixes returns the prefixes in the cache, ascending.
func (e *Engine) Held() []kv.SeqHash {
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
func (e *Engine) Ever(seq kv.SeqHash) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.ever[seq]
}

// EvictBlocks removes the n blocks stored last.
func (e *Engine) Evict(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := kv.Event{Kind: kv.Removed}
	for range min(n, len(e.mu.cache)) {
		last := len(e.mu.cache) - 1
		ev.Seqs = append(ev.Seqs, e.mu.cache[last].seq)
		e.mu.cache = e.mu.cache[:last]
	}
	e.publish(ev)
}

// storePrompt caches the full blocks of prompt and returns how many of its tokens were cached before.
func (e *Engine) store(prompt []kv.Token) (cached int) {
	blocks := e.hasher.Blocks(nil, prompt, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	var parent kv.SeqHash
	contiguous := true
	for i, b := range blocks {
		seq := kv.Extend(parent, uint32(i), b)
		if slices.ContainsFunc(e.mu.cache, func(c entry) bool { return c.seq == seq }) {
			if contiguous {
				cached += e.cfg.Card.BlockSize
			}
		} else {
			contiguous = false
			c := entry{seq: seq, parent: parent, start: uint32(i), block: b}
			e.mu.cache = append(e.mu.cache, c)
			e.mu.ever[seq] = true
			e.publish(c.event())
		}
		parent = seq
	}
	return cached
}

func (c entry) event() kv.Event {
	return kv.Event{Kind: kv.Stored, Start: c.start, Parent: c.parent, Blocks: []kv.BlockHash{c.block}}
}

// publishLocked queues an event for all watchers.
func (e *Engine) publish(ev kv.Event) {
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
	w := &watcher{overflow: true, wake: make(chan struct{}, 1)}
	w.wake <- struct{}{}
	e.mu.Lock()
	e.mu.watchers = append(e.mu.watchers, w)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.mu.watchers = slices.DeleteFunc(e.mu.watchers, func(o *watcher) bool { return o == w })
	}()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := sink(e.take(w)); err != nil {
			return err
		}
	}
}

// takeEvents returns the next events of w.
func (e *Engine) take(w *watcher) []kv.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := w.events
	if w.overflow {
		out = []kv.Event{{Kind: kv.Cleared}}
		for _, c := range e.mu.cache {
			out = append(out, c.event())
		}
	}
	w.events, w.overflow = nil, false
	return out
}
