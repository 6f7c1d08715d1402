package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// TestLentFeatures: a worker fetches features which are lent before its engine has the request. What does not come is
// refused, so that the media go in another way; a worker which fetches nothing refuses too, and its card says so.
func TestLentFeatures(t *testing.T) {
	at := engine.Lent{Place: "here", Size: 3}
	for name, c := range map[string]struct {
		fetch func(context.Context, string, int) ([]byte, error)
		want  fault.Code
	}{
		"fetched": {func(_ context.Context, place string, size int) ([]byte, error) {
			if place != at.Place || size != at.Size {
				t.Errorf("%d bytes are fetched at %s", size, place)
			}
			return []byte("abc"), nil
		}, 0},
		"lost":     {func(context.Context, string, int) ([]byte, error) { return nil, errors.New("lost") }, fault.Unimplemented},
		"no fetch": {nil, fault.Unimplemented},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			r.fetch = c.fetch
			card := servetest.ModelCard("m")
			card.Features = true
			seen := &seeingEngine{Engine: servetest.New(servetest.Config{Card: card})}
			r.start(seen)
			got, err := engine.DecodeCard(r.registry.Instances()[0].Meta)
			if err != nil || got.Fetches != (c.fetch != nil) {
				t.Errorf("%s: the card says %v, %v", name, got.Fetches, err)
			}
			req := engine.Request{
				ID: "a", Attempt: 1, Model: "m", Prompt: []kv.Token{1, 2}, Media: []kv.Media{{Hash: 1, Start: 0, End: 1}},
				Choices: 1, Stop: engine.Stop{MaxTokens: 1}, Logprobs: -1, FeaturesAt: at,
			}
			err = r.rpc.Call(t.Context(), r.registry.Instances()[0].Addr, engine.MethodGenerate, engine.AppendRequest(nil, &req), func([]byte) error { return nil })
			var f *fault.Error
			switch {
			case c.want == 0 && (err != nil || string(seen.features) != "abc" || !seen.at.IsZero()):
				t.Errorf("%s: the engine has %q and %+v, %v", name, seen.features, seen.at, err)
			case c.want != 0 && (!errors.As(err, &f) || f.Code != c.want || f.Param != engine.FeaturesParam || seen.features != nil):
				t.Errorf("%s: %v", name, err)
			}
			r.stop()
		})
	}
}

// seeingEngine keeps the features of its last request.
type seeingEngine struct {
	engine.Engine
	features []byte
	at       engine.Lent
}

func (e *seeingEngine) Generate(ctx context.Context, req *engine.Request, emit func(*engine.Delta) error) error {
	e.features, e.at = req.Features, req.FeaturesAt
	plain := *req
	plain.Features = nil
	return e.Engine.Generate(ctx, &plain, emit)
}
