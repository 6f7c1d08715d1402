package node

import (
	"context"
	"fmt"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
)

// modelResult is a served model, or why there is none.
type modelResult struct {
	engines []*tiny.Engine // at least one, sharing their weights
	pipe    *prep.Pipeline
	err     error
}

func (m *modelResult) card() engine.Card { return m.engines[0].Card() }

// openModel makes the engines of all workers and the pipeline of their model,
// unless ctx ends first.
func openModel(ctx context.Context, cfg *config.Loaded) *modelResult {
	ref := chat.Ref{Kind: "builtin"}
	if cfg.ModelPath != "" {
		ref = chat.Ref{Kind: "dir", Dir: cfg.ModelPath}
	}
	pipe, err := chat.Open(ref)
	if err != nil {
		return &modelResult{err: err}
	}
	tc := tiny.Config{
		ModelPath:   cfg.ModelPath,
		Tokenizer:   engine.TokenizerRef{Kind: ref.Kind, Dir: ref.Dir, Digest: pipe.Digest},
		BlockSize:   cfg.KVCacheBlockSize,
		Blocks:      cfg.Blocks(),
		MaxSeqs:     cfg.MaxNumSeqs,
		TokenBudget: cfg.TokenBudget(),
		MaxWaiting:  cfg.MaxWaiting,
		Text:        tokenText(pipe.Tokenizer),
		MemoryLimit: memory(),
	}
	if len(cfg.ServedModelName) > 0 {
		tc.Name, tc.Aliases = cfg.ServedModelName[0], cfg.ServedModelName[1:]
	}
	if cfg.ModelPath == "" {
		tc.Vocabulary, err = builtinVocabulary()
		if err != nil {
			return &modelResult{err: err}
		}
	}
	count := 1
	if cfg.Command == config.Up {
		count = cfg.Workers
	}
	engines, err := tiny.NewReplicas(ctx, tc, count)
	if err != nil {
		return &modelResult{err: explainMemory(err)}
	}
	if need, have := pipe.Tokenizer.VocabSize(), engines[0].Card().VocabSize; need > have {
		return &modelResult{err: fmt.Errorf("model %s: its tokenizer has ids up to %d and the network %d embeddings; the files are not of one checkpoint", engines[0].Card().Name, need-1, have)}
	}
	return &modelResult{engines: engines, pipe: pipe}
}

func builtinVocabulary() (tiny.Vocabulary, error) {
	t, err := token.Builtin()
	if err != nil {
		return tiny.Vocabulary{}, err
	}
	v := tiny.Vocabulary{Size: t.VocabSize(), Mask: t.MaskedIDs()}
	if eos, ok := t.EOS(); ok {
		v.EOS = []kv.Token{eos}
	}
	return v, nil
}

// openTokenizer opens the pipeline of a model's tokenizer: that of the engines of
// this process, the built-in one, or the files that the worker names or, where
// they are elsewhere here, those of model-path.
func (p *process) openTokenizer(ref engine.TokenizerRef) (*prep.Pipeline, error) {
	if p.model != nil && ref.Digest == p.model.pipe.Digest {
		return p.model.pipe, nil
	}
	pipe, err := chat.Open(chat.Ref(ref))
	if err == nil || ref.Kind != "dir" {
		return pipe, err
	}
	if p.cfg.ModelPath == "" || p.cfg.ModelPath == ref.Dir {
		return nil, fmt.Errorf("%w; if the checkpoint is elsewhere on this machine, name its directory with --model-path", err)
	}
	ref.Dir = p.cfg.ModelPath
	return chat.Open(chat.Ref(ref))
}
