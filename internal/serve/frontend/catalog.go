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
type modelCatalog struct {
	accepts       func(*disco.Instance) bool // whether requests may go to an instance
	openTokenizer func(engine.TokenizerRef) (*prep.Pipeline, error)
	// encoder returns the prompt encoder of a model.
	encoder func(*servedModel) prep.Encoder
	// onModel, if not nil, is called with the reference checksum of every model.
	onModel func(model, checksum string)
	metrics *metrics
	log     *slog.Logger
	current atomic.Pointer[catalogSnapshot]
	loaded  chan struct{} // closed when snap first reflects the registry

	// Owned by run.
	pipelines  map[pipelineKey]*prep.Pipeline
	complaints map[string]string // the last complaint about each subject, to log it once
}

type catalogSnapshot struct {
	models    []*servedModel // by name
	byName    map[string]*servedModel
	instances []registeredWorker // all registered ones, by id
	// hasOpaque says that some of the models are opaque, see servedModel.isOpaque.
	hasOpaque bool
	// superseded is closed when there is a newer snapshot.
	superseded chan struct{}
}

func newCatalogSnapshot() *catalogSnapshot {
	return &catalogSnapshot{byName: map[string]*servedModel{}, superseded: make(chan struct{})}
}

// WorkerEpoch implements dispatch.View.
func (s *catalogSnapshot) WorkerEpoch(id kv.WorkerID) (epoch uint64, known bool) {
	i, ok := slices.BinarySearchFunc(s.instances, id, func(in registeredWorker, id kv.WorkerID) int { return cmp.Compare(in.ID, id) })
	if !ok {
		return 0, false
	}
	return s.instances[i].Epoch, true
}

// Superseded implements dispatch.View.
func (s *catalogSnapshot) Superseded() <-chan struct{} { return s.superseded }

// servedModel is one served model. Its card is the card of its reference instance: the card it had
// before, else the card of the instance with the lowest id.
type servedModel struct {
	card engine.Card
	// adapter is the model's LoRA adapter, "" if it is none. parent is then the base model; the card is
	// the parent's under the adapter's name.
	adapter, parent string
	pipeline        *prep.Pipeline     // nil if it cannot be opened
	encoder         prep.Encoder       // makes its prompts; nil if nothing can
	format          outputFormat       // its format of tool calls and reasoning
	firstSeen       time.Time          // when this frontend first saw it
	workers         []registeredWorker // workers that requests may go to; none if all were removed
	metrics         *modelMetrics
	unfitWorkers    []kv.WorkerID // workers that serve the name with a different card
}

// registeredWorker is one registered worker.
type registeredWorker struct {
	disco.Instance
	card        engine.Card
	unfitReason string // why nothing is sent to it; "" if nothing is wrong
}

func newModelCatalog(takes func(*disco.Instance) bool, open func(engine.TokenizerRef) (*prep.Pipeline, error), encoder func(*servedModel) prep.Encoder, m *metrics, log *slog.Logger) *modelCatalog {
	c := &modelCatalog{
		accepts:       takes,
		openTokenizer: open,
		encoder:       encoder,
		metrics:       m,
		log:           log,
		loaded:        make(chan struct{}),
		pipelines:     map[pipelineKey]*prep.Pipeline{},
		complaints:    map[string]string{},
	}
	c.current.Store(newCatalogSnapshot())
	return c
}

// run updates the catalog until ctx ends. Opening a tokenizer is slow and may fail for a while: the
// watch never waits for it, and the latest set wins.
func (c *modelCatalog) run(ctx context.Context, registry disco.Registry) {
	sets := make(chan []disco.Instance, 1)
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { c.watchRegistry(ctx, registry, sets) })
	retry := time.NewTicker(retryOpen)
	defer retry.Stop()
	first := sync.OnceFunc(func() { close(c.loaded) })
	var set []disco.Instance
	for {
		select {
		case set = <-sets:
			c.update(set)
			first()
		case <-retry.C:
			if c.hasUnopened() {
				c.update(set)
			}
		case <-ctx.Done():
			return
		}
	}
}

