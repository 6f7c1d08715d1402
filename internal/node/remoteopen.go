package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"penstock/core/fault"
	"penstock/core/media/family"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/engine/llamacpp"
	"penstock/internal/engine/remote"
	"penstock/internal/engine/sglang"
	"penstock/internal/engine/trtllm"
	"penstock/internal/engine/vllm"
	"penstock/internal/serve/frontend"
)

// adapterOpener opens the adapter of one data-parallel rank of an engine.
type adapter func(ctx context.Context, of *config.RemoteEngine, rank, ranks int, key string, m *remoteModel, log *slog.Logger) (engine.Engine, error)

// openTimeout bounds the opening of one rank of an engine that answers.
const openTimeout = readyTimeout

// ranksOf returns the number of data-parallel ranks of an engine, from its settings and its own report.
func ranksOf(of *config.RemoteEngine, found lookedAt) (int, error) {
	if of.Ranks > 0 && found.ranks > 0 && of.Ranks != found.ranks {
		return 0, fmt.Errorf("ranks=%d, and the engine says that it has %d data-parallel ranks: correct it, or leave it out", of.Ranks, found.ranks)
	}
	return max(1, of.Ranks, found.ranks), nil
}

// open opens all ranks of an engine that has answered.
func (e *remoteEngine) open(ctx context.Context, key string, found lookedAt) (*rankSet, error) {
	m, err := tokenizerOf(&e.of, found, e.set.p.cfg.HubCache())
	if err != nil {
		return nil, err
	}
	m.elsewhere = enginePrompts(e.set.p.cfg)
	own := m.pipe // the tokenizer's pipeline, for any kind of engine
	m.pipe = own.For(family.Serving{Loader: family.LoaderOf(e.of.Kind), ProcessorArgs: e.of.ProcessorArgs})
	o := &rankSet{tokenizer: m.from}
	ranks, err := ranksOf(&e.of, found)
	if err != nil {
		return nil, err
	}
	for rank := range ranks {
		eng, err := e.openRank(ctx, rank, ranks, key, &m)
		if err != nil {
			return nil, away(err)
		}
		o.ranks = append(o.ranks, eng)
	}
	first := o.ranks[0]
	if e.of.Name != "" || e.of.Kind == config.EngineLlamaCpp {
		// An engine's own name for a renamed model is often a path on its host: engines of one model differ
		// in it, and no client should depend on it.
		o.aliases = []string{}
	}
	if first.Card().Tokenizer.Kind == engine.TokenizerOfEngine {
		m.pipe, o.tokenizer = nil, engine.TokenizerOfEngine // it takes no tokens: one of its warnings says so
	}
	if text := m.text(); text != "" {
		o.notes = append(o.notes, text)
	}
	o.blind = m.pipe != nil && m.pipe.Family == nil && !m.elsewhere
	if m.pipe != nil {
		e.set.keep(own)
		o.chat = m.pipe.Template != nil
	} else if p, ok := first.(engine.Passer); ok {
		o.chat = slices.Contains(p.Passes(), "/v1/chat/completions")
	}
	// All ranks have one tokenizer: the first check makes the request, and the others wait for it.
	var once sync.Once
	var wrong error
	o.check = func(ctx context.Context) error {
		once.Do(func() {
			var note string
			if note, wrong = checkTokenizer(ctx, first, &m, e.log); note != "" {
				o.notes = append(o.notes, note)
			}
		})
		return wrong
	}
	return o, nil
}

// usesEnginePrompts reports whether frontends with these settings let engines make their prompts.
func enginePrompts(cfg *config.Loaded) bool {
	return frontend.Preprocess(cfg.Preprocess) == frontend.PreprocessEngine
}

// openRank opens one of the ranks.
func (e *remoteEngine) openRank(ctx context.Context, rank, ranks int, key string, m *remoteModel) (engine.Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return e.set.adapt(ctx, &e.of, rank, ranks, key, m, e.log)
}

// markTransient marks an error which a retry may resolve: the engine answered a moment ago and now does not,
// or is too busy to be opened.
func away(err error) error {
	switch fault.Of(err) {
	case fault.Unavailable, fault.Deadline, fault.Overloaded:
		return fmt.Errorf("%w: %w", errAway, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: it could not be opened within %v", errAway, openTimeout)
	}
	return err
}

// openAdapter opens the adapter of the engine's kind.
func adaptTo(ctx context.Context, of *config.RemoteEngine, rank, ranks int, key string, m *remoteModel, log *slog.Logger) (engine.Engine, error) {
	f := &m.facts
	o := remote.Opening{
		Spec: specOf(of, rank, ranks, key), Tokenizer: m.ref, VocabSize: f.vocabulary, ContextLength: f.context, EOS: f.eos, Defaults: f.defaults, Log: log,
		Media: of.Media, MediaKeys: of.MediaKeys, ProcessorArgs: of.ProcessorArgs, EnginePrompts: m.elsewhere, ProveSalts: true,
	}
	if m.pipe != nil {
		o.Family, o.NoFamily = m.pipe.Family, m.pipe.NoFamily
	}
	if o.Family != nil && !of.Unchecked {
		count, err := newCounter(m.pipe)
		if err != nil {
			return nil, err
		}
		o.CountHere = count.prompt
	}
	switch of.Kind {
	case config.EngineVLLM:
		return vllm.Open(ctx, o)
	case config.EngineSGLang:
		return sglang.Open(ctx, o)
	case config.EngineTRTLLM:
		return trtllm.Open(ctx, o)
	case config.EngineLlamaCpp:
		return llamacpp.Open(ctx, o)
	}
	return nil, fmt.Errorf("engine %s: there is no adapter", of.Kind)
}

// specOf is an adapter's specification of one rank of an engine.
func specOf(of *config.RemoteEngine, rank, ranks int, key string) remote.Spec {
	spec := remote.Spec{
		Kind: of.Kind, URL: of.URL,
		Events: of.Events.Rank(rank), Replay: of.Replay.Rank(rank), Snapshot: of.Snapshot.Rank(rank),
		Rank: rank, Ranks: ranks, APIKey: key, Mode: remote.Mode(of.Mode), BlockSize: of.BlockSize, Name: of.Name,
		Patience: openTimeout,
	}
	if ranks == 1 {
		spec.Rank = remote.AnyRank
	}
	return spec
}
