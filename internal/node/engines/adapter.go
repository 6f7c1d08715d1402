package engines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/engine/llamacpp"
	"penstock/internal/engine/python"
	"penstock/internal/engine/remote"
	"penstock/internal/engine/sglang"
	"penstock/internal/engine/trtllm"
	"penstock/internal/engine/vllm"
)

// AdapterOpener opens the adapter of one data-parallel rank of an engine.
type AdapterOpener func(ctx context.Context, of *config.RemoteEngine, rank, ranks int, key string, m *RemoteModel, log *slog.Logger) (engine.Engine, error)

// openTimeout bounds the opening of one rank of an engine that answers.
const openTimeout = 30 * time.Second

// CountRanks returns the number of data-parallel ranks of an engine, from its settings and its own report.
func CountRanks(of *config.RemoteEngine, found Facts) (int, error) {
	if of.Ranks > 0 && found.ranks > 0 && of.Ranks != found.ranks {
		return 0, fmt.Errorf("ranks=%d, and the engine says that it has %d data-parallel ranks: correct it, or leave it out", of.Ranks, found.ranks)
	}
	return max(1, of.Ranks, found.ranks), nil
}

// open opens all ranks of an engine that has answered.
func (e *remoteEngine) open(ctx context.Context, key string, found Facts) (*openedEngine, error) {
	m, err := ResolveModel(&e.spec, found, e.set.cfg.Settings)
	if err != nil {
		return nil, err
	}
	o := &openedEngine{tokenizer: m.From}
	ranks, err := CountRanks(&e.spec, found)
	if err != nil {
		return nil, err
	}
	for rank := range ranks {
		eng, err := e.set.cfg.OpenAdapter(ctx, &e.spec, rank, ranks, key, &m, e.log)
		if err != nil {
			return nil, markTransient(err)
		}
		o.ranks = append(o.ranks, eng)
	}
	first := o.ranks[0]
	if e.spec.Name != "" || e.spec.Kind == config.EngineLlamaCpp {
		// An engine's own name for a renamed model is often a path on its host: engines of one model differ
		// in it, and no client should depend on it.
		o.aliases = []string{}
	}
	if first.Card().Tokenizer.Kind == engine.TokenizerOfEngine {
		m.pipe, o.tokenizer = nil, engine.TokenizerOfEngine // it takes no tokens: one of its warnings says so
	}
	if text := m.noteText(); text != "" && first.Card().Role.TakesRequests() {
		o.notes = append(o.notes, text)
	}
	o.textRouted = m.pipe != nil && m.pipe.Family == nil && !m.enginePrompts
	if m.pipe != nil {
		e.set.keepPipeline(m.own)
		o.chat = m.pipe.Template != nil
	} else if p, ok := first.(engine.PassthroughEngine); ok {
		o.chat = slices.Contains(p.PassthroughPaths(), "/v1/chat/completions")
	}
	// All ranks have one tokenizer: the first check makes the request, and the others wait for it.
	var once sync.Once
	var wrong error
	o.check = func(ctx context.Context) error {
		once.Do(func() {
			var note string
			if note, wrong = CheckTokenizer(ctx, first, &m, e.log); note != "" {
				o.notes = append(o.notes, note)
			}
		})
		return wrong
	}
	return o, nil
}

// markTransient marks an error which a retry may resolve: the engine answered a moment ago and now does not,
// or is too busy to be opened.
func markTransient(err error) error {
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.Deadline, fault.Overloaded:
		return fmt.Errorf("%w: %w", errEngineGone, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: it could not be opened within %v", errEngineGone, openTimeout)
	}
	return err
}

