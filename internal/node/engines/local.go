package engines

import (
	"context"

	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
)

// Local is what every engine of this process implements.
type Local interface {
	engine.Engine
	engine.KVSource
	engine.LoadSource
}

// LocalModel is a model which the engines of this process serve.
type LocalModel struct {
	Engines []Local // at least one
	Pipe    *prep.Pipeline
}

// Card returns the model's card.
func (m *LocalModel) Card() engine.Card { return m.Engines[0].Card() }

// EncoderStats returns the figures of the engines' media encoders, which they share; zeros if they have none.
func (m *LocalModel) EncoderStats() tiny.EncoderStats {
	if len(m.Engines) > 0 {
		if e, ok := m.Engines[0].(*tiny.Engine); ok {
			return e.EncoderStats()
		}
	}
	return tiny.EncoderStats{}
}

// MediaSources are where engines get media which do not travel with requests. The zero value has none.
type MediaSources struct {
	Files tiny.Files     // by URL
	Fetch tiny.FetchFunc // from processes which lend them
}

// OpenLocal makes the engines of all workers and the pipeline of their model, unless ctx ends first.
func OpenLocal(ctx context.Context, cfg *config.Loaded, sources MediaSources) (*LocalModel, error) {
	ref := chat.Ref{Kind: "builtin"}
	if cfg.Engine.ModelPath != "" {
		ref = chat.Ref{Kind: "dir", Dir: cfg.Engine.ModelPath}
	}
	pipe, err := chat.Open(ref)
	if err != nil {
		return nil, err
	}
	ref.Digest = pipe.Digest
	m := &LocalModel{Pipe: pipe}
	if cfg.EngineKind() == config.EngineSim {
		m.Engines, err = OpenSim(cfg, pipe, engine.TokenizerRef(ref))
	} else {
		m.Engines, err = openTiny(ctx, cfg, pipe, engine.TokenizerRef(ref), sources)
	}
	return m, err
}

// Count is how many engines run in this process.
func Count(cfg *config.Loaded) int { return len(cfg.WorkerRoles()) }
