package routerproxy

import (
	"context"
	"time"

	"penstock/core/media"
	"penstock/internal/engine"
)

// MediaResolver resolves the media of a model's conversations, for a proxy that does so in place of
// frontends. Implementations are safe for concurrent use.
type MediaResolver interface {
	// Preprocess makes prompts as engines of the model do, and takes requests with Shows.
	engine.Preprocessor
	// Attach returns the objects of a request with the additional data that the model's engines need:
	// decoded media, as the model's card says. Missing data is no error, because engines can do
	// without. release frees what it holds; it is never nil, and is called when the request ends. The
	// objects of the request are not changed.
	Attach(ctx context.Context, objects []media.Object) (attached []media.Object, release func())
}

// withResolver returns the card and the media resolver of the engine for the model of a card.
func (r *Proxy) withResolver(card engine.Card) (engine.Card, MediaResolver) {
	if r.deps.MediaResolver == nil || len(card.Media) == 0 {
		return card, nil
	}
	sight := r.deps.MediaResolver(card)
	card.ResolvesMedia = sight != nil
	return card, sight
}

// attachMedia attaches the data that the engine needs to the objects of a request.
func (e *proxyEngine) attachMedia(ctx context.Context, req *engine.Request) (release func()) {
	if e.resolver == nil || len(req.Objects) == 0 {
		return func() {}
	}
	req.Objects, release = e.resolver.Attach(ctx, req.Objects)
	return release
}

// preprocessesHere reports whether the prompt is made here: the prompts of conversations whose media
// must be resolved, and all prompts if no worker makes them.
func (e *proxyEngine) preprocessesHere(req *engine.PreprocessRequest) bool {
	if e.resolver == nil || req.ResolveMedia {
		return e.resolver != nil
	}
	return !e.card.Preprocess
}

// preprocessHere makes a prompt here.
func (e *proxyEngine) preprocessHere(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	began := time.Now()
	answer, err := e.resolver.Preprocess(ctx, req)
	outcome := "resolved"
	switch {
	case err != nil:
		outcome = "refused"
	case answer.TextOnly != media.NoReason:
		outcome = "unresolved"
	}
	if req.ResolveMedia {
		e.proxy.metrics.media.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	}
	if err != nil && ctx.Err() != nil {
		err = contextError(ctx)
	}
	return answer, err
}
