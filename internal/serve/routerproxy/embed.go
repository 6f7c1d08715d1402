package routerproxy

import (
	"context"

	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

// embeddingEngine is the part of a proxy engine whose workers make embeddings.
type embeddingEngine struct{ engine *proxyEngine }

// Embed implements engine.Embedder.
func (e embeddingEngine) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	t := &dispatch.Embedding{Request: *req}
	err := e.engine.serveRequest(ctx, callerRequest{req.ID, req.Attempt, req.Model, nil}, func(ctx context.Context, ask route.Request, first uint32) error {
		t.Route, t.Workers, t.Request.Model = ask, e.engine.latestWorkers, ask.Model
		return e.engine.proxy.dispatcher.Embed(ctx, t, first)
	})
	if err != nil {
		return nil, err
	}
	return t.Answer.Vector, nil
}

// preprocessingEngine is the part of a proxy engine that makes prompts, itself or with its workers.
type preprocessingEngine struct{ engine *proxyEngine }

// Preprocess implements engine.Preprocessor.
func (p preprocessingEngine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (answer *engine.Preprocessed, err error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	e := p.engine
	err = e.serveRequest(ctx, callerRequest{req.ID, req.Attempt, req.Model, nil}, func(ctx context.Context, _ route.Request, first uint32) (err error) {
		if e.preprocessesHere(req) {
			answer, err = e.preprocessHere(ctx, req)
			return err
		}
		t := &dispatch.Preprocessing{Request: *req, Workers: e.latestWorkers, Vocabulary: e.card.VocabSize}
		t.Request.Model = e.card.Name
		if err := e.proxy.dispatcher.Preprocess(ctx, t, first); err != nil {
			return err
		}
		answer, t.Answer.Attempt = &t.Answer, req.Attempt
		return nil
	})
	return answer, err
}
