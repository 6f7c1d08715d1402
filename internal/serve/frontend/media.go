package frontend

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/media/fetch"
	"penstock/internal/plane/rpc"
)

// MediaSource provides resolvers of the media of requests.
type MediaSource interface {
	ResolverFor(resolve.ModelOptions) prep.Resolver
	// CheckURLs refuses a conversation with URLs that may not be fetched, before it goes to an engine
	// which fetches them.
	CheckURLs(*prep.Chat) error
}

// mediaResolver returns the resolver of a model's media; nil if there is none.
func (f *Frontend) mediaResolver(m *servedModel) prep.Resolver {
	if f.deps.Media == nil || m.pipeline == nil || m.pipeline.Family == nil {
		return nil
	}
	r := ResolverForCard(f.deps.Media, &m.Card)
	if _, ok := r.(unkeyedResolver); ok {
		return r
	}
	return timedResolver{r, f.metrics}
}

// ResolverForCard returns the media resolver for the model of a card.
func ResolverForCard(source MediaSource, card *engine.Card) prep.Resolver {
	if !card.AcceptsObjects && card.MediaKeys == "" {
		return unkeyedResolver{}
	}
	way := resolve.ModelOptions{Transfer: resolve.TransferOff, FetchWhole: card.AcceptsObjects}
	if d := card.MediaDecoder; d != nil {
		way.Identity = media.ByPixels
		if card.AcceptsObjects {
			way.Transfer = resolve.Transfer(d.Transfer)
		}
	}
	r := source.ResolverFor(way)
	if len(card.MiscountedMedia) > 0 {
		return miscountingResolver{r, card.MiscountedMedia}
	}
	return r
}

// miscountingResolver is the resolver of a model whose engines count some kinds of media differently:
// the position of such media in a prompt is unknown.
type miscountingResolver struct {
	prep.Resolver
	kinds []string
}

// Resolve implements prep.Resolver.
func (m miscountingResolver) Resolve(ctx context.Context, c *prep.Chat, f *family.Family) ([]media.Object, func(), error) {
	for i := range c.Media {
		if p := &c.Media[i]; slices.Contains(m.kinds, p.Kind.String()) {
			return nil, nil, prep.NewUnresolvedError(media.CountsDiffer, p.Part, "'%s' is of type %v, of which this model's engines make other tokens than are counted here", p.Part, p.Kind)
		}
	}
	return m.Resolver.Resolve(ctx, c, f)
}

// unkeyedResolver is the resolver of models whose engines do not receive media keys: their caches name
// media differently, so nothing in them could be found.
type unkeyedResolver struct{}

// Resolve implements prep.Resolver.
func (unkeyedResolver) Resolve(_ context.Context, c *prep.Chat, _ *family.Family) ([]media.Object, func(), error) {
	return nil, nil, prep.NewUnresolvedError(media.HashForwardDisabled, c.Media[0].Part, "'%s' cannot be named to this model's engines", c.Media[0].Part)
}

// timedResolver measures the time of a resolver.
type timedResolver struct {
	prep.Resolver
	metrics *metrics
}

// Resolve implements prep.Resolver.
func (t timedResolver) Resolve(ctx context.Context, c *prep.Chat, f *family.Family) ([]media.Object, func(), error) {
	began := time.Now()
	if v := recordOf(ctx); v != nil && v.client != nil {
		ctx = fetch.WithClient(ctx, v.client.Key().Name)
	}
	objects, release, err := t.Resolver.Resolve(ctx, c, f)
	var u *prep.UnresolvedError
	if errors.As(err, &u) {
		t.metrics.observeResolve(began, u.Reason, nil)
	} else {
		t.metrics.observeResolve(began, media.NoReason, err)
	}
	return objects, release, err
}

// observeResolve records the time and the outcome of resolving media.
func (m *metrics) observeResolve(began time.Time, why media.Reason, err error) {
	outcome := "resolved"
	switch {
	case err != nil:
		outcome = "refused"
	case why != media.NoReason:
		outcome = "unresolved"
	}
	m.mediaResolve.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
}

