package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"penstock/core/fault"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/llamacpp"
	"penstock/internal/engine/remote"
	"penstock/internal/engine/sglang"
	"penstock/internal/engine/trtllm"
	"penstock/internal/engine/vllm"
	"penstock/internal/serve/frontend"
)

// adapter opens what speaks with one data-parallel rank of an engine.
type adapter func(ctx context.Context, of *config.RemoteEngine, rank, ranks int, key string, m *remoteModel, log *slog.Logger) (engine.Engine, error)

// openTimeout bounds the opening of one rank of an engine that answers.
const openTimeout = readyTimeout

// ranksOf returns how many data-parallel ranks an engine has, by its settings and by itself.
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
		// What an engine calls a model that has another name is often a path where it runs: engines of one
		// model differ in it, and no client should depend on it.
		o.aliases = []string{}
	}
	if first.Card().Tokenizer.Kind == engine.TokenizerOfEngine {
		m.pipe, o.tokenizer = nil, engine.TokenizerOfEngine // it takes no tokens: one of its warnings says so
	}
	if m.note != "" {
		o.notes = append(o.notes, m.note)
	}
	if note := uncounted(first.Card().Media, m.pipe); note != "" && frontend.Preprocess(e.set.p.cfg.Preprocess) != frontend.PreprocessEngine {
		o.notes, o.blind = append(o.notes, note), true
	}
	if m.pipe != nil {
		e.set.keep(m.pipe)
		o.chat = m.pipe.Template != nil
	} else if p, ok := first.(engine.Passer); ok {
		o.chat = slices.Contains(p.Passes(), "/v1/chat/completions")
	}
	// All ranks have one tokenizer: the first that asks waits for the answer, as do the others.
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

// uncounted says what keeps requests that show media from being routed by them, if the tokenizer's
// directory does not tell how the model shows them.
func uncounted(kinds []string, pipe *prep.Pipeline) string {
	if len(kinds) == 0 || pipe == nil || pipe.Family != nil {
		return ""
	}
	return fmt.Sprintf("requests with %s are routed by their text alone: how many tokens those are in prompts of this model is not known here (%s); its config.json and preprocessor_config.json belong beside its tokenizer.json (docs/media-tokens.md)",
		strings.Join(kinds, ", "), strings.TrimPrefix(pipe.FamilyName, "none: "))
}

// openRank opens one of the ranks.
func (e *remoteEngine) openRank(ctx context.Context, rank, ranks int, key string, m *remoteModel) (engine.Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return e.set.adapt(ctx, &e.of, rank, ranks, key, m, e.log)
}

// away marks the failure of an engine that answered a moment ago and does not now, or has too much
// to do to be opened: what another attempt may change.
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

// adaptTo opens the adapter of the engine's kind.
func adaptTo(ctx context.Context, of *config.RemoteEngine, rank, ranks int, key string, m *remoteModel, log *slog.Logger) (engine.Engine, error) {
	f := &m.facts
	o := remote.Opening{
		Spec: specOf(of, rank, ranks, key), Tokenizer: m.ref, VocabSize: f.vocabulary, ContextLength: f.context, EOS: f.eos, Defaults: f.defaults, Log: log,
		Media: of.Media, MediaKeys: of.MediaKeys, ProveSalts: true,
	}
	if m.pipe != nil {
		o.Family = m.pipe.Family
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

// specOf is what an adapter is told of one rank of an engine.
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
