package frontend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/internal/backoff"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

const (
	retryOpen = 30 * time.Second // between attempts to open a tokenizer that failed
	maxLost   = 1024             // models without workers that are kept

	retryWatch = 5 * time.Second // before the registry is watched again
)

// modelCatalog holds what the registered workers serve, as a sequence of immutable snapshots. One
// goroutine, in run, makes them; any goroutine may read the latest.
type catalog struct {
	takes func(*disco.Instance) bool // whether requests may go to an instance
	open  func(engine.TokenizerRef) (*prep.Pipeline, error)
	// encoder returns the prompt encoder of a model.
	encoder func(*model) prep.Encoder
	// onModel, if not nil, is called with the reference checksum of every model.
	refer   func(model, checksum string)
	metrics *metrics
	log     *slog.Logger
	snap    atomic.Pointer[snapshot]
	seen    chan struct{} // closed when snap first reflects the registry

	// Owned by run.
	pipes map[pipeKey]*prep.Pipeline
	said  map[string]string // the last complaint about each subject, to log it once
}

type snapshot struct {
	models    []*model // by name
	names     map[string]*model
	instances []instance // all registered ones, by id
	// hasOpaque says that some of the models are opaque, see servedModel.isOpaque.
	opaque bool
	// superseded is closed when there is a newer snapshot.
	superseded chan struct{}
}

func newSnapshot() *snapshot {
	return &snapshot{names: map[string]*model{}, superseded: make(chan struct{})}
}

// WorkerEpoch implements dispatch.View.
func (s *snapshot) Life(id kv.WorkerID) (epoch uint64, known bool) {
	i, ok := slices.BinarySearchFunc(s.instances, id, func(in instance, id kv.WorkerID) int { return cmp.Compare(in.ID, id) })
	if !ok {
		return 0, false
	}
	return s.instances[i].Epoch, true
}

// Superseded implements dispatch.View.
func (s *snapshot) Superseded() <-chan struct{} { return s.superseded }

// servedModel is one served model. Its card is the card of its reference instance: the card it had
// before, else the card of the instance with the lowest id.
type model struct {
	card engine.Card
	// adapter is the model's LoRA adapter, "" if it is none. parent is then the base model; the card is
	// the parent's under the adapter's name.
	adapter, parent string
	pipe            *prep.Pipeline // nil if it cannot be opened
	encoder         prep.Encoder   // makes its prompts; nil if nothing can
	manner          manner         // its format of tool calls and reasoning
	created         time.Time      // when this frontend first saw it
	workers         []instance     // workers that requests may go to; none if all were removed
	metrics         *modelMetrics
	unfit           []kv.WorkerID // workers that serve the name with a different card
}

// registeredWorker is one registered worker.
type instance struct {
	disco.Instance
	card engine.Card
	bad  string // why nothing is sent to it; "" if nothing is wrong
}

func newCatalog(takes func(*disco.Instance) bool, open func(engine.TokenizerRef) (*prep.Pipeline, error), encoder func(*model) prep.Encoder, m *metrics, log *slog.Logger) *catalog {
	c := &catalog{
		takes:   takes,
		open:    open,
		encoder: encoder,
		metrics: m,
		log:     log,
		seen:    make(chan struct{}),
		pipes:   map[pipeKey]*prep.Pipeline{},
		said:    map[string]string{},
	}
	c.snap.Store(newSnapshot())
	return c
}

// run updates the catalog until ctx ends. Opening a tokenizer is slow and may fail for a while: the
// watch never waits for it, and the latest set wins.
func (c *catalog) run(ctx context.Context, registry disco.Registry) {
	sets := make(chan []disco.Instance, 1)
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { c.watch(ctx, registry, sets) })
	retry := time.NewTicker(retryOpen)
	defer retry.Stop()
	first := sync.OnceFunc(func() { close(c.seen) })
	var set []disco.Instance
	for {
		select {
		case set = <-sets:
			c.update(set)
			first()
		case <-retry.C:
			if c.anyClosed() {
				c.update(set)
			}
		case <-ctx.Done():
			return
		}
	}
}

