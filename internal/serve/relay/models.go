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

// known is the workers of the component, as discovery has them. It does not change.
type known struct {
	models     map[string]*model
	epochs     map[kv.WorkerID]uint64 // of all, also those that cannot be used
	superseded chan struct{}          // closed when there is a newer one
}

func newKnown() *known {
	return &known{models: map[string]*model{}, epochs: map[kv.WorkerID]uint64{}, superseded: make(chan struct{})}
}

// Life implements attempt.View.
func (k *known) Life(id kv.WorkerID) (epoch uint64, known bool) {
	epoch, known = k.epochs[id]
	return epoch, known
}

// Superseded implements attempt.View.
func (k *known) Superseded() <-chan struct{} { return k.superseded }

// model is one model and its workers, as discovery has them. It does not change.
type model struct {
	workers []worker
}

// worker is one registered worker.
type worker struct {
	id   kv.WorkerID
	addr string
	card engine.Card
}

// numerics returns the numerics of a worker; "" if it is not known.
func (m *model) numerics(id kv.WorkerID) string {
	for i := range m.workers {
		if m.workers[i].id == id {
			return m.workers[i].card.Numerics
		}
	}
	return ""
}

// those returns the workers whose card is such.
func (m *model) those(such func(*engine.Card) bool) []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if such(&m.workers[i].card) {
			ids = append(ids, m.workers[i].id)
		}
	}
	return ids
}

// model returns what is known of a model now; never nil.
func (r *Relay) model(name string) *model {
	if m := r.known.Load().models[name]; m != nil {
		return m
	}
	return &model{}
}

// card is the card that stands for all workers of the model: that of the first,
// with every ability that any of them has. It reuses nothing if none of them does.
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
	card.Sights = false // it is this relay's to say
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

// union returns what any of the model's workers lists, ascending.
func (m *model) union(list func(*engine.Card) []string) []string {
	var all []string
	for i := range m.workers {
		all = append(all, list(&m.workers[i].card)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Run follows discovery and serves every model that has workers, until ctx ends;
// it returns nil then, when all that it served is over. A model whose last worker
// has left is served no more, and whose card has changed is served anew.
func (r *Relay) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	defer r.throttled.Flush(context.WithoutCancel(ctx))
	served := map[string]*service{}
	defer func() {
		for _, s := range served { // they end together: the order is no matter
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

// parse returns what is known from the instances of the component. A worker whose
// card cannot be read is the router's to name.
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
	for name, m := range next.models { // each is its own affair
		m.keepFitting(old.models[name])
		if r.deps.OnModel != nil {
			r.deps.OnModel(name, m.workers[0].card.Checksum())
		}
	}
	return next
}

// keepFitting leaves out the workers whose card differs from the model's: the one
// that it had, if any of them has it, so that a newcomer never changes a model that
// is being served; else that of the first. The router names those left out.
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

// service is one model being served.
type service struct {
	stop context.CancelFunc
	card []byte // JSON of what was registered, see identity
}

// follow makes what is served follow the models.
func (r *Relay) follow(ctx context.Context, parts *sync.WaitGroup, served map[string]*service, models map[string]*model) {
	for name, s := range served { // each is its own affair
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

// identity is what of a card is the same as long as its registration holds. The adapters
// and the kinds of media that are miscounted may change, see WatchAdapters and WatchCounts.
func identity(card engine.Card) []byte {
	card.Blocks, card.Adapters, card.Miscounted = 0, nil, nil
	b, err := engine.EncodeCard(card)
	if err != nil { // it was read as one
		return nil
	}
	return b
}

// serve begins to serve a model. One that ends by itself begins again.
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
