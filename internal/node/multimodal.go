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
	"penstock/internal/serve/relay"
)

// sightOf returns what finds out, in a router process, what the media of a model's conversations are;
// nil if nothing can.
func (r *routerRole) sightOf(card engine.Card) relay.Sight {
	pipe, err := r.openSeeing(card.Tokenizer)
	if err != nil {
		r.log.Warn("what the media of a model are cannot be found out here: it is left to frontends", "model", card.Name, "error", err)
		return nil
	}
	s := &modelSight{making: r.making, log: r.log}
	s.content, _ = prep.ContentRuleOf(card.Engine)
	s.local = prep.Local{Pipeline: pipe, Media: frontend.ResolverOf(r.sight.resolver, undecoded(card))}
	if card.Attaches && card.MediaDecoder != nil && card.MediaDecoder.Transfer != string(resolve.TransferOff) {
		s.decoding = frontend.ResolverOf(r.sight.resolver, &card)
	}
	r.log.Info("what the media of a model are is found out here", "model", card.Name, "family", pipe.FamilyName)
	return s
}

// openSeeing opens the pipeline of a model that makes prompts of conversations with media.
func (r *routerRole) openSeeing(ref engine.TokenizerRef) (*prep.Pipeline, error) {
	if ref.Kind == engine.TokenizerOfEngine {
		return nil, errors.New("only its engines have its tokenizer: start the workers with --model-path")
	}
	pipe, err := r.openTokenizer(ref)
	switch {
	case err != nil:
		return nil, err
	case pipe.Template == nil:
		return nil, errors.New("it has no chat template that can be run: " + pipe.TemplateName)
	case pipe.Family == nil:
		return nil, errors.New("how its prompts show media is not known: " + pipe.FamilyName)
	}
	return pipe, nil
}

// undecoded is the card of a model of whose media engines are given nothing that was decoded.
func undecoded(card engine.Card) *engine.Card {
	if card.MediaDecoder != nil {
		card.MediaDecoder = &engine.MediaDecoder{Transfer: string(resolve.TransferOff)}
	}
	return &card
}

// modelSight is the sight of one model.
type modelSight struct {
	local   prep.Local
	content prep.ContentRule // of the model's engines
	// decoding resolves media with what was decoded of them; nil if engines are given nothing of that.
	decoding prep.Resolver
	making   chan struct{} // has room for those who make prompts at once
	log      *slog.Logger
}

var _ relay.Sight = (*modelSight)(nil)

// Preprocess implements engine.Preprocessor.
func (s *modelSight) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	p, err := s.prompt(ctx, req)
	if err != nil {
		return nil, err
	}
	defer p.Free()
	return &engine.Preprocessed{
		Attempt: req.Attempt, Tokens: p.Tokens, Media: p.Media, Objects: found(p.Objects), TextOnly: p.TextOnly, Why: p.Why,
	}, nil
}

// prompt makes a prompt. Its text is computed, by a few at a time; for its media others are waited for.
func (s *modelSight) prompt(ctx context.Context, req *engine.PreprocessRequest) (prep.Prompt, error) {
	var p prep.Prompt
	var chat *prep.Chat
	err := s.turn(ctx, func() (err error) {
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
	return s.local.Complete(ctx, chat, p.Tokens)
}

// turn calls do when it is the caller's turn.
func (s *modelSight) turn(ctx context.Context, do func() error) error {
	select {
	case s.making <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.making }()
	return do()
}

// found is what others are told of objects: who they are and how large.
func found(objects []media.Object) []media.Object {
	all := make([]media.Object, len(objects))
	for i := range objects {
		o := &objects[i]
		all[i] = media.Object{Kind: o.Kind, Key: o.Key, Identity: o.Identity, Size: o.Size}
	}
	return all
}

// Attach implements relay.Sight. It is all of them or none: an engine that fetches one of them
// may fetch the others.
func (s *modelSight) Attach(ctx context.Context, objects []media.Object) ([]media.Object, func()) {
	none := func() {}
	if s.decoding == nil || !slices.ContainsFunc(objects, bare) {
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
		// A URL may show something else by now. Of what goes by its client's name nobody can tell.
		if bare(with[i]) && (with[i].Identity == "" || with[i].Key == decoded[i].Key) {
			with[i].Tensor = decoded[i].Tensor
		}
	}
	return frontend.Sent(with), release
}

// bare reports whether an object comes without what was decoded of it.
func bare(o media.Object) bool { return o.Tensor.IsZero() && o.Source != "" }