// checkMedia refuses media in a request which the model does not support.
func (m *servedModel) checkMedia(q *api.Request) error {
	if !q.HasMedia() {
		if q.ProcessorArgs {
			return fault.InvalidParam("mm_processor_kwargs", "'mm_processor_kwargs' is not supported by this server without media: leave it out")
		}
		return nil
	}
	if q.Ext.Tokens != nil {
		return fault.InvalidParam("nvext.token_data", "'nvext.token_data' is a prompt without media, and the messages show some: leave one of them out")
	}
	if _, elsewhere := m.encoder.(*engineEncoder); elsewhere && m.Card.AcceptsObjects {
		return fault.New(fault.Unimplemented, "prompts that the engines of the model '%s' make have no media: start the frontend with --preprocess local", m.Card.Name)
	}
	for _, part := range q.MediaObjects() {
		if slices.Contains(m.Card.Media, part.Kind.String()) {
			continue
		}
		what := "text only"
		if len(m.Card.Media) > 0 {
			what = "text and " + strings.Join(m.Card.Media, " and ")
		}
		return fault.InvalidParam(part.Part, "'%s' is of type %.100q, which is not supported by this model: send %s to the model '%s'", part.Part, part.Type, what, m.Card.Name)
	}
	return nil
}

// appendParts adds the text and media of a message to the conversation. A local encoder shows
// placeholders to the template (local is true); an engine that encodes gets the URLs.
func appendParts(chat *prep.Chat, i int, m *api.Message, here bool) {
	if m.Parts == nil {
		return
	}
	parts := []byte{'['}
	for j := range m.Parts {
		shown := m.Parts[j].Media
		if shown == nil {
			parts = prep.AppendTextPart(parts, m.Parts[j].Text)
			continue
		}
		object := prep.Media{Kind: shown.Kind, URL: shown.URL, Name: shown.Name, Part: shown.Part, Param: shown.Param, Halvings: shown.Halvings}
		chat.Media = append(chat.Media, object)
		if here {
			parts = prep.AppendMediaPart(parts, shown.Kind)
		} else {
			parts = prep.AppendURLPart(parts, &object)
		}
	}
	chat.Messages[i].Parts = append(parts, ']')
	chat.Messages[i].Content = ""
}

// mediaOwner is the namespace of a request's media names: its salt, and its key if it has one.
func (c *apiCall) mediaOwner(salt string) string {
	if client := c.keyClient(); client != nil {
		return mediaOwnerOf(client.Key().Name, salt)
	}
	return mediaOwnerOf("", salt)
}

// mediaOwnerOf is empty if the request has neither: such names are shared.
func mediaOwnerOf(key, salt string) string {
	if key == "" && salt == "" {
		return ""
	}
	return key + "\x00" + salt
}

// keepMedia holds the prompt's media until the call ends.
func (c *apiCall) keepMedia(p *prep.Prompt) {
	if p.Release != nil {
		c.mediaReleases = append(c.mediaReleases, p.Release)
		p.Release = nil
	}
}

// releaseMedia releases what keepMedia holds.
func (c *apiCall) releaseMedia() {
	for _, release := range c.mediaReleases {
		release()
	}
	c.mediaReleases = nil
}

// countMedia counts the media of a request, and the reason if the worker is chosen without them.
func (c *apiCall) countMedia(ctx context.Context, q *api.Request, prompt *prep.Prompt) {
	if !c.mediaCounted { // a request may have several prompts, one after the other
		c.mediaCounted = true
		for _, part := range q.MediaObjects() {
			c.metrics.media.WithLabelValues(part.Kind.String()).Inc()
		}
	}
	if prompt.TextOnlyReason == media.NoReason {
		return
	}
	c.answer.textOnly = prompt.TextOnlyReason
	c.metrics.textOnly.WithLabelValues(string(prompt.TextOnlyReason)).Inc()
	c.f.deps.Log.DebugContext(ctx, "the media of a request take no part in the choice of its worker",
		"request", c.id, "model", c.model, "reason", string(prompt.TextOnlyReason), "part", prompt.TextOnlyError.Param)
}

// requireMedia refuses a prompt whose media could not be resolved, because an engine that takes tokens
// would answer without them.
func requireMedia(ctx context.Context, p *prep.Prompt) error {
	switch {
	case p.TextOnlyReason == media.NoReason:
		return nil
	case ctx.Err() != nil:
		return contextError(ctx)
	}
	return p.TextOnlyError
}

