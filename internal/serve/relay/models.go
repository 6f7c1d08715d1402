package relay

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
type known struct {
	models     map[string]*model
	epochs     map[kv.WorkerID]uint64 // of all workers, including unusable ones
	superseded chan struct{}          // closed when there is a newer one
}

func newKnown() *known {
	return &known{models: map[string]*model{}, epochs: map[kv.WorkerID]uint64{}, superseded: make(chan struct{})}
}

// WorkerEpoch implements dispatch.View.
func (k *known) Life(id kv.WorkerID) (epoch uint64, known bool) {
	epoch, known = k.epochs[id]
	return epoch, known
}

// Superseded implements dispatch.View.
func (k *known) Superseded() <-chan struct{} { return k.superseded }

// modelWorkers is the set of one model's workers in discovery. It is immutable.
type model struct {
	workers []worker
}

// registeredWorker is one registered worker.
type worker struct {
	id   kv.WorkerID
	addr string
	card engine.Card
}

// numericsOf returns the numerics of a worker; "" if unknown.
func (m *model) numerics(id kv.WorkerID) string {
	for i := range m.workers {
		if m.workers[i].id == id {
			return m.workers[i].card.Numerics
		}
	}
	return ""
}

// workersWhere returns the ids of the workers whose card satisfies match.
func (m *model) those(such func(*engine.Card) bool) []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if such(&m.workers[i].card) {
			ids = append(ids, m.workers[i].id)
		}
	}
	return ids
}

// currentModel returns the latest workers of a model; never nil.
func (r *Relay) model(name string) *model {
	if m := r.known.Load().models[name]; m != nil {
		return m
	}
	return &model{}
}

// unionCard is the card which represents all workers of the model: the first worker's, with every
// ability that any of them has. Only NoReuse needs all of them.
func (m *model) card() engine.Card {
	card := m.workers[0].card
	card.Blocks = 0
	for i := range m.workers {
		c := &m.workers[i].card
		card.Blocks += c.Blocks
		card.Embeddings = card.Embeddings || c.Embeddings
		card.Preprocess = card.Preprocess || c.Preprocess
		card.Guided = card.Guided || c.Guided
		card.Features = card.Features || c.Features
		card.NoReuse = card.NoReuse && c.NoReuse
	}
	card.Sights = false // this proxy decides it
	card.Adapters = m.union(func(c *engine.Card) []string { return c.Adapters })
	card.Passes = m.union(func(c *engine.Card) []string { return c.Passes })
	card.Miscounted = m.union(func(c *engine.Card) []string { return c.Miscounted })
	card.KVEvents = false
	card.Router = true
	card.MaxBatchedTokens = 0 // its queue is its own
	card.Experts = nil
	card.Ranks = 1
	return card
}

// unionOf returns what any of the model's workers lists, ascending.
func (m *model) union(list func(*engine.Card) []string) []string {
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
func (r *Relay) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	defer r.throttled.Flush(context.WithoutCancel(ctx))
	served := map[string]*service{}
	defer func() {
		for _, s := range served { // they stop together: the order does not matter
			s.stop()
		}
	}()
	wait := backoff.Backoff{Least: 100 * time.Millisecond, Most: 5 * time.Second}
	for {
		err := r.deps.Registry.Watch(ctx, disco.Worker, func(set []disco.Instance) {
			next := r.parse(ctx, set)
			close(r.known.Swap(next).superseded)
			r.follow(ctx, &parts, served, next.models)
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
func (r *Relay) parse(ctx context.Context, set []disco.Instance) *known {
	next, old := newKnown(), r.known.Load()
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
			m = &model{}
			next.models[card.Name] = m
		}
		m.workers = append(m.workers, worker{id: in.ID, addr: in.Addr, card: card})
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
func (m *model) keepFitting(old *model) {
	checksum := m.workers[0].card.Checksum()
	if old != nil {
		had := old.workers[0].card.Checksum()
		if slices.ContainsFunc(m.workers, func(w worker) bool { return w.card.Checksum() == had }) {
			checksum = had
		}
	}
	m.workers = slices.DeleteFunc(m.workers, func(w worker) bool { return w.card.Checksum() != checksum })
}

// servedModel is one model being served.
type service struct {
	stop context.CancelFunc
	card []byte // JSON of what was registered, see cardIdentity
}

// updateServed makes the served models match models.
func (r *Relay) follow(ctx context.Context, parts *sync.WaitGroup, served map[string]*service, models map[string]*model) {
	for name, s := range served { // the order does not matter
		m := models[name]
		if m != nil && bytes.Equal(s.card, identity(m.card())) {
			continue
		}
		s.stop()
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
		served[name] = r.serve(ctx, parts, models[name].card())
	}
}

// cardIdentity is the part of a card which is fixed while its registration holds. The adapters and the
// miscounted kinds of media may change, see WatchAdapters and WatchCounts.
func identity(card engine.Card) []byte {
	card.Blocks, card.Adapters, card.Miscounted = 0, nil, nil
	b, err := engine.EncodeCard(card)
	if err != nil { // it was decoded from JSON
		return nil
	}
	return b
}

// startModel starts serving a model. A Serve that returns early is restarted.
func (r *Relay) serve(ctx context.Context, parts *sync.WaitGroup, card engine.Card) *service {
	life, stop := context.WithCancel(ctx)
	s := &service{stop: stop, card: identity(card)}
	r.serving.Add(1)
	parts.Go(func() {
		defer r.serving.Add(-1)
		card, sight := r.sighted(card)
		wait := backoff.Backoff{Least: 100 * time.Millisecond, Most: 5 * time.Second}
		for {
			err := r.deps.Serve(life, r.Engine(card, sight))
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
