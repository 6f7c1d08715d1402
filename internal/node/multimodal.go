package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"penstock/core/media"
	"penstock/internal/edge/prep"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/routerproxy"
)

// newModelMediaResolver returns the media resolver of a model in a router process; nil if its media cannot be
// resolved here.
func (r *routerRole) newModelMediaResolver(card engine.Card) routerproxy.MediaResolver {
	pipe, err := r.openMediaPipeline(&card)
	if err != nil {
		r.log.Warn("what the media of a model are cannot be found out here: it is left to frontends", "model", card.Name, "error", err)
		return nil
	}
	s := &modelMediaResolver{encodeSem: r.encodeSem, log: r.log}
	s.content, _ = prep.ContentRuleOf(card.Engine)
	s.local = prep.LocalEncoder{Pipeline: pipe, Media: frontend.ResolverForCard(r.mediaResolver.resolver, undecoded(card))}
	if card.AcceptsObjects && card.MediaDecoder != nil && card.MediaDecoder.Transfer != string(resolve.TransferOff) {
		s.decoding = frontend.ResolverForCard(r.mediaResolver.resolver, &card)
	}
	r.log.Info("what the media of a model are is found out here", "model", card.Name, "family", pipe.Family.Name())
	return s
}

// openMediaPipeline opens a pipeline which makes a model's prompts of conversations with media.
func (r *routerRole) openMediaPipeline(card *engine.Card) (*prep.Pipeline, error) {
	if card.Tokenizer.Kind == engine.TokenizerOfEngine {
		return nil, errors.New("only its engines have its tokenizer: start the workers with --model-path")
	}
	pipe, err := r.openTokenizer(card.Tokenizer)
	pipe = pipe.ForServing(card.ServingSettings())
	switch {
	case err != nil:
		return nil, err
	case pipe.Template == nil:
		return nil, errors.New("it has no chat template that can be run: " + pipe.TemplateName)
	case pipe.Family == nil:
		return nil, errors.New("how its prompts show media is not known: " + pipe.NoFamilyReason)
	}
	return pipe, nil
}

// undecoded returns a model's card for the case that its engines receive no decoded media.
func undecoded(card engine.Card) *engine.Card {
	if card.MediaDecoder != nil {
		card.MediaDecoder = &engine.MediaDecoder{Transfer: string(resolve.TransferOff)}
	}
	return &card
}

// modelMediaResolver resolves the media of one model.
type modelMediaResolver struct {
	local   prep.LocalEncoder
	content prep.ContentRule // of the model's engines
	// decoding resolves media together with their decoded data; nil if engines receive none.
	decoding  prep.Resolver
	encodeSem chan struct{} // semaphore of concurrent prompt encodings
	log       *slog.Logger
}

var _ routerproxy.MediaResolver = (*modelMediaResolver)(nil)

// Preprocess implements engine.Preprocessor.
func (s *modelMediaResolver) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	p, err := s.makePrompt(ctx, req)
	if err != nil {
		return nil, err
	}
	defer p.Free()
	return &engine.Preprocessed{
		Attempt: req.Attempt, Tokens: p.Tokens, Media: p.Media, Objects: identitiesOf(p.Objects), TextOnly: p.TextOnlyReason, TextOnlyError: p.TextOnlyError, FailureKind: p.FailureKind,
	}, nil
}

// makePrompt makes a prompt. A semaphore limits the concurrent encoding of text; waiting for media does not
// hold it.
func (s *modelMediaResolver) makePrompt(ctx context.Context, req *engine.PreprocessRequest) (prep.Prompt, error) {
	var p prep.Prompt
	var chat *prep.Chat
	err := s.runLimited(ctx, func() (err error) {
		if len(req.Chat) == 0 {
			p, err = s.local.EncodeText(ctx, req.Text, prep.EncodeOptions{ParseSpecial: req.ParseSpecial, AddSpecial: req.AddSpecial})
			return err
		}
		if chat, err = prep.DecodeChat(req.Chat); err != nil {
			return err
		}
		chat.Content = s.content
		p.Tokens, err = s.local.Pipeline.EncodeChat(nil, chat)
		return err
	})
	if err != nil || chat == nil {
		return p, err
	}
	return s.local.CompletePrompt(ctx, chat, p.Tokens)
}

// runLimited calls do while it holds the semaphore.
func (s *modelMediaResolver) runLimited(ctx context.Context, do func() error) error {
	select {
	case s.encodeSem <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.encodeSem }()
	return do()
}

// identitiesOf returns copies of objects with only their kinds, keys, identities and sizes.
func identitiesOf(objects []media.Object) []media.Object {
	all := make([]media.Object, len(objects))
	for i := range objects {
		o := &objects[i]
		all[i] = media.Object{Kind: o.Kind, Key: o.Key, Identity: o.Identity, Size: o.Size}
	}
	return all
}

// Attach implements routerproxy.MediaResolver. It attaches all decoded objects or none: an engine that fetches one of them
// may fetch the others.
func (s *modelMediaResolver) Attach(ctx context.Context, objects []media.Object) ([]media.Object, func()) {
	none := func() {}
	if s.decoding == nil || !slices.ContainsFunc(objects, lacksTensor) {
		return objects, none
	}
	chat := &prep.Chat{Media: make([]prep.Media, len(objects))}
	for i := range objects {
		o := &objects[i]
		chat.Media[i] = prep.Media{Kind: o.Kind, URL: o.Source, Part: o.Part, Param: o.Part}
	}
	decoded, release, err := s.decoding.Resolve(ctx, chat, s.local.Pipeline.Family)
	if err != nil {
		s.log.DebugContext(ctx, "the media of a request are left to its engine", "error", err)
		return objects, none
	}
	with := slices.Clone(objects)
	for i := range with {
		// A URL may have other content by now. For an identity which the client gave, that cannot be checked.
		if lacksTensor(with[i]) && (with[i].Identity == "" || with[i].Key == decoded[i].Key) {
			with[i].Tensor = decoded[i].Tensor
		}
	}
	return frontend.TrimObjects(with), release
}

// lacksTensor reports whether an object comes without its decoded data.
func lacksTensor(o media.Object) bool { return o.Tensor.IsZero() && o.Source != "" }
