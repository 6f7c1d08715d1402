package mimictest

import (
	"context"

	"penstock/internal/engine"
)

// Adapter is what the adapters of engines that are servers have in common.
type Adapter interface {
	engine.Engine
	engine.KVSource
	engine.LoadSource
	engine.WarningSource
	engine.AdapterSource
	engine.Passer
}

// Unguided returns e, whose engine is a simulator, for the suite of engines: a simulator holds answers to no
// schema, whatever the server that it imitates would do. It is a Preprocessor if e is one.
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