// watchRegistry puts the latest set of instances into sets, which has room for one. A registry that
// fails is asked again; until it answers, the known set stays in force.
func (c *modelCatalog) watchRegistry(ctx context.Context, registry disco.Registry, sets chan []disco.Instance) {
	for {
		err := registry.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
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
		if backoff.SleepContext(ctx, retryWatch) != nil {
			return
		}
	}
}

func (c *modelCatalog) hasUnopened() bool {
	return slices.ContainsFunc(c.current.Load().models, func(m *servedModel) bool { return m.pipeline == nil && !m.isOpaque() })
}

// update makes the snapshot of a set of instances.
func (c *modelCatalog) update(set []disco.Instance) {
	next := newCatalogSnapshot()
	byName := map[string][]registeredWorker{}
	var order []string
	for _, in := range set {
		if !c.accepts(&in) {
			continue
		}
		card, err := engine.DecodeCard(in.Meta)
		i := registeredWorker{Instance: in, card: card}
		if err != nil {
			i.unfitReason = "its model card cannot be read"
			c.logComplaint(fmt.Sprint("card of ", in.ID), err.Error(), slog.Uint64("worker", uint64(in.ID)))
			next.instances = append(next.instances, i)
			continue
		}
		if byName[card.Name] == nil {
			order = append(order, card.Name)
		}
		byName[card.Name] = append(byName[card.Name], i)
	}
	old := c.current.Load()
	for _, name := range order {
		was := old.byName[name]
		if was != nil && (was.card.Name != name || was.adapter != "") {
			was = nil // the name was an alias or an adapter
		}
		next.models = append(next.models, c.newModel(was, byName[name]))
		next.instances = append(next.instances, byName[name]...)
	}
	next.keepLost(old)
	next.buildNames()
	c.addAdapters(next, old)
	next.hasOpaque = slices.ContainsFunc(next.models, (*servedModel).isOpaque)
	c.metrics.followModels(next, old)
	c.current.Store(next)
	if c.onModel != nil {
		for _, name := range order {
			c.onModel(name, next.byName[name].card.Checksum())
		}
	}
	close(old.superseded)
	maps.DeleteFunc(c.pipelines, func(_ pipelineKey, p *prep.Pipeline) bool {
		return !slices.ContainsFunc(next.models, func(m *servedModel) bool { return m.pipeline == p })
	})
}

// newModel makes one model from its instances, at least one, and marks the instances that differ from
// the reference.
func (c *modelCatalog) newModel(old *servedModel, ins []registeredWorker) *servedModel {
	m := &servedModel{card: referenceCard(old, ins), firstSeen: time.Now()}
	if old != nil {
		m.firstSeen = old.firstSeen
	}
	var err error
	if m.isOpaque() {
		// There is nothing to open.
	} else if m.pipeline, err = c.openPipeline(m.card); err == nil {
		m.format = outputFormatOf(&m.card, m.pipeline)
		if err := m.format.check(); err != nil {
			c.logComplaint("parsers of "+m.card.Name, err.Error(), slog.String("model", m.card.Name))
			m.format = outputFormat{}
		}
		if m.format.doubt != "" {
			c.logComplaint("calls of "+m.card.Name, "how it writes calls is not sure: "+m.format.doubt+
				"; requests with tools are refused: start its workers with --tool-call-parser NAME, or none", slog.String("model", m.card.Name))
		}
	}
	for i := range ins {
		in := &ins[i]
		if in.unfitReason = in.card.DescribeDifference(&m.card); in.unfitReason != "" {
			m.unfitWorkers = append(m.unfitWorkers, in.ID)
			c.logComplaint(fmt.Sprint("fit of ", in.ID), in.unfitReason, slog.Uint64("worker", uint64(in.ID)), slog.String("model", m.card.Name))
			continue
		}
		m.workers = append(m.workers, *in)
	}
	m.card.MiscountedMedia = m.miscountedKinds()
	m.encoder = c.encoder(m)
	c.logLimits(m, err)
	return m
}