// decideMedia decides how a request that shows media is served: from tokens if the model's engines take
// media with these, as its client wrote it if they do not, else in the first way and, if the media cannot go
// so, in the second. body is the request.
func (t *typedRequest) decideMedia(body []byte, d *apiDialect) (generationRequest, error) {
	c, q, m := t.call, t.req, t.model
	if err := m.checkMedia(q); err != nil {
		return nil, err
	}
	looked := (m.Card.AcceptsObjects || m.resolvesMedia()) && !m.isMiscounted(q.MediaObjects())
	if !looked { // otherwise the process that resolves the media checks their URLs
		if err := c.f.checkURLs(q); err != nil {
			return nil, err
		}
	}
	switch {
	case m.passesThrough(d.path):
	case m.Card.AcceptsObjects:
		return t, nil
	default:
		return nil, fault.New(fault.Unimplemented, "the engines of the model '%s' take media in requests of their own API only, and none of those is %s: use another endpoint, such as /v1/chat/completions", m.Card.Name, d.path)
	}
	e, err := peekRequest(body, nil)
	if err != nil {
		return nil, err
	}
	p, err := c.newOpaque(body, d, m, e)
	if err != nil {
		return nil, err
	}
	q.Owner = c.mediaOwner(q.CacheSalt)
	q.Features = !m.Card.AcceptsObjects && m.canShipFeatures(q)
	if m.Card.AcceptsObjects || q.Features {
		return &mediaRequest{typed: t, opaque: p}, nil
	}
	p.shown = q
	return p, nil
}

// mediaRequest is a request whose media go with its tokens, raw or processed by an engine, if they can; else
// they go as its client sent them.
type mediaRequest struct {
	typed  *typedRequest
	opaque *opaqueRequest
}

// serve implements generationRequest.
func (r *mediaRequest) serve(ctx context.Context) error {
	t, p := r.typed, r.opaque
	prompts, err := t.makePrompts(ctx, t.model.makeMediaPrompt)
	if err != nil {
		return err
	}
	p.nameMedia(&prompts[0])
	p.usePrompt(&prompts[0])
	if prompts[0].TextOnlyReason != media.NoReason || t.req.Features && prompts[0].Features == nil {
		return p.serveInstead(ctx)
	}
	err = t.serveLent(ctx, prompts)
	if err == nil || !r.isUnshipped(ctx, err) {
		return err
	}
	p.countedPrompt = p.prompt
	return p.serveInstead(ctx)
}

// serveLent serves prompts and lends the features of the first one meanwhile.
func (p *typedRequest) serveLent(ctx context.Context, prompts []prep.Prompt) error {
	defer p.lendFeatures(&prompts[0])()
	return p.servePrompts(ctx, prompts)
}

// lendFeatures lends a prompt's features to the workers, if all which take features can fetch them. Otherwise they go
// with the request.
func (p *typedRequest) lendFeatures(prompt *prep.Prompt) (release func()) {
	lender, n := p.call.f.deps.Lender, len(prompt.Features)
	if lender == nil || n <= resolve.SentWithRequest || p.call.f.catalog.currentModel(p.model).HasWorker(func(c *engine.Card) bool { return c.Features && !c.Fetches }) {
		return func() {}
	}
	place, release, err := lender.Lend(prompt.Features)
	if err != nil {
		return func() {}
	}
	p.lent = engine.Lent{Place: place, Size: n}
	return release
}

// isUnshipped reports whether err only says that no worker, or none that remains, takes the request's media
// with its tokens.
func (r *mediaRequest) isUnshipped(ctx context.Context, err error) bool {
	c := r.typed.call
	var refused *fault.Error
	switch {
	case ctx.Err() != nil, !c.answer.firstOutput.IsZero(), !errors.As(err, &refused):
		return false
	case refused.Code == fault.Unimplemented && refused.Param == engine.FeaturesParam:
		c.metrics.mediaUnshipped.WithLabelValues().Inc()
		c.f.throttled.Log(ctx, slog.LevelWarn, "an engine does not take what another one's processor made of media: the request is passed on as it is",
			"request", c.id, "model", c.model, "error", err)
		return true
	}
	return refused.Code == fault.Unavailable && r.typed.req.Features && c.f.catalog.currentModel(r.typed.model).HasWorker(func(c *engine.Card) bool { return !c.Features })
}

// serveInstead serves the request, whose media could not go with tokens.
func (p *opaqueRequest) serveInstead(ctx context.Context) error {
	if err := p.checkAnswerable(); err != nil {
		return err
	}
	if err := p.reserveBody(); err != nil {
		return err
	}
	if !p.call.answer.committed {
		p.call.answer.accepted = false
	}
	// The router knows the earlier attempts by the request's own id.
	p.Route.ID += "/pass"
	p.Request.ID = p.Route.ID
	return p.serveTokenized(ctx)
}

