package relay

import (
	"context"
	"time"

	"penstock/core/media"
	"penstock/internal/engine"
)

// Sight finds out what the media of a model's conversations are, for a relay that does so in place
// of frontends. Implementations are safe for concurrent use.
type Sight interface {
	// Preprocess makes prompts as engines of the model do, and takes requests with Shows.
	engine.Preprocessor
	// Attach returns the objects of a request with what the model's engines are to have of them besides
	// where they are: what was decoded, as the model's card says. It is no error if that cannot be
	// had, since engines can do without. release gives back what it holds; it is never nil, and is
	// called when the request is over. The objects of the request are not changed.
	Attach(ctx context.Context, objects []media.Object) (attached []media.Object, release func())
}

// sighted returns the card and the sight of an engine that relays requests for the model of a card.
func (r *Relay) sighted(card engine.Card) (engine.Card, Sight) {
	if r.deps.Sight == nil || len(card.Media) == 0 {
		return card, nil
	}
	sight := r.deps.Sight(card)
	card.Sights = sight != nil
	return card, sight
}

// attach gives the objects of a request what its engine is to have of them.
func (g *generation) attach(ctx context.Context) (release func()) {
	if g.e.sight == nil || len(g.request.Objects) == 0 {
		return func() {}
	}
	g.request.Objects, release = g.e.sight.Attach(ctx, g.request.Objects)
	return release
}

// looks reports whether a prompt is made here: that of a conversation whose media are to be found out,
// and any that no worker makes.
func (e *relayed) looks(req *engine.PreprocessRequest) bool {
	if e.sight == nil || req.Shows {
		return e.sight != nil
	}
	return !e.card.Preprocess
}

// look makes a prompt here.
func (e *relayed) look(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	began := time.Now()
	answer, err := e.sight.Preprocess(ctx, req)
	outcome := "resolved"
	switch {
	case err != nil:
		outcome = "refused"
	case answer.TextOnly != media.NoReason:
		outcome = "unresolved"
	}
	if req.Shows {
		e.r.metrics.media.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	}
	if err != nil && ctx.Err() != nil {
		err = ended(ctx)
	}
	return answer, err
}
