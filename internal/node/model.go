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

// localModel is a model which the engines of this process serve.
type localModel struct {
	Engines []localEngine // at least one
	Pipe    *prep.Pipeline
}

// Card returns the model's card.
func (m *localModel) Card() engine.Card { return m.Engines[0].Card() }

// openLocal makes the engines of all workers and the pipeline of their model, unless ctx ends first. files is
// the source of the engines' media; nil for none.
func openLocal(ctx context.Context, cfg *config.Loaded, files tiny.Files) (*localModel, error) {
	ref := chat.Ref{Kind: "builtin"}
	if cfg.Engine.ModelPath != "" {
		ref = chat.Ref{Kind: "dir", Dir: cfg.Engine.ModelPath}
	}
	pipe, err := chat.Open(ref)
	if err != nil {
		return nil, err
	}
	ref.Digest = pipe.Digest
	m := &localModel{Pipe: pipe}
	if cfg.EngineKind() == config.EngineSim {
		m.Engines, err = openSimEngines(cfg, pipe, engine.TokenizerRef(ref))
	} else {
		m.Engines, err = openTinyEngines(ctx, cfg, pipe, engine.TokenizerRef(ref), files)
	}
	return m, err
}

// engineCount is how many engines run in this process.
func engineCount(cfg *config.Loaded) int {
	if cfg.Command == config.Up {
		return cfg.Engine.Workers
	}
	return 1
}
