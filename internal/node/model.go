package node

import (
	"context"

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
