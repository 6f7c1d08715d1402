package mimictest

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
	engine.Passer
}

// WithoutGrammar returns e without structured output, for the engine test suite: a simulator does not
// constrain its output to a schema, whatever engine it mocks. The result is a Preprocessor if e is one.
func Unguided(e Adapter) engine.Engine {
	u := unguided{e}
	if p, ok := e.(engine.Preprocessor); ok {
		return struct {
			unguided
			engine.Preprocessor
		}{u, p}
	}
	return u
}

type unguided struct{ Adapter }

// Card implements engine.Engine.
func (u unguided) Card() engine.Card {
	card := u.Adapter.Card()
	card.Guided = false
	return card
}

// Generate implements engine.Engine.
func (u unguided) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if req.Guide != nil {
		return engine.RefuseGuide()
	}
	return u.Adapter.Generate(ctx, req, sink)
}
