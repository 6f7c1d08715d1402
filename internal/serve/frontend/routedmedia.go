package frontend

import (
	"context"
	"errors"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// routedMediaEncoder is the encoder of a model whose router processes resolve media: they make the
// prompts of conversations with media, and this frontend looks at no media.
type routedMediaEncoder struct {
	prep.Encoder // of everything else
	routers      *engineEncoder
}

var _ prep.Encoder = routedMediaEncoder{}

// EncodeChat implements prep.Encoder.
func (s routedMediaEncoder) EncodeChat(ctx context.Context, c *prep.Chat) (prep.Prompt, error) {
	if len(c.Media) == 0 || s.routers.model.chatIsMiscounted(c) {
		return s.Encoder.EncodeChat(ctx, c)
	}
	f, began := s.routers.f, time.Now()
	asking, span := f.deps.Tracer.Start(ctx, "media")
	span.SetInt("penstock.media", int64(len(c.Media)))
	p, err := s.routers.resolveMedia(asking, c)
	span.SetText("penstock.text_only", string(p.TextOnlyReason))
	span.End(err)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		u := prep.NewUnresolvedError(media.DimensionsUnknown, "messages", "the media of the request could not be looked at within the time that there is: send smaller ones, or as data: URIs")
		p, err = prep.Prompt{TextOnlyReason: u.Reason, TextOnlyError: u.Err}, nil
	}
	f.metrics.observeResolve(began, p.TextOnlyReason, err)
	var refused *fault.Error
	if errors.As(err, &refused) && refused.Code == fault.Invalid {
		err = &prep.RefusedError{Err: refused} // what a router process refuses must not go to an engine
	}
	return p, err
}

// chatIsMiscounted reports whether one of the conversation's media is of a miscounted kind.
func (m *servedModel) chatIsMiscounted(c *prep.Chat) bool {
	return slices.ContainsFunc(c.Media, func(p prep.Media) bool { return slices.Contains(m.Card.MiscountedMedia, p.Kind.String()) })
}

// resolveMedia asks for the prompt of a conversation and its media objects.
func (r *engineEncoder) resolveMedia(ctx context.Context, c *prep.Chat) (prep.Prompt, error) {
	urls := 0 // URLs are copied but not tokenized
	for i := range c.Media {
		urls += len(c.Media[i].URL)
	}
	req := &engine.PreprocessRequest{Chat: prep.AppendChatWithMedia(nil, c), ResolveMedia: true}
	made, err := r.runRequest(ctx, req, promptCost*max(0, len(req.Chat)-urls)+3*urls)
	if err != nil {
		return prep.Prompt{}, err
	}
	p := &made.Answer
	switch {
	case p.TextOnly != media.NoReason:
		return prep.Prompt{Tokens: p.Tokens, TextOnlyReason: p.TextOnly, TextOnlyError: p.TextOnlyError, FailureKind: p.FailureKind}, nil
	case len(p.Media) != len(c.Media) || len(p.Objects) != len(c.Media):
		return prep.Prompt{}, engine.ContractError("a prompt that does not show what was sent", nil)
	}
	objects, err := restoreSources(p.Objects, c.Media)
	return prep.Prompt{Tokens: p.Tokens, Media: p.Media, Objects: objects}, err
}

// restoreSources returns the resolved objects with the sources and names that the client gave.
func restoreSources(found []media.Object, shown []prep.Media) ([]media.Object, error) {
	all := make([]media.Object, len(found))
	for i := range found {
		o, m := &found[i], &shown[i]
		if o.Kind != m.Kind {
			return nil, engine.ContractError("a media object of another kind", nil)
		}
		all[i] = media.Object{Kind: o.Kind, Key: o.Key, Identity: o.Identity, Size: o.Size, Part: m.Part, Source: m.URL, Name: m.Name}
	}
	return all, nil
}

// usesEngines reports whether an encoder asks engines for the prompts of texts.
func usesEngines(e prep.Encoder) bool {
	if s, ok := e.(routedMediaEncoder); ok {
		e = s.Encoder
	}
	_, ok := e.(*engineEncoder)
	return ok
}

// resolvesMedia reports whether the model's router processes resolve its media.
func (m *servedModel) resolvesMedia() bool {
	return m.HasWorker(func(c *engine.Card) bool { return c.ResolvesMedia })
}