// isMiscounted reports whether one of the media is of a kind which the model's engines count
// differently from here.
func (m *servedModel) isMiscounted(shown []*api.Media) bool {
	return slices.ContainsFunc(shown, func(p *api.Media) bool { return slices.Contains(m.Card.MiscountedMedia, p.Kind.String()) })
}

// checkURLs refuses URLs that may not be fetched: the engine would fetch them, even if no process here
// looks at the media.
func (f *Frontend) checkURLs(q *api.Request) error {
	if f.deps.Media == nil {
		return nil
	}
	c := &prep.Chat{}
	for _, m := range q.MediaObjects() {
		c.Media = append(c.Media, prep.Media{Kind: m.Kind, URL: m.URL, Part: m.Part, Param: m.Param})
	}
	return f.deps.Media.CheckURLs(c)
}

// canShipFeatures reports whether a request with media can go to the model's engines with features made
// by one engine's processor: prompts are made by the engines, and only one choice needs a copy.
func (m *servedModel) canShipFeatures(q *api.Request) bool {
	_, elsewhere := m.encoder.(*engineEncoder)
	return elsewhere && q.N == 1 && !q.ProcessorArgs && q.Ext.Tokens == nil && m.HasWorker(func(c *engine.Card) bool { return c.Features })
}

// mediaPrompt returns the prompt of a request with media, as far as it is needed.
func (p *opaqueRequest) mediaPrompt(ctx context.Context) (prep.Prompt, error) {
	mode := p.Route.Override.Mode
	if p.call.f.cfg.IgnoresCaches && !p.model.Card.Router && (mode == nil || !mode.UsesCaches()) {
		return prep.Prompt{TextOnlyReason: media.NotRouted, TextOnlyError: fault.InvalidParam("model", "the router's mode asks no cache")}, nil
	}
	all, err := p.model.makeMediaPrompt(ctx, p.shown)
	if err != nil {
		return prep.Prompt{}, err
	}
	return all[0], nil
}

// makeMediaPrompt returns the one prompt of a request with media that could be passed through, as far as it
// is needed.
func (m *servedModel) makeMediaPrompt(ctx context.Context, q *api.Request) ([]prep.Prompt, error) {
	all, err := m.makePrompts(ctx, q)
	var refused *prep.RefusedError
	var f *fault.Error
	if err != nil && !errors.As(err, &refused) && errors.As(err, &f) && ctx.Err() == nil {
		// The template cannot show the media; the engine may have another way.
		return []prep.Prompt{{TextOnlyReason: media.PlaceholderMismatch, TextOnlyError: f}}, nil
	}
	return all, err
}

// nameMedia tells the engine the keys of the request's media.
func (p *opaqueRequest) nameMedia(prompt *prep.Prompt) {
	p.Request.Media, p.Request.Objects = prompt.Media, keysOf(prompt.Objects)
}

// keysOf returns the objects of a passthrough request with their keys and sizes only.
func keysOf(objects []media.Object) []media.Object {
	if objects == nil {
		return nil
	}
	all := make([]media.Object, len(objects))
	for i := range objects {
		o := &objects[i]
		all[i] = media.Object{Kind: o.Kind, Key: o.Key, Part: o.Part, Size: o.Size}
	}
	return all
}

// maxTensors bounds the decoded media sent with a request, in bytes: half of the bound of a call.
const maxTensors = rpc.MaxBody / 2

// TrimObjects returns the objects of a request to an engine that takes them with tokens. An object sent
// as a tensor needs no source; one which is too large to send the engine fetches from its URL. It
// changes objects.
func TrimObjects(objects []media.Object) []media.Object {
	room := maxTensors
	for i := range objects {
		o := &objects[i]
		switch n := len(o.Tensor.Data); {
		case n == 0:
		case n > room:
			o.Tensor = media.Tensor{}
		default:
			room -= n
			o.Source = ""
		}
	}
	return objects
}

// comparePrompt compares the predicted length of a prompt with media to the engine's.
func (p *opaqueRequest) comparePrompt(reported int) {
	if p.Request.Objects == nil {
		return
	}
	m := p.call.metrics
	predicted := len(p.Request.Prompt)
	m.mediaPredicted.WithLabelValues().Add(float64(predicted))
	m.mediaReported.WithLabelValues().Add(float64(reported))
	if reported != predicted {
		m.mediaMismatch.WithLabelValues().Inc()
		p.call.f.throttled.Log(p.call.r.Context(), slog.LevelWarn, "the engine counts other tokens for a prompt with media: its cache events will not match",
			"request", p.call.id, "model", p.call.model, "predicted", predicted, "reported", reported)
	}
}