// logLimits logs what the model cannot be asked for because of its tokenizer or its template, and the
// remedy; cause is why the tokenizer cannot be opened.
func (c *modelCatalog) logLimits(m *servedModel, cause error) {
	name := m.card.Name
	asks := usesEngines(m.encoder)
	remedy := ""
	if m.makesPrompts() && !asks {
		remedy = "; its engines make prompts: start the frontend with --preprocess engine"
	}
	switch {
	case m.isOpaque():
		if !slices.ContainsFunc(m.workers, func(in registeredWorker) bool { return len(in.card.PassthroughPaths) > 0 }) {
			c.logComplaint("passes of "+name, "only its engines have its tokenizer, and none takes requests as their clients wrote them: it cannot be asked", slog.String("model", name))
		}
	case cause != nil:
		c.logComplaint("tokenizer of "+name, "tokenizer: "+cause.Error()+"; without it no tokens become text here"+remedy, slog.String("model", name))
	case asks && !m.makesPrompts():
		c.logComplaint("prompts of "+name, "no engine of it makes prompts: start the frontend with --preprocess local", slog.String("model", name))
	case !asks && m.pipeline.Template == nil:
		c.logComplaint("template of "+name, "template: "+m.pipeline.TemplateName+"; chat completions are refused, completions are served"+remedy, slog.String("model", name))
	}
}

// referenceCard picks the card that the model's instances are compared with. It prefers the old one, so
// that a new worker never changes a model that is being served.
func referenceCard(old *servedModel, ins []registeredWorker) engine.Card {
	if old != nil {
		for _, in := range ins {
			if isSameModel(&in.card, &old.card) {
				return in.card
			}
		}
	}
	return ins[0].card
}

// isSameModel reports whether two cards describe one model.
func isSameModel(a, b *engine.Card) bool {
	_, _, _, differ := a.FirstDifference(b)
	return !differ
}

// pipelineKey identifies a pipeline: its tokenizer, and how its engines count media.
type pipelineKey struct {
	ref engine.TokenizerRef
	as  family.Serving
}

// openPipeline returns the pipeline of a card's tokenizer, or why it cannot be opened.
func (c *modelCatalog) openPipeline(card engine.Card) (*prep.Pipeline, error) {
	ref := card.Tokenizer
	key := pipelineKey{ref, card.ServingSettings()}
	if p := c.pipelines[key]; p != nil {
		return p, nil
	}
	p, err := c.openTokenizer(ref)
	if err == nil && ref.Digest != "" && p.Digest != "" && ref.Digest != p.Digest {
		err = errors.New("its files are not those that the workers have: the digests differ")
	}
	if err != nil {
		return nil, err
	}
	c.log.Info("tokenizer opened", "model", card.Name, "kind", ref.Kind, "template", p.TemplateName)
	p = p.ForServing(key.as)
	c.pipelines[key] = p
	return p, nil
}

// logComplaint logs what is wrong with a subject, once until it changes.
func (c *modelCatalog) logComplaint(subject, what string, args ...any) {
	if c.complaints[subject] == what {
		return
	}
	if len(c.complaints) >= maxLost {
		clear(c.complaints)
	}
	c.complaints[subject] = what
	c.log.Warn("a worker or its model cannot be used as it is", append(args, "reason", what)...)
}

// keepLost keeps the models which lost their last worker, so that requests for them fail as unavailable
// and not as unknown.
func (s *catalogSnapshot) keepLost(old *catalogSnapshot) {
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
		gone.workers, gone.unfitWorkers = nil, nil
		s.models = append(s.models, &gone)
	}
}

// buildNames sorts the snapshot and builds its names. A model's own name takes precedence over
// another's alias, and a served model over a lost one.
func (s *catalogSnapshot) buildNames() {
	slices.SortFunc(s.models, func(a, b *servedModel) int { return strings.Compare(a.card.Name, b.card.Name) })
	slices.SortFunc(s.instances, func(a, b registeredWorker) int { return cmp.Compare(a.ID, b.ID) })
	for _, m := range s.models {
		s.byName[m.card.Name] = m
	}
	for _, m := range s.models {
		for _, alias := range m.card.Aliases {
			if have := s.byName[alias]; have == nil || len(have.workers) == 0 && have.card.Name != alias {
				s.byName[alias] = m
			}
		}
	}
}