// OpenAdapter opens the adapter of the engine's kind, within openTimeout.
func OpenAdapter(ctx context.Context, of *config.RemoteEngine, rank, ranks int, key string, m *RemoteModel, log *slog.Logger) (engine.Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	f := &m.facts
	o := remote.OpenConfig{
		Spec: specOf(of, rank, ranks, key), Tokenizer: m.Ref, VocabSize: f.vocabulary, ContextLength: f.context, EOS: f.eos, Defaults: f.defaults, Log: log,
		Media: of.Media, MediaKeys: of.MediaKeys, ProcessorArgs: of.ProcessorArgs, EnginePrompts: m.enginePrompts, ProveSalts: true,
	}
	if m.pipe != nil {
		o.Family, o.NoFamilyReason = m.pipe.Family, m.pipe.NoFamilyReason
	}
	if o.Family != nil && !of.Unchecked {
		count, err := newPromptCounter(m.pipe)
		if err != nil {
			return nil, err
		}
		o.LocalPrompt = count.buildPrompt
	}
	switch of.Kind {
	case config.EngineVLLM:
		if of.ECRole == config.ECProducer {
			return vllm.OpenProducer(ctx, o)
		}
		return vllm.Open(ctx, o)
	case config.EngineSGLang:
		return sglang.Open(ctx, o)
	case config.EngineTRTLLM:
		return trtllm.Open(ctx, o)
	case config.EngineLlamaCpp:
		return llamacpp.Open(ctx, o)
	case config.EnginePython:
		return python.Open(ctx, o)
	}
	return nil, fmt.Errorf("engine %s: there is no adapter", of.Kind)
}

// specOf is an adapter's specification of one rank of an engine.
func specOf(of *config.RemoteEngine, rank, ranks int, key string) remote.Spec {
	spec := remote.Spec{
		Kind: of.Kind, URL: of.URL,
		Events: of.Events.RankEndpoint(rank), Replay: of.Replay.RankEndpoint(rank), Snapshot: of.Snapshot.RankEndpoint(rank),
		Rank: rank, Ranks: ranks, APIKey: key, Mode: remote.Mode(of.Mode), BlockSize: of.BlockSize, Name: of.Name, ECRole: remote.ECRole(of.ECRole),
		LoadTimeout: openTimeout,
	}
	if ranks == 1 {
		spec.Rank = remote.AnyRank
	}
	if of.KVConnector == config.KVConnectorNIXL {
		spec.KVConnector = engine.NIXLConnector
	}
	return spec
}

// promptCounter counts the tokens of conversations with media as frontends do, to compare them with an
// engine's counts.
type promptCounter struct{ local prep.LocalEncoder }

func newPromptCounter(pipe *prep.Pipeline) (*promptCounter, error) {
	resolver, err := resolve.New(resolve.Config{}, resolve.NewFetcherSource(nil, maxCounted), nil) // data: URIs are not fetched
	if err != nil {
		return nil, err
	}
	return &promptCounter{prep.LocalEncoder{Pipeline: pipe, Media: resolver.ResolverFor(resolve.ModelOptions{Identity: media.ByBytes})}}, nil
}

// maxCounted bounds a sample's file, in bytes.
const maxCounted = 16 << 20

// buildPrompt returns the prompt of a conversation, see [remote.Counting].
func (c *promptCounter) buildPrompt(ctx context.Context, kind media.Kind, url string) (remote.MediaPrompt, error) {
	chat := &prep.Chat{Messages: []prep.Message{{Role: "user"}}, AddGenerationPrompt: true}
	parts := []byte{'['}
	if url != "" {
		parts = prep.AppendMediaPart(parts, kind)
		const part = "messages[0].content[0]"
		chat.Media = []prep.Media{{Kind: kind, URL: url, Part: part, Param: part}}
	}
	parts = prep.AppendTextPart(parts, remote.CountingText)
	chat.Messages[0].Parts = append(parts, ']')
	p, err := c.local.EncodeChat(ctx, chat)
	if err != nil {
		return remote.MediaPrompt{}, err
	}
	defer p.Free()
	if p.TextOnlyReason != media.NoReason {
		return remote.MediaPrompt{}, p.TextOnlyError
	}
	return remote.MediaPrompt{Tokens: p.Tokens, Media: p.Media, Objects: p.Objects}, nil
}
