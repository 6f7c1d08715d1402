package enginemocktest

import (
	"context"

	"penstock/internal/engine"
)

// Adapter is the common interface of the remote engines' adapters.
type Adapter interface {
	engine.Engine
	engine.KVSource
	engine.LoadSource
	engine.WarningSource
	engine.AdapterSource
	engine.PassthroughEngine
}

// WithoutGrammar returns e without structured output, for the engine test suite: a simulator does not
// constrain its output to a schema, whatever engine it mocks. The result is a Preprocessor if e is one.
func WithoutGrammar(e Adapter) engine.Engine {
	u := withoutGrammar{e}
	if p, ok := e.(engine.Preprocessor); ok {
		return struct {
			withoutGrammar
			engine.Preprocessor
		}{u, p}
	}
	return u
}

type withoutGrammar struct{ Adapter }

// Card implements engine.Engine.
func (u withoutGrammar) Card() engine.Card {
	card := u.Adapter.Card()
	card.StructuredOutput = false
	return card
}

// Generate implements engine.Engine.
func (u withoutGrammar) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if req.OutputSchema != nil {
		return engine.RefuseSchema()
	}
	return u.Adapter.Generate(ctx, req, sink)
}