// addAdapters adds the adapters of the models as models of their own, on the workers that serve them.
// The name of another model or alias cannot be an adapter; if two models have an adapter of one name,
// the first model's counts.
func (c *modelCatalog) addAdapters(next, old *catalogSnapshot) {
	var all []*servedModel
	for _, parent := range next.models {
		if parent.adapter != "" {
			continue // it is lost, with its model
		}
		for _, name := range parent.adapterNames() {
			if have := next.byName[name]; have != nil && len(have.workers) > 0 {
				if have.parent != parent.card.Name {
					c.logComplaint("adapter "+name+" of "+parent.card.Name, "its name is that of another model, alias or adapter", slog.String("model", parent.card.Name), slog.String("adapter", name))
				}
				continue
			}
			m := parent.newAdapter(name)
			if was := old.byName[name]; was != nil && was.parent == m.parent {
				m.firstSeen = was.firstSeen
			}
			m.encoder = c.encoder(m)
			next.byName[name] = m
			all = append(all, m)
		}
	}
	// An adapter that was lost and is served again must not appear twice.
	next.models = slices.DeleteFunc(next.models, func(m *servedModel) bool { return m.adapter != "" && next.byName[m.adapter] != m })
	next.models = append(next.models, all...)
	slices.SortFunc(next.models, func(a, b *servedModel) int { return strings.Compare(a.card.Name, b.card.Name) })
}