// watchRegistry puts the latest set of instances into sets, which has room for one. A registry that
// fails is asked again; until it answers, the known set stays in force.
func (c *catalog) watch(ctx context.Context, registry disco.Registry, sets chan []disco.Instance) {
	for {
		err := registry.Watch(ctx, disco.Worker, func(set []disco.Instance) {
			select {
			case <-sets: // superseded
			default:
			}
			sets <- set // this is the only sender, so there is room
		})
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("the watch of workers ended; it begins again", "error", err, "after", retryWatch)
		if backoff.Pause(ctx, retryWatch) != nil {
			return
		}
	}
}

func (c *catalog) anyClosed() bool {
	return slices.ContainsFunc(c.snap.Load().models, func(m *model) bool { return m.pipe == nil && !m.opaque() })
}

// update makes the snapshot of a set of instances.
func (c *catalog) update(set []disco.Instance) {
	next := newSnapshot()
	byName := map[string][]instance{}
	var order []string
	for _, in := range set {
		if !c.takes(&in) {
			continue
		}
		card, err := engine.DecodeCard(in.Meta)
		i := instance{Instance: in, card: card}
		if err != nil {
			i.bad = "its model card cannot be read"
			c.complain(fmt.Sprint("card of ", in.ID), err.Error(), slog.Uint64("worker", uint64(in.ID)))
			next.instances = append(next.instances, i)
			continue
		}
		if byName[card.Name] == nil {
			order = append(order, card.Name)
		}
		byName[card.Name] = append(byName[card.Name], i)
	}
	old := c.snap.Load()
	for _, name := range order {
		was := old.names[name]
		if was != nil && (was.card.Name != name || was.adapter != "") {
			was = nil // the name was an alias or an adapter
		}
		next.models = append(next.models, c.model(was, byName[name]))
		next.instances = append(next.instances, byName[name]...)
	}
	next.keepLost(old)
	next.index()
	c.adapt(next, old)
	next.opaque = slices.ContainsFunc(next.models, (*model).opaque)
	c.metrics.follow(next, old)
	c.snap.Store(next)
	if c.refer != nil {
		for _, name := range order {
			c.refer(name, next.names[name].card.Checksum())
		}
	}
	close(old.superseded)
	maps.DeleteFunc(c.pipes, func(_ pipeKey, p *prep.Pipeline) bool {
		return !slices.ContainsFunc(next.models, func(m *model) bool { return m.pipe == p })
	})
}

// newModel makes one model from its instances, at least one, and marks the instances that differ from
// the reference.
func (c *catalog) model(old *model, ins []instance) *model {
	m := &model{card: reference(old, ins), created: time.Now()}
	if old != nil {
		m.created = old.created
	}
	var err error
	if m.opaque() {
		// There is nothing to open.
	} else if m.pipe, err = c.pipeline(m.card); err == nil {
		m.manner = mannerOf(&m.card, m.pipe)
		if err := m.manner.check(); err != nil {
			c.complain("parsers of "+m.card.Name, err.Error(), slog.String("model", m.card.Name))
			m.manner = manner{}
		}
		if m.manner.doubt != "" {
			c.complain("calls of "+m.card.Name, "how it writes calls is not sure: "+m.manner.doubt+
				"; requests with tools are refused: start its workers with --tool-call-parser NAME, or none", slog.String("model", m.card.Name))
		}
	}
	for i := range ins {
		in := &ins[i]
		if in.bad = in.card.DiffersFrom(&m.card); in.bad != "" {
			m.unfit = append(m.unfit, in.ID)
			c.complain(fmt.Sprint("fit of ", in.ID), in.bad, slog.Uint64("worker", uint64(in.ID)), slog.String("model", m.card.Name))
			continue
		}
		m.workers = append(m.workers, *in)
	}
	m.card.Miscounted = m.miscounted()
	m.encoder = c.encoder(m)
	c.lacks(m, err)
	return m
}

