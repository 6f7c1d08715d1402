package frontend

import (
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
	"penstock/core/media/family"
	"penstock/internal/catalog"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

const (
	retryOpen     = 30 * time.Second // between attempts to open a tokenizer that failed
	maxComplaints = 1024             // complaints that are remembered
)

// modelCatalog adds to the models of the catalog what a frontend needs to serve them, as a sequence of
// immutable snapshots. One goroutine, in run, makes them; any goroutine may read the latest.
type modelCatalog struct {
	workers       *catalog.Catalog
	openTokenizer func(engine.TokenizerRef) (*prep.Pipeline, error)
	// encoder returns the prompt encoder of a model.
	encoder func(*servedModel) prep.Encoder
	metrics *metrics
	log     *slog.Logger
	current atomic.Pointer[catalogSnapshot]
	loaded  chan struct{} // closed when current first reflects the registry

	// Owned by run.
	pipelines  map[pipelineKey]*prep.Pipeline
	complaints map[string]string // the last complaint about each subject, to log it once
}

// catalogSnapshot is what a frontend serves of a snapshot of the catalog. The catalog may have a newer one
// already: opening a tokenizer is slow.
type catalogSnapshot struct {
	*catalog.Snapshot
	served map[*catalog.Model]*servedModel // of Models
	// hasOpaque says that some of the models are opaque, see servedModel.isOpaque.
	hasOpaque bool
}

// model returns the model of a name, an alias or an adapter; nil if there is none.
func (s *catalogSnapshot) model(name string) *servedModel { return s.served[s.Find(name)] }

// servedModel is one served model.
type servedModel struct {
	*catalog.Model
	pipeline *prep.Pipeline // nil if it cannot be opened
	encoder  prep.Encoder   // makes its prompts; nil if nothing can
	format   outputFormat   // its format of tool calls and reasoning
	metrics  *modelMetrics
}

func newModelCatalog(workers *catalog.Catalog, open func(engine.TokenizerRef) (*prep.Pipeline, error), encoder func(*servedModel) prep.Encoder, m *metrics, log *slog.Logger) *modelCatalog {
	c := &modelCatalog{
		workers:       workers,
		openTokenizer: open,
		encoder:       encoder,
		metrics:       m,
		log:           log,
		loaded:        make(chan struct{}),
		pipelines:     map[pipelineKey]*prep.Pipeline{},
		complaints:    map[string]string{},
	}
	c.current.Store(&catalogSnapshot{Snapshot: catalog.NewSnapshot()})
	return c
}

// run follows the catalog until ctx ends. The latest snapshot wins.
func (c *modelCatalog) run(ctx context.Context) {
	retry := time.NewTicker(retryOpen)
	defer retry.Stop()
	first := sync.OnceFunc(func() { close(c.loaded) })
	select {
	case <-c.workers.Loaded():
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		s := c.workers.Current()
		c.update(s)
		first()
		select {
		case <-s.Superseded():
		case <-retry.C:
		case <-ctx.Done():
		}
	}
}

// update serves the models of a snapshot.
func (c *modelCatalog) update(s *catalog.Snapshot) {
	next := &catalogSnapshot{Snapshot: s, served: map[*catalog.Model]*servedModel{}}
	for _, adapters := range []bool{false, true} { // an adapter takes over what its model has opened
		for _, m := range s.Models {
			if (m.Parent != "") == adapters {
				next.served[m] = c.newModel(m, next)
				next.hasOpaque = next.hasOpaque || next.served[m].isOpaque()
			}
		}
	}
	c.metrics.followModels(next, c.current.Load())
	c.current.Store(next)
	inUse := map[*prep.Pipeline]bool{}
	for _, m := range next.served {
		inUse[m.pipeline] = true
	}
	maps.DeleteFunc(c.pipelines, func(_ pipelineKey, p *prep.Pipeline) bool { return !inUse[p] })
}

// newModel returns what serves a model of a snapshot.
func (c *modelCatalog) newModel(of *catalog.Model, next *catalogSnapshot) *servedModel {
	m := &servedModel{Model: of}
	if parent := next.model(of.Parent); of.Parent != "" && parent != nil {
		m.pipeline, m.format = parent.pipeline, parent.format
		m.encoder = c.encoder(m)
		return m
	}
	var err error
	switch {
	case m.isOpaque(): // there is nothing to open
	case len(m.Workers) == 0: // no request needs it; its workers may come back
		m.pipeline = c.pipelines[keyOf(&m.Card)]
	default:
		m.pipeline, err = c.openPipeline(&m.Card)
	}
	if m.pipeline != nil {
		m.format = outputFormatOf(&m.Card, m.pipeline)
		if err := m.format.check(); err != nil {
			c.logComplaint("parsers of "+m.Card.Name, err.Error(), slog.String("model", m.Card.Name))
			m.format = outputFormat{}
		}
		if m.format.doubt != "" {
			c.logComplaint("calls of "+m.Card.Name, "how it writes calls is not sure: "+m.format.doubt+
				"; requests with tools are refused: start its workers with --tool-call-parser NAME, or none", slog.String("model", m.Card.Name))
		}
	}
	m.encoder = c.encoder(m)
	if len(m.Workers) > 0 {
		c.logLimits(m, err)
	}
	return m
}

// logLimits logs what the model cannot be asked for because of its tokenizer or its template, and the
// remedy; cause is why the tokenizer cannot be opened.
func (c *modelCatalog) logLimits(m *servedModel, cause error) {
	name := m.Card.Name
	asks := usesEngines(m.encoder)
	remedy := ""
	if m.MakesPrompts() && !asks {
		remedy = "; its engines make prompts: start the frontend with --preprocess engine"
	}
	switch {
	case m.isOpaque():
		if !m.HasWorker(func(c *engine.Card) bool { return len(c.PassthroughPaths) > 0 }) {
			c.logComplaint("passes of "+name, "only its engines have its tokenizer, and none takes requests as their clients wrote them: it cannot be asked", slog.String("model", name))
		}
	case cause != nil:
		c.logComplaint("tokenizer of "+name, "tokenizer: "+cause.Error()+"; without it no tokens become text here"+remedy, slog.String("model", name))
	case asks && !m.MakesPrompts():
		c.logComplaint("prompts of "+name, "no engine of it makes prompts: start the frontend with --preprocess local", slog.String("model", name))
	case !asks && m.pipeline.Template == nil:
		c.logComplaint("template of "+name, "template: "+m.pipeline.TemplateName+"; chat completions are refused, completions are served"+remedy, slog.String("model", name))
	}
}

// pipelineKey identifies a pipeline: its tokenizer, and how its engines count media.
type pipelineKey struct {
	ref engine.TokenizerRef
	as  family.Serving
}

func keyOf(card *engine.Card) pipelineKey { return pipelineKey{card.Tokenizer, card.ServingSettings()} }

// openPipeline returns the pipeline of a card's tokenizer, or why it cannot be opened.
func (c *modelCatalog) openPipeline(card *engine.Card) (*prep.Pipeline, error) {
	ref, key := card.Tokenizer, keyOf(card)
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
	if len(c.complaints) >= maxComplaints {
		clear(c.complaints)
	}
	c.complaints[subject] = what
	c.log.Warn("a model cannot be used as it is", append(args, "reason", what)...)
}

// isServable reports whether requests can be served.
func (m *servedModel) isServable() bool {
	return (m.pipeline != nil || m.isOpaque()) && len(m.Workers) > 0
}

// isOpaque reports whether only the engines have the tokenizer: requests and answers are then passed
// through unchanged.
func (m *servedModel) isOpaque() bool { return m.Card.Tokenizer.Kind == engine.TokenizerOfEngine }

// passesThrough reports whether an engine of the model takes passthrough requests of a path.
func (m *servedModel) passesThrough(path string) bool {
	return m.HasWorker(func(c *engine.Card) bool { return slices.Contains(c.PassthroughPaths, path) })
}

// adapterName is the model's name if it is a LoRA adapter, else "".
func (m *servedModel) adapterName() string {
	if m.Parent == "" {
		return ""
	}
	return m.Card.Name
}

// findDecodable returns the model that a client names, for a request whose tokens must become text. The
// error lists the existing models.
func (c *modelCatalog) findDecodable(name string) (*servedModel, error) {
	m, err := c.findServed(name)
	if err == nil && m.isOpaque() {
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, so that no tokens become text here: start the frontend with --model-path, or send what the engines take themselves", m.Card.Name)
	}
	if err == nil && m.pipeline == nil {
		return nil, fault.New(fault.Unavailable, "the tokenizer of the model '%s' cannot be opened here, so that no tokens can become text: the frontend's log says why", m.Card.Name)
	}
	return m, err
}

// findEncodable returns the model that a client names, for a request that only needs the tokens of a
// text.
func (c *modelCatalog) findEncodable(name string) (*servedModel, error) {
	m, err := c.findServed(name)
	if err == nil && m.isOpaque() && m.encoder == nil {
		return nil, fault.New(fault.Unimplemented, "only the engines of the model '%s' have its tokenizer, and none of them makes tokens of texts for others", m.Card.Name)
	}
	if err == nil && m.encoder == nil {
		remedy := ""
		if m.MakesPrompts() {
			remedy = ", and with --preprocess engine its engines make the tokens"
		}
		return nil, fault.New(fault.Unavailable, "the tokenizer of the model '%s' cannot be opened here: the frontend's log says why%s", m.Card.Name, remedy)
	}
	return m, err
}

// findServed returns the model of a name, if it has workers.
func (c *modelCatalog) findServed(name string) (*servedModel, error) {
	s := c.current.Load()
	m := s.model(name)
	switch {
	case m == nil:
		return nil, s.unknownModel(name)
	case len(m.Workers) == 0:
		return nil, fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", m.Card.Name)
	}
	return m, nil
}

// currentModel returns the latest workers of a model that was found earlier.
func (c *modelCatalog) currentModel(m *servedModel) *catalog.Model {
	return c.workers.Current().Refresh(m.Model)
}

// unknownModel is the error for a name that no model has. A frontend without any model cannot tell: its
// fleet may be starting.
func (s *catalogSnapshot) unknownModel(name string) error {
	if len(s.Models) == 0 {
		return fault.New(fault.Unavailable, "no model is being served yet: try again when a worker is there")
	}
	const some = 8
	var have []string
	for _, m := range s.Models {
		if s.served[m].isServable() {
			have = append(have, "'"+m.Card.Name+"'")
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
	for _, m := range s.Models {
		if s.served[m].isServable() {
			out = append(out, apiModel(m, m.Card.Name))
		}
	}
	for _, m := range s.Models {
		if !s.served[m].isServable() {
			continue
		}
		for _, alias := range s.AliasesOf(m) {
			out = append(out, apiModel(m, alias))
		}
	}
	return out
}

func apiModel(m *catalog.Model, id string) openai.Model {
	return openai.Model{ID: id, Root: m.Card.Name, Parent: m.Parent, Created: m.FirstSeen.Unix(), ContextLength: m.Card.ContextLength}
}
