package node

import (
	"context"

	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
	"penstock/internal/serve/frontend"
)

// fullEngine is the built-in engine with the tokenizer and the template of its
// checkpoint, as engines of other makes have theirs.
type fullEngine struct {
	*tiny.Engine
	local prep.Local
}

var (
	_ engine.Engine       = fullEngine{}
	_ engine.KVSource     = fullEngine{}
	_ engine.LoadSource   = fullEngine{}
	_ engine.Embedder     = fullEngine{}
	_ engine.Preprocessor = fullEngine{}
)

// withPrompts returns the engine with the ability to make prompts, if its pipeline
// can make those of conversations too: it is the frontend's own pipeline, and an
// engine that can do no more must not be named as the way out.
func withPrompts(e *tiny.Engine, pipe *prep.Pipeline) engine.Engine {
	if pipe.Template == nil {
		return e
	}
	return fullEngine{Engine: e, local: prep.Local{Pipeline: pipe}}
}

// Preprocess implements engine.Preprocessor.
func (e fullEngine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	p, err := e.prompt(ctx, req)
	if err != nil {
		return nil, err
	}
	return &engine.Preprocessed{Attempt: req.Attempt, Tokens: p.Tokens, Media: p.Media}, nil
}

func (e fullEngine) prompt(ctx context.Context, req *engine.PreprocessRequest) (prep.Prompt, error) {
	if len(req.Chat) == 0 {
		return e.local.EncodeText(ctx, req.Text, prep.EncodeOptions{ParseSpecial: req.ParseSpecial, AddSpecial: req.AddSpecial})
	}
	c, err := prep.DecodeChat(req.Chat)
	if err != nil {
		return prep.Prompt{}, err
	}
	return e.local.EncodeChat(ctx, c)
}

// prompts makes the router's prompts with the frontend, which needs the router
// first. Nothing asks before both are made.
type prompts struct{ frontend *frontend.Frontend }

// Prompt implements router.Prompter.
func (p *prompts) Prompt(ctx context.Context, q *api.Request) (prep.Prompt, error) {
	return p.frontend.Prompt(ctx, q)
}