// logLimits logs what the model cannot be asked for because of its tokenizer or its template, and the
// remedy; cause is why the tokenizer cannot be opened.
func (c *catalog) lacks(m *model, cause error) {
	name := m.card.Name
	asks := asks(m.encoder)
	remedy := ""
	if m.preprocesses() && !asks {
		remedy = "; its engines make prompts: start the frontend with --preprocess engine"
	}
	switch {
	case m.opaque():
		if !slices.ContainsFunc(m.workers, func(in instance) bool { return len(in.card.Passes) > 0 }) {
			c.complain("passes of "+name, "only its engines have its tokenizer, and none takes requests as their clients wrote them: it cannot be asked", slog.String("model", name))
		}
	case cause != nil:
		c.complain("tokenizer of "+name, "tokenizer: "+cause.Error()+"; without it no tokens become text here"+remedy, slog.String("model", name))
	case asks && !m.preprocesses():
		c.complain("prompts of "+name, "no engine of it makes prompts: start the frontend with --preprocess local", slog.String("model", name))
	case !asks && m.pipe.Template == nil:
		c.complain("template of "+name, "template: "+m.pipe.TemplateName+"; chat completions are refused, completions are served"+remedy, slog.String("model", name))
	}
}

// referenceCard picks the card that the model's instances are compared with. It prefers the old one, so
// that a new worker never changes a model that is being served.
func reference(old *model, ins []instance) engine.Card {
	if old != nil {
		for _, in := range ins {
			if sameModel(&in.card, &old.card) {
				return in.card
			}
		}
	}
	return ins[0].card
}

// isSameModel reports whether two cards describe one model.
func sameModel(a, b *engine.Card) bool {
	_, _, _, differ := a.Differs(b)
	return !differ
}

// pipelineKey identifies a pipeline: its tokenizer, and how its engines count media.
type pipeKey struct {
	ref engine.TokenizerRef
	as  family.Serving
}

// openPipeline returns the pipeline of a card's tokenizer, or why it cannot be opened.
func (c *catalog) pipeline(card engine.Card) (*prep.Pipeline, error) {
	ref := card.Tokenizer
	key := pipeKey{ref, card.Serving()}
	if p := c.pipes[key]; p != nil {
		return p, nil
	}
	p, err := c.open(ref)
	if err == nil && ref.Digest != "" && p.Digest != "" && ref.Digest != p.Digest {
		err = errors.New("its files are not those that the workers have: the digests differ")
	}
	if err != nil {
		return nil, err
	}
	c.log.Info("tokenizer opened", "model", card.Name, "kind", ref.Kind, "template", p.TemplateName)
	p = p.For(key.as)
	c.pipes[key] = p
	return p, nil
}

// logComplaint logs what is wrong with a subject, once until it changes.
func (c *catalog) complain(subject, what string, args ...any) {
	if c.said[subject] == what {
		return
	}
	if len(c.said) >= maxLost {
		clear(c.said)
	}
	c.said[subject] = what
	c.log.Warn("a worker or its model cannot be used as it is", append(args, "reason", what)...)
}

// keepLost keeps the models which lost their last worker, so that requests for them fail as unavailable
// and not as unknown.
func (s *snapshot) keepLost(old *snapshot) {
	have := map[string]bool{}
	for _, m := range s.models {
		have[m.card.Name] = true
	}
	lost := 0
	for _, m := range old.models {
		if have[m.card.Name] || lost >= maxLost || have[m.parent] { // an adapter without its model was removed
			continue
		}
		lost++
		gone := *m
		gone.workers, gone.unfit = nil, nil
		s.models = append(s.models, &gone)
	}
}

// buildNames sorts the snapshot and builds its names. A model's own name takes precedence over
// another's alias, and a served model over a lost one.
func (s *snapshot) index() {
	slices.SortFunc(s.models, func(a, b *model) int { return strings.Compare(a.card.Name, b.card.Name) })
	slices.SortFunc(s.instances, func(a, b instance) int { return cmp.Compare(a.ID, b.ID) })
	for _, m := range s.models {
		s.names[m.card.Name] = m
	}
	for _, m := range s.models {
		for _, alias := range m.card.Aliases {
			if have := s.names[alias]; have == nil || len(have.workers) == 0 && have.card.Name != alias {
				s.names[alias] = m
			}
		}
	}
}