// adapterNames returns the adapters that the model's workers serve, ascending.
func (m *servedModel) adapterNames() []string {
	var names []string
	for i := range m.workers {
		names = append(names, m.workers[i].card.Adapters...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// newAdapter returns the model of one of m's adapters, without an encoder.
func (m *servedModel) newAdapter(name string) *servedModel {
	a := &servedModel{card: m.card, adapter: name, parent: m.card.Name, pipeline: m.pipeline, format: m.format, firstSeen: time.Now(), unfitWorkers: m.unfitWorkers}
	a.card.Name, a.card.Aliases, a.card.Adapters = name, nil, nil
	for _, in := range m.workers {
		if in.card.ServesAdapter(name) {
			a.workers = append(a.workers, in)
		}
	}
	return a
}

// isServable reports whether requests can be served.
func (m *servedModel) isServable() bool {
	return (m.pipeline != nil || m.isOpaque()) && len(m.workers) > 0
}

// isOpaque reports whether only the engines have the tokenizer: requests and answers are then passed
// through unchanged.
func (m *servedModel) isOpaque() bool { return m.card.Tokenizer.Kind == engine.TokenizerOfEngine }

// passesThrough reports whether an engine of the model takes passthrough requests of a path.
func (m *servedModel) passesThrough(path string) bool {
	return len(m.withoutPath(path)) < len(m.workers)
}

// withoutPath returns the workers whose engines do not take passthrough requests of a path.
func (m *servedModel) withoutPath(path string) []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !slices.Contains(m.workers[i].card.PassthroughPaths, path) {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// numericsOf returns the numerics of a worker of the model; "" if unknown.
func (m *servedModel) numericsOf(id kv.WorkerID) string {
	for i := range m.workers {
		if m.workers[i].ID == id {
			return m.workers[i].card.Numerics
		}
	}
	return ""
}

// withoutEmbeddings returns the workers whose engines make no embeddings.
func (m *servedModel) withoutEmbeddings() []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !m.workers[i].card.Embeddings {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// withoutGuides returns the workers whose engines do not support structured output.
func (m *servedModel) withoutGuides() []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !m.workers[i].card.StructuredOutput {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// miscountedKinds returns the kinds of media for which an engine of the model makes other tokens than
// are counted here, ascending. Prompts are made for all engines, so one is enough.
func (m *servedModel) miscountedKinds() []string {
	var kinds []string
	for i := range m.workers {
		kinds = append(kinds, m.workers[i].card.MiscountedMedia...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// withoutFeatures returns the workers whose engines accept no processed media features.
func (m *servedModel) withoutFeatures() []kv.WorkerID {
	var ids []kv.WorkerID
	for i := range m.workers {
		if !m.workers[i].card.Features {
			ids = append(ids, m.workers[i].ID)
		}
	}
	return ids
}

// makesPrompts reports whether an engine of the model makes prompts.
func (m *servedModel) makesPrompts() bool {
	return slices.ContainsFunc(m.workers, func(in registeredWorker) bool { return in.card.Preprocess })
}

// findDecodable returns the model that a client names, for a request whose tokens must become text. The
// error lists the existing models.
func (c *modelCatalog) findDecodable(name string) (*servedModel, error) {
	m, err := c.findServed(name)
	if err == nil && m.isOpaque() {
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, so that no tokens become text here: start the frontend with --model-path, or send what the engines take themselves", m.card.Name)
	}
	if err == nil && m.pipeline == nil {
		return nil, fault.New(fault.Unavailable, "the tokenizer of the model '%s' cannot be opened here, so that no tokens can become text: the frontend's log says why", m.card.Name)
	}
	return m, err
}

// findEncodable returns the model that a client names, for a request that only needs the tokens of a
// text.
func (c *modelCatalog) findEncodable(name string) (*servedModel, error) {
	m, err := c.findServed(name)
	if err == nil && m.isOpaque() && m.encoder == nil {
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, and none of them makes tokens of texts for others", m.card.Name)
	}
	if err == nil && m.encoder == nil {
		remedy := ""
		if m.makesPrompts() {
			remedy = ", and with --preprocess engine its engines make the tokens"
		}
		return nil, fault.New(fault.Unavailable, "the tokenizer of the model '%s' cannot be opened here: the frontend's log says why%s", m.card.Name, remedy)
	}
	return m, err
}

// findServed returns the model of a name, if it has workers.
func (c *modelCatalog) findServed(name string) (*servedModel, error) {
	s := c.current.Load()
	m := s.byName[name]
	switch {
	case m == nil:
		return nil, s.unknownModel(name)
	case len(m.workers) == 0:
		return nil, fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", m.card.Name)
	}
	return m, nil
}

// currentModel returns the latest state of a model that was found earlier.
func (c *modelCatalog) currentModel(m *servedModel) *servedModel {
	// Usually nothing has changed, and comparing cards is slower than many other steps of a request.
	if now := c.current.Load().byName[m.card.Name]; now != nil && now != m && isSameModel(&m.card, &now.card) {
		return now
	}
	return m
}

// unknownModel is the error for a name that no model has. A frontend without any model cannot tell: its
// fleet may be starting.
func (s *catalogSnapshot) unknownModel(name string) error {
	if len(s.models) == 0 {
		return fault.New(fault.Unavailable, "no model is being served yet: try again when a worker is there")
	}
	const some = 8
	var have []string
	for _, m := range s.models {
		if m.isServable() {
			have = append(have, "'"+m.card.Name+"'")
		}
	}
	list := "no model can be served now"
	if n := len(have); n > some {
		list = "available: " + strings.Join(have[:some], ", ") + fmt.Sprintf(" and %d more (GET /v1/models)", n-some)
	} else if n > 0 {
		list = "available: " + strings.Join(have, ", ")
	}
	e := fault.New(fault.NotFound, "the model '%s' does not exist; %s", shorten(name), list)
	e.Param = "model"
	return e
}

// isSameModel returns the snapshot's model with the name of m; nil if there is none, or if only one of
// the two is an adapter or their base models differ.
func (s *catalogSnapshot) sameModel(m *servedModel) *servedModel {
	now := s.byName[m.card.Name]
	if now == nil || now.card.Name != m.card.Name || now.adapter != m.adapter || now.parent != m.parent {
		return nil
	}
	return now
}

// shorten bounds a client's string for use in a message.
func shorten(s string) string {
	const limit = 128
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// listModels returns the served names: models, then aliases.
func (s *catalogSnapshot) listModels() []openai.Model {
	var out []openai.Model
	for _, m := range s.models {
		if m.isServable() {
			out = append(out, m.apiModel(m.card.Name))
		}
	}
	for _, m := range s.models {
		for _, alias := range m.card.Aliases {
			if m.isServable() && s.byName[alias] == m && alias != m.card.Name {
				out = append(out, m.apiModel(alias))
			}
		}
	}
	return out
}

func (m *servedModel) apiModel(id string) openai.Model {
	return openai.Model{ID: id, Root: m.card.Name, Parent: m.parent, Created: m.firstSeen.Unix(), ContextLength: m.card.ContextLength}
}
