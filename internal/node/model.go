package node

import (
	"context"
	"fmt"

	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
)

// localEngine is what every engine of this process implements.
type localEngine interface {
	engine.Engine
	engine.KVSource
	engine.LoadSource
}

// modelResult is a served model, or the error that prevents it.
type modelResult struct {
	engines []localEngine // at least one
	pipe    *prep.Pipeline
	err     error
}

func (m *modelResult) modelCard() engine.Card { return m.engines[0].Card() }

// openModel makes the engines of all workers and the pipeline of their model, unless ctx ends first. files is
// the source of the engines' media; nil for none.
func openModel(ctx context.Context, cfg *config.Loaded, files tiny.Files) *modelResult {
	ref := chat.Ref{Kind: "builtin"}
	if cfg.Engine.ModelPath != "" {
		ref = chat.Ref{Kind: "dir", Dir: cfg.Engine.ModelPath}
	}
	pipe, err := chat.Open(ref)
	if err != nil {
		return &modelResult{err: err}
	}
	ref.Digest = pipe.Digest
	engines, err := openEngines(ctx, cfg, pipe, engine.TokenizerRef(ref), files)
	return &modelResult{engines: engines, pipe: pipe, err: err}
}

// openEngines makes the engines of all workers of this process.
func openEngines(ctx context.Context, cfg *config.Loaded, pipe *prep.Pipeline, ref engine.TokenizerRef, files tiny.Files) ([]localEngine, error) {
	if cfg.EngineKind() == config.EngineSim {
		return openSimEngines(cfg, pipe, ref)
	}
	return openTinyEngines(ctx, cfg, pipe, ref, files)
}

// engineCount is how many engines run in this process.
func engineCount(cfg *config.Loaded) int {
	if cfg.Command == config.Up {
		return cfg.Engine.Workers
	}
	return 1
}

// openTokenizer opens the pipeline of a model's tokenizer: that of this process's engines, the built-in one,
// the files which the worker names or, if they are elsewhere on this machine, the files of model-path.
func (p *process) openTokenizer(ref engine.TokenizerRef) (*prep.Pipeline, error) {
	if p.model != nil && ref.Digest == p.model.pipe.Digest {
		return p.model.pipe, nil
	}
	if p.remoteEngines != nil && ref.Digest != "" {
		if pipe := p.remoteEngines.pipeline(ref.Digest); pipe != nil {
			return pipe, nil
		}
	}
	pipe, err := chat.Open(chat.Ref(ref))
	if err == nil || ref.Kind != "dir" {
		return pipe, err
	}
	if p.cfg.Engine.ModelPath == "" || p.cfg.Engine.ModelPath == ref.Dir {
		return nil, fmt.Errorf("%w; if the checkpoint is elsewhere on this machine, name its directory with --model-path", err)
	}
	ref.Dir = p.cfg.Engine.ModelPath
	return chat.Open(chat.Ref(ref))
}
