package routerproxy

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// workersOf returns the model of a name, but no adapter; without workers if there is none.
func workersOf(s *catalog.Snapshot, name string) *catalog.Model {
	if m := s.Find(name); m != nil && m.Parent == "" {
		return m
	}
	return &catalog.Model{}
}

// currentModel returns the latest workers of a model; never nil.
func (r *Proxy) currentModel(name string) *catalog.Model {
	return workersOf(r.deps.Catalog.Current(), name)
}

// unionCard is the card which represents all workers of the model: the model's, with every ability
// that any of them has. Only NoReuse needs all of them, and Fetches all with Features.
func unionCard(m *catalog.Model) engine.Card {
	card := m.Card
	card.Blocks = 0
	card.Fetches = true
	for _, w := range m.Workers {
		c := w.Card
		card.Blocks += c.Blocks
		card.Embeddings = card.Embeddings || c.Embeddings
		card.Preprocess = card.Preprocess || c.Preprocess
		card.StructuredOutput = card.StructuredOutput || c.StructuredOutput
		card.Features = card.Features || c.Features
		card.Fetches = card.Fetches && (c.Fetches || !c.Features)
		card.NoPrefixCache = card.NoPrefixCache && c.NoPrefixCache
	}
	card.Fetches = card.Fetches && card.Features
	card.ResolvesMedia = false // this proxy decides it
	card.Adapters = m.UnionOf(func(c *engine.Card) []string { return c.Adapters })
	card.PassthroughPaths = m.UnionOf(func(c *engine.Card) []string { return c.PassthroughPaths })
	card.KVEvents, card.EmbeddingEvents, card.EmbeddingRegion, card.Pool = false, false, "", nil // each is of one worker
	card.Router, card.Role, card.KVConnector = true, engine.RoleAggregated, ""                   // legs are called here
	card.MaxBatchedTokens = 0                                                                    // its queue is its own
	card.Experts = nil
	card.Ranks = 1
	return card
}

// Run follows the catalog and serves every model that has workers, until ctx ends; it returns nil then,
// when everything it served has stopped. It stops serving a model when its last worker is removed, and
// restarts a model whose card has changed.
func (r *Proxy) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	defer r.throttled.Flush(context.WithoutCancel(ctx))
	served := map[string]*servedModel{}
	defer func() {
		for _, s := range served { // they stop together: the order does not matter
			s.stopServing()
		}
	}()
	for {
		s := r.deps.Catalog.Current()
		r.updateServed(ctx, &parts, served, s)
		select {
		case <-s.Superseded():
		case <-ctx.Done():
			return nil
		}
	}
}

// servedModel is one model being served, or one whose service ends.
type servedModel struct {
	stopServing context.CancelFunc
	stopped     bool          // stopServing was called
	ended       chan struct{} // closed when nothing of it is served any more
	card        []byte        // JSON of what was registered, see cardIdentity
}

// hasEnded reports whether nothing of it is served any more.
func (s *servedModel) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// updateServed makes the served models match a snapshot. An adapter is served by its model.
func (r *Proxy) updateServed(ctx context.Context, parts *sync.WaitGroup, served map[string]*servedModel, s *catalog.Snapshot) {
	for name, old := range served { // the order does not matter
		m := workersOf(s, name)
		if len(m.Workers) == 0 || !bytes.Equal(old.card, cardIdentity(unionCard(m))) {
			old.stopServing()
			old.stopped = true
		}
		if old.stopped && old.hasEnded() {
			delete(served, name)
		}
	}
	for _, m := range s.Models {
		name := m.Card.Name
		if old := served[name]; m.Parent == "" && len(m.Workers) > 0 && (old == nil || old.stopped) {
			served[name] = r.startModel(ctx, parts, unionCard(m), old)
		}
	}
}

// cardIdentity is the part of a card which is fixed while its registration holds. The adapters and the
// miscounted kinds of media may change, see WatchAdapters and WatchCounts.
func cardIdentity(card engine.Card) []byte {
	card.Blocks, card.Adapters, card.MiscountedMedia = 0, nil, nil
	b, err := engine.EncodeCard(card)
	if err != nil { // it was decoded from JSON
		return nil
	}
	return b
}

// startModel starts serving a model, when old, which is stopped or nil, has ended: both have the same address. A Serve
// that returns early is restarted.
func (r *Proxy) startModel(ctx context.Context, parts *sync.WaitGroup, card engine.Card, old *servedModel) *servedModel {
	life, stop := context.WithCancel(ctx)
	s := &servedModel{stopServing: stop, ended: make(chan struct{}), card: cardIdentity(card)}
	parts.Go(func() {
		defer close(s.ended)
		if old != nil {
			<-old.ended // its context has ended
		}
		r.serving.Add(1)
		defer r.serving.Add(-1)
		card, sight := r.withResolver(card)
		wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
		for life.Err() == nil {
			err := r.deps.Serve(life, r.NewEngine(card, sight))
			if life.Err() != nil {
				return
			}
			r.throttled.Log(life, slog.LevelError, "a model is not served any more, trying again", "model", card.Name, "error", err)
			if wait.Wait(life) != nil {
				return
			}
		}
	})
	return s
}
