package engines

import (
	"context"

	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// promptEngine is an engine of this process with the tokenizer and the template of its checkpoint, as remote
// engines have theirs.
type promptEngine struct {
	Local
	local prep.LocalEncoder
}

// embeddingEngine is a promptEngine that also computes embeddings.
type embeddingEngine struct {
	promptEngine
	engine.Embedder
}

var (
	_ engine.Preprocessor = promptEngine{}
	_ engine.KVSource     = embeddingEngine{}
	_ engine.LoadSource   = embeddingEngine{}
	_ engine.Embedder     = embeddingEngine{}
	_ engine.Preprocessor = embeddingEngine{}
)

// WithPrompts adds prompt making to the engine if its pipeline can also encode conversations. It is the
// frontend's own pipeline, so an engine that can do no more must not be offered as the fallback.
func WithPrompts(e Local, pipe *prep.Pipeline) engine.Engine {
	if pipe.Template == nil {
		return e
	}
	able := promptEngine{Local: e, local: prep.LocalEncoder{Pipeline: pipe}}
	if embedder, ok := e.(engine.Embedder); ok {
		return embeddingEngine{able, embedder}
	}
	return able
}

// Started returns a channel which is closed when an engine with a slow start has started; nil for other
// engines.
func (e promptEngine) Started() <-chan struct{} {
	if s, ok := e.Local.(interface{ Started() <-chan struct{} }); ok {
		return s.Started()
	}
	return nil
}

// Preprocess implements engine.Preprocessor.
func (e promptEngine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	p, err := e.makePrompt(ctx, req)
	if err != nil {
		return nil, err
	}
	return &engine.Preprocessed{Attempt: req.Attempt, Tokens: p.Tokens, Media: p.Media}, nil
}

func (e promptEngine) makePrompt(ctx context.Context, req *engine.PreprocessRequest) (prep.Prompt, error) {
	if len(req.Chat) == 0 {
		return e.local.EncodeText(ctx, req.Text, prep.EncodeOptions{ParseSpecial: req.ParseSpecial, AddSpecial: req.AddSpecial})
	}
	c, err := prep.DecodeChat(req.Chat)
	if err != nil {
		return prep.Prompt{}, err
	}
	return e.local.EncodeChat(ctx, c)
}