// addAdapters adds the adapters of the models as models of their own, on the workers that serve them.
// The name of another model or alias cannot be an adapter; if two models have an adapter of one name,
// the first model's counts.
func (c *catalog) adapt(next, old *snapshot) {
	var all []*model
	for _, parent := range next.models {
		if parent.adapter != "" {
			continue // it is lost, with its model
		}
		for _, name := range parent.adapters() {
			if have := next.names[name]; have != nil && len(have.workers) > 0 {
				if have.parent != parent.card.Name {
					c.complain("adapter "+name+" of "+parent.card.Name, "its name is that of another model, alias or adapter", slog.String("model", parent.card.Name), slog.String("adapter", name))
				}
				continue
			}
			m := parent.adapted(name)
			if was := old.names[name]; was != nil && was.parent == m.parent {
				m.created = was.created
			}
			m.encoder = c.encoder(m)
			next.names[name] = m
			all = append(all, m)
		}
	}
	// An adapter that was lost and is served again must not appear twice.
	next.models = slices.DeleteFunc(next.models, func(m *model) bool { return m.adapter != "" && next.names[m.adapter] != m })
	next.models = append(next.models, all...)
	slices.SortFunc(next.models, func(a, b *model) int { return strings.Compare(a.card.Name, b.card.Name) })
}

