package routerproxy

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

// componentView is the set of the component's workers in discovery. It is immutable.
type componentView struct {
	models     map[string]*modelWorkers
	epochs     map[kv.WorkerID]uint64 // of all workers, including unusable ones
	superseded chan struct{}          // closed when there is a newer one
}

func newComponentView() *componentView {
	return &componentView{models: map[string]*modelWorkers{}, epochs: map[kv.WorkerID]uint64{}, superseded: make(chan struct{})}
}

// WorkerEpoch implements dispatch.View.
func (k *componentView) WorkerEpoch(id kv.WorkerID) (epoch uint64, known bool) {
	epoch, known = k.epochs[id]
	return epoch, known
}

// Superseded implements dispatch.View.
func (k *componentView) Superseded() <-chan struct{} { return k.superseded }

// modelWorkers is the set of one model's workers in discovery. It is immutable.
type modelWorkers struct {
	workers []registeredWorker
}

// registeredWorker is one registered worker.
type registeredWorker struct {
	id   kv.WorkerID
	addr string
	card engine.Card
}

// currentModel returns the latest workers of a model; never nil.
func (r *Proxy) currentModel(name string) *modelWorkers {
	if m := r.view.Load().models[name]; m != nil {
		return m
	}
	return &modelWorkers{}
}

// unionCard is the card which represents all workers of the model: the first worker's, with every
// ability that any of them has. Only NoReuse needs all of them.
func (m *modelWorkers) unionCard() engine.Card {
	card := m.workers[0].card
	card.Blocks = 0
	for i := range m.workers {
		c := &m.workers[i].card
		card.Blocks += c.Blocks
		card.Embeddings = card.Embeddings || c.Embeddings
		card.Preprocess = card.Preprocess || c.Preprocess
		card.StructuredOutput = card.StructuredOutput || c.StructuredOutput
		card.Features = card.Features || c.Features
		card.NoPrefixCache = card.NoPrefixCache && c.NoPrefixCache
	}
	card.ResolvesMedia = false // this proxy decides it
	card.Adapters = m.unionOf(func(c *engine.Card) []string { return c.Adapters })
	card.PassthroughPaths = m.unionOf(func(c *engine.Card) []string { return c.PassthroughPaths })
	card.MiscountedMedia = m.unionOf(func(c *engine.Card) []string { return c.MiscountedMedia })
	card.KVEvents = false
	card.Router = true
	card.MaxBatchedTokens = 0 // its queue is its own
	card.Experts = nil
	card.Ranks = 1
	return card
}

// unionOf returns what any of the model's workers lists, ascending.
func (m *modelWorkers) unionOf(list func(*engine.Card) []string) []string {
	var all []string
	for i := range m.workers {
		all = append(all, list(&m.workers[i].card)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Run follows discovery and serves every model that has workers, until ctx ends; it returns nil then,
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
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := r.deps.Registry.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
			next := r.parseInstances(ctx, set)
			close(r.view.Swap(next).superseded)
			r.updateServed(ctx, &parts, served, next.models)
		})
		if ctx.Err() != nil {
			return nil
		}
		r.throttled.Log(ctx, slog.LevelWarn, "the watch of workers ended; it begins again", "error", err)
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// parseInstances returns the view of the component's instances. The router reports workers whose card
// cannot be read.
func (r *Proxy) parseInstances(ctx context.Context, set []disco.Instance) *componentView {
	next, old := newComponentView(), r.view.Load()
	for i := range set {
		in := &set[i]
		if in.Namespace != r.cfg.Namespace || in.Component != r.cfg.Component {
			continue
		}
		next.epochs[in.ID] = in.Epoch
		card, err := engine.DecodeCard(in.Meta)
		if err != nil {
			r.throttled.Log(ctx, slog.LevelWarn, "a worker's model card cannot be read", "worker", uint64(in.ID), "error", err)
			continue
		}
		m := next.models[card.Name]
		if m == nil {
			m = &modelWorkers{}
			next.models[card.Name] = m
		}
		m.workers = append(m.workers, registeredWorker{id: in.ID, addr: in.Addr, card: card})
	}
	for name, m := range next.models { // the order does not matter
		m.keepFitting(old.models[name])
		if r.deps.OnModel != nil {
			r.deps.OnModel(name, m.workers[0].card.Checksum())
		}
	}
	return next
}

// keepFitting drops the workers whose card differs from the model's: the previous card if any worker
// has it, so that a new worker never changes a model that is being served, else the first worker's. The
// router reports the dropped ones.
func (m *modelWorkers) keepFitting(old *modelWorkers) {
	checksum := m.workers[0].card.Checksum()
	if old != nil {
		had := old.workers[0].card.Checksum()
		if slices.ContainsFunc(m.workers, func(w registeredWorker) bool { return w.card.Checksum() == had }) {
			checksum = had
		}
	}
	m.workers = slices.DeleteFunc(m.workers, func(w registeredWorker) bool { return w.card.Checksum() != checksum })
}

// servedModel is one model being served.
type servedModel struct {
	stopServing context.CancelFunc
	card        []byte // JSON of what was registered, see cardIdentity
}

// updateServed makes the served models match models.
func (r *Proxy) updateServed(ctx context.Context, parts *sync.WaitGroup, served map[string]*servedModel, models map[string]*modelWorkers) {
	for name, s := range served { // the order does not matter
		m := models[name]
		if m != nil && bytes.Equal(s.card, cardIdentity(m.unionCard())) {
			continue
		}
		s.stopServing()
		delete(served, name)
	}
	var names []string
	for name := range models {
		if served[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		served[name] = r.startModel(ctx, parts, models[name].unionCard())
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

// startModel starts serving a model. A Serve that returns early is restarted.
func (r *Proxy) startModel(ctx context.Context, parts *sync.WaitGroup, card engine.Card) *servedModel {
	life, stop := context.WithCancel(ctx)
	s := &servedModel{stopServing: stop, card: cardIdentity(card)}
	r.serving.Add(1)
	parts.Go(func() {
		defer r.serving.Add(-1)
		card, sight := r.withResolver(card)
		wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
		for {
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
