package engines

import (
	"context"

	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/embregion"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
	"penstock/internal/engine/tiny"
	"penstock/internal/obs"
)

// Local is what every engine of this process implements.
type Local interface {
	engine.Engine
	engine.KVSource
	engine.LoadSource
}

// LocalModel is a model which the engines of this process serve.
type LocalModel struct {
	// Engines serve requests, and Encoders encode media for other workers. There is at least one of the two.
	Engines  []Local
	Encoders []*tiny.RowEncoder
	Pipe     *prep.Pipeline
}

// Card returns the model's card.
func (m *LocalModel) Card() engine.Card { return m.OfWorkers()[0].Card() }

// OfWorkers returns the engines of all workers, in the order of their roles.
func (m *LocalModel) OfWorkers() []engine.Engine {
	var all []engine.Engine
	for _, e := range m.Engines {
		all = append(all, WithPrompts(e, m.Pipe))
	}
	for _, e := range m.Encoders {
		all = append(all, e)
	}
	return all
}

// EncoderStats returns the sum of the figures of all media encoders; zeros if there are none.
func (m *LocalModel) EncoderStats() (sum engine.EncoderStats) {
	for i, e := range m.Engines {
		switch e := e.(type) {
		case *tiny.Engine: // all have the same encoders
			if i == 0 {
				sum = e.EncoderStats()
			}
		case *sim.Engine:
			sum.Add(e.EncoderStats())
		}
	}
	for _, e := range m.Encoders {
		sum.Add(e.EncoderStats())
	}
	return sum
}

// EncodeStats returns the figures of the machines of all media encoders, each with its encoders: one of the engines which
// serve requests, and one of each encode worker.
func (m *LocalModel) EncodeStats() (all []engine.EncodeStats) {
	if len(m.Engines) > 0 {
		if e, ok := m.Engines[0].(*tiny.Engine); ok && e.Card().Encoder != "" {
			all = append(all, e.EncodeStats())
		}
	}
	for _, e := range m.Encoders {
		all = append(all, e.EncodeStats())
	}
	return all
}

// EmbeddingSource returns the embedding cache of the engine of a worker, by its place in OfWorkers; nil if it has none.
// The engines which serve requests share theirs.
func (m *LocalModel) EmbeddingSource(of int) engine.EmbeddingSource {
	if of >= len(m.Engines) {
		return m.Encoders[of-len(m.Engines)].EmbeddingSource()
	}
	if e, ok := m.Engines[of].(*tiny.Engine); ok {
		return e.EmbeddingSource()
	}
	return nil
}

// Region returns where other workers of the host read the embedding cache of a worker, by its place in OfWorkers; nil if
// they cannot.
func (m *LocalModel) Region(of int) *embregion.Owner {
	if of >= len(m.Engines) {
		return m.Encoders[of-len(m.Engines)].Region()
	}
	if e, ok := m.Engines[of].(*tiny.Engine); ok {
		return e.Region()
	}
	return nil
}

// RowHolder returns the engines which serve requests as a source of rows for other workers; nil if they keep none.
func (m *LocalModel) RowHolder() engine.RowHolder {
	if len(m.Engines) > 0 {
		if e, ok := m.Engines[0].(*tiny.Engine); ok && e.EmbeddingSource() != nil {
			return e
		}
	}
	return nil
}

// MediaSources are where engines get media which do not travel with requests, or their rows. The zero value has
// none.
type MediaSources struct {
	Files tiny.Files     // by URL
	Fetch tiny.FetchFunc // from processes which lend them
	// Remote has them encoded elsewhere.
	Remote tiny.RemoteEncoders
	// Region makes what lets other workers of the host read an embedding cache, and Shared reads theirs; nil is none.
	Region func() *embregion.Owner
	Shared tiny.SharedRows
	// Tiers keep what embedding caches evict from memory; nil is none.
	Tiers tiny.RowTiers
	// Tracer has a span for each object which is encoded; nil has none.
	Tracer *obs.Tracer
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
		m.Engines, m.Encoders, err = openTiny(ctx, cfg, pipe, engine.TokenizerRef(ref), sources)
	}
	return m, err
}

// Count is how many engines run in this process.
func Count(cfg *config.Loaded) int { return len(cfg.WorkerRoles()) }