// adapterNames returns the adapters that the model's workers serve, ascending.
func (m *model) adapters() []string {
	var names []string
	for i := range m.workers {
		names = append(names, m.workers[i].card.Adapters...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// newAdapter returns the model of one of m's adapters, without an encoder.
func (m *model) adapted(name string) *model {
	a := &model{card: m.card, adapter: name, parent: m.card.Name, pipe: m.pipe, manner: m.manner, created: time.Now(), unfit: m.unfit}
	a.card.Name, a.card.Aliases, a.card.Adapters = name, nil, nil
	for _, in := range m.workers {
		if in.card.Serves(name) {
			a.workers = append(a.workers, in)
		}
	}
	return a
}

// isServable reports whether requests can be served.
func (m *model) servable() bool { return (m.pipe != nil || m.opaque()) && len(m.workers) > 0 }

// isOpaque reports whether only the engines have the tokenizer: requests and answers are then passed
// through unchanged.
func (m *model) opaque() bool { return m.card.Tokenizer.Kind == engine.TokenizerOfEngine }

// passesThrough reports whether an engine of the model takes passthrough requests of a path.
func (m *model) passes(path string) bool { return len(m.without(path)) < len(m.workers) }

// withoutPath returns the workers whose engines do not take passthrough requests of a path.
func (m *model) without(path string) []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !slices.Contains(m.workers[i].card.Passes, path) {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// numericsOf returns the numerics of a worker of the model; "" if unknown.
func (m *model) numerics(id kv.WorkerID) string {
	for i := range m.workers {
		if m.workers[i].ID == id {
			return m.workers[i].card.Numerics
		}
	}
	return ""
}

// withoutEmbeddings returns the workers whose engines make no embeddings.
func (m *model) withoutEmbeddings() []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !m.workers[i].card.Embeddings {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// withoutGuides returns the workers whose engines do not support structured output.
func (m *model) unguided() []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !m.workers[i].card.Guided {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// miscountedKinds returns the kinds of media for which an engine of the model makes other tokens than
// are counted here, ascending. Prompts are made for all engines, so one is enough.
func (m *model) miscounted() []string {
	var kinds []string
	for i := range m.workers {
		kinds = append(kinds, m.workers[i].card.Miscounted...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// withoutFeatures returns the workers whose engines accept no processed media features.
func (m *model) featureless() []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !m.workers[i].card.Features {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// makesPrompts reports whether an engine of the model makes prompts.
func (m *model) preprocesses() bool {
	return slices.ContainsFunc(m.workers, func(in instance) bool { return in.card.Preprocess })
}

// withOtherNumerics returns the workers that are known to have other numerics.
func (m *model) otherNumerics(numerics string) []kv.WorkerID {
	var ids []kv.WorkerID
	if numerics == "" {
		return nil
	}
	for i := range m.workers {
		if m.workers[i].card.Numerics != numerics {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// findDecodable returns the model that a client names, for a request whose tokens must become text. The
// error lists the existing models.
func (c *catalog) find(name string) (*model, error) {
	m, err := c.named(name)
	if err == nil && m.opaque() {
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, so that no tokens become text here: start the frontend with --model-path, or send what the engines take themselves", m.card.Name)
	}
	if err == nil && m.pipe == nil {
		return nil, fault.New(fault.Unavailable, "the tokenizer of the model '%s' cannot be opened here, so that no tokens can become text: the frontend's log says why", m.card.Name)
	}
	return m, err
}

// findEncodable returns the model that a client names, for a request that only needs the tokens of a
// text.
func (c *catalog) encodes(name string) (*model, error) {
	m, err := c.named(name)
	if err == nil && m.opaque() && m.encoder == nil {
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, and none of them makes tokens of texts for others", m.card.Name)
	}
	if err == nil && m.encoder == nil {
		remedy := ""
		if m.preprocesses() {
			remedy = ", and with --preprocess engine its engines make the tokens"
		}
		return nil, fault.New(fault.Unavailable, "the tokenizer of the model '%s' cannot be opened here: the frontend's log says why%s", m.card.Name, remedy)
	}
	return m, err
}

// findServed returns the model of a name, if it has workers.
func (c *catalog) named(name string) (*model, error) {
	s := c.snap.Load()
	m := s.names[name]
	switch {
	case m == nil:
		return nil, s.unknown(name)
	case len(m.workers) == 0:
		return nil, fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", m.card.Name)
	}
	return m, nil
}

// currentModel returns the latest state of a model that was found earlier.
func (c *catalog) current(m *model) *model {
	// Usually nothing has changed, and comparing cards is slower than many other steps of a request.
	if now := c.snap.Load().names[m.card.Name]; now != nil && now != m && sameModel(&m.card, &now.card) {
		return now
	}
	return m
}

// unknownModel is the error for a name that no model has. A frontend without any model cannot tell: its
// fleet may be starting.
func (s *snapshot) unknown(name string) error {
	if len(s.models) == 0 {
		return fault.New(fault.Unavailable, "no model is being served yet: try again when a worker is there")
	}
	const some = 8
	var have []string
	for _, m := range s.models {
		if m.servable() {
			have = append(have, "'"+m.card.Name+"'")
		}
	}
	list := "no model can be served now"
	if n := len(have); n > some {
		list = "available: " + strings.Join(have[:some], ", ") + fmt.Sprintf(" and %d more (GET /v1/models)", n-some)
	} else if n > 0 {
		list = "available: " + strings.Join(have, ", ")
	}
	e := fault.New(fault.NotFound, "the model '%s' does not exist; %s", short(name), list)
	e.Param = "model"
	return e
}

// sameModel returns the snapshot's model with the name of m; nil if there is none, or if only one of
// the two is an adapter or their base models differ.
func (s *snapshot) same(m *model) *model {
	now := s.names[m.card.Name]
	if now == nil || now.card.Name != m.card.Name || now.adapter != m.adapter || now.parent != m.parent {
		return nil
	}
	return now
}

// shorten bounds a client's string for use in a message.
func short(s string) string {
	const limit = 128
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// listModels returns the served names: models, then aliases.
func (s *snapshot) list() []openai.Model {
	var out []openai.Model
	for _, m := range s.models {
		if m.servable() {
			out = append(out, m.listed(m.card.Name))
		}
	}
	for _, m := range s.models {
		for _, alias := range m.card.Aliases {
			if m.servable() && s.names[alias] == m && alias != m.card.Name {
				out = append(out, m.listed(alias))
			}
		}
	}
	return out
}

func (m *model) listed(id string) openai.Model {
	return openai.Model{ID: id, Root: m.card.Name, Parent: m.parent, Created: m.created.Unix(), ContextLength: m.card.ContextLength}
}
