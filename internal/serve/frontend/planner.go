package frontend

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/parse"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// typedRequest is a request that is served from the tokens of its prompts. It combines the request with the
// model's card and refuses what neither allows.
type typedRequest struct {
	call      *apiCall
	req       *api.Request
	model     *servedModel
	newWriter writerFactory

	// These are known after checkRequest.
	pin kv.Worker
	// prefillPin is the worker which must compute the prompt, if another one than the decode worker does; 0 if the client
	// leaves that to the router.
	prefillPin kv.WorkerID
	session    route.Session
	sampling   engine.Sampling
	guide      *engine.OutputSchema
	grammar    *parse.Grammar

	lent engine.Lent // the prompt's features, if they do not go with the request

	rounds mediaRounds
}

// decodeTyped returns the request in body.
func (c *apiCall) decodeTyped(body []byte, d *apiDialect) (generationRequest, error) {
	q, newWriter, err := d.decode(body)
	if err != nil {
		return nil, err
	}
	m, err := c.findModel(c.f.catalog.findDecodable, q.Model)
	if err != nil {
		return nil, err
	}
	t := &typedRequest{call: c, req: q, model: m, newWriter: newWriter}
	if q.HasMedia() && q.Ext.Annotations.Query == api.NoQuery {
		return t.decideMedia(body, d)
	}
	return t, nil
}

// serve implements generationRequest.
func (p *typedRequest) serve(ctx context.Context) error {
	for {
		prompts, err := p.makePrompts(ctx, p.makeTypedPrompts)
		if err == nil {
			err = p.servePrompts(ctx, prompts)
		}
		if err == nil {
			return nil
		}
		if err := p.changeMedia(ctx, err); err != nil {
			return err
		}
	}
}

// makeTypedPrompts returns the prompts of a request, and refuses a text which cannot fit before it has encoded all
// of it. With media the length is known when they are in place.
func (p *typedRequest) makeTypedPrompts(ctx context.Context, q *api.Request) ([]prep.Prompt, error) {
	limit := 0
	if !q.HasMedia() {
		limit = countedContexts * p.model.Card.ContextLength
	}
	prompts, err := p.model.makePromptsUpTo(ctx, q, limit)
	if long, ok := errors.AsType[*prep.LengthError](err); ok {
		return nil, p.refuseLength("at least " + strconv.Itoa(long.AtLeast))
	}
	return prompts, err
}

// refuseLength is the error for a prompt of so many tokens, which does not fit the context.
func (p *typedRequest) refuseLength(tokens string) error {
	card := &p.model.Card
	return fault.InvalidParam(p.promptParam(), "the prompt has %s tokens, and the context length of the model '%s' is %d tokens, output included: shorten the prompt", tokens, card.Name, card.ContextLength)
}

// promptParam names the field of the request which has its prompt.
func (p *typedRequest) promptParam() string {
	switch q := p.req; {
	case q.Ext.Tokens != nil:
		return "nvext.token_data"
	case q.Endpoint == api.Completion:
		return "prompt"
	case q.Endpoint == api.Responses:
		return "input"
	}
	return "messages"
}

// makePrompts checks the request, and then makes its prompts with encode.
func (p *typedRequest) makePrompts(ctx context.Context, encode func(context.Context, *api.Request) ([]prep.Prompt, error)) (prompts []prep.Prompt, err error) {
	c, q := p.call, p.req
	c.answer.stream = q.Stream
	c.answer.responseHead = api.Head{ID: c.id, Model: q.Model, Created: c.started.Unix()}
	c.answer.writer = p.newWriter(&c.answer.responseHead)
	c.answer.appendError = c.answer.writer.Fail
	ctx, span := c.f.deps.Tracer.Start(ctx, "preprocess")
	if err = p.checkRequest(); err == nil {
		prompts, err = encode(ctx, q)
	}
	if err == nil && q.HasMedia() {
		c.keepMedia(&prompts[0])
		c.countMedia(ctx, q, &prompts[0])
	}
	tokens := 0
	for i := range prompts {
		tokens += len(prompts[i].Tokens)
	}
	span.SetText("penstock.model", p.model.Card.Name)
	span.SetInt("penstock.prompts", int64(len(prompts)))
	span.SetInt("penstock.prompt_tokens", int64(tokens))
	span.End(err)
	return prompts, err
}

// servePrompts answers the request, whose prompts are made.
func (p *typedRequest) servePrompts(ctx context.Context, prompts []prep.Prompt) error {
	c := p.call
	gens, err := p.planGenerations(ctx, prompts)
	if err != nil {
		return err
	}
	if !p.req.HasMedia() { // they are tokens now
		p.req.Messages = nil
		c.releaseBody()
	}
	if form := p.req.Ext.Annotations.Query; form != api.NoQuery {
		return c.answerQuery(ctx, gens, form)
	}
	gens[0].firstAttempt = p.rounds.attempts + 1
	err = c.generateAll(ctx, gens)
	p.rounds.attempts = max(p.rounds.attempts, gens[0].Request.Attempt)
	sum := c.countTokens(gens)
	if err != nil {
		return err
	}
	return c.answer.finishAnswer(sum)
}

// checkRequest checks what does not depend on the prompts.
func (p *typedRequest) checkRequest() (err error) {
	if p.pin, err = pinnedWorker(p.call.r.Header, p.req.Ext); err != nil {
		return err
	}
	if p.prefillPin, err = pinnedPrefillWorker(p.call.r.Header, p.req.Ext); err != nil {
		return err
	}
	if p.sampling, err = p.samplingOf(); err != nil {
		return err
	}
	if err := p.checkVocabulary(); err != nil {
		return err
	}
	if p.guide, err = p.guideOf(); err != nil {
		return err
	}
	if p.grammar, err = p.outputGrammar(); err != nil {
		return err
	}
	if err := p.model.checkMedia(p.req); err != nil {
		return err
	}
	if p.req.HasMedia() {
		p.req.Owner = p.call.mediaOwner(p.req.CacheSalt)
	}
	p.session, err = sessionOf(p.call.r.Header, p.req.Ext)
	return err
}

// planGenerations returns a generation for each prompt and prepares the answer for them.
func (p *typedRequest) planGenerations(ctx context.Context, prompts []prep.Prompt) ([]*generationTask, error) {
	if p.req.HasMedia() {
		if err := p.planMedia(ctx, &prompts[0]); err != nil {
			return nil, err
		}
	}
	needles := newStopStrings(p.req.Stop)
	gens := make([]*generationTask, len(prompts))
	tokens := 0
	for i, prompt := range prompts {
		stop, err := p.stopConditions(len(prompt.Tokens))
		if err != nil {
			return nil, err
		}
		gens[i] = p.newGeneration(i, prompt, stop, needles)
		tokens += len(prompt.Tokens)
	}
	p.spendPrompt(tokens)
	a := p.call.answer
	a.openChoices = len(prompts) * p.req.N
	a.ext.WorkerFields = p.req.Ext.WorkerFields
	return gens, p.annotateAnswer(ctx, prompts)
}

// planMedia handles the media of a conversation's prompt. An engine that takes media with the tokens must
// get all of them, raw or processed by another engine. For other engines only the routing uses them.
func (p *typedRequest) planMedia(ctx context.Context, prompt *prep.Prompt) error {
	if prompt.Features != nil {
		p.call.metrics.mediaShipped.WithLabelValues().Inc()
	}
	if !p.model.Card.AcceptsObjects {
		return nil
	}
	if err := requireMedia(ctx, prompt); err != nil {
		return p.nameFailure(prompt, err)
	}
	// Each attempt sends a copy.
	size := int64(0)
	for i := range prompt.Objects {
		size += int64(len(prompt.Objects[i].Source) + len(prompt.Objects[i].Tensor.Data))
	}
	if !p.call.f.bodies.TryReserve(size) {
		return p.call.f.noMemory()
	}
	p.call.heldBytes += size
	p.rounds.held = size
	return nil
}

// newGeneration returns the generation of prompt i.
func (p *typedRequest) newGeneration(i int, prompt prep.Prompt, stop engine.Stop, ns stopStrings) *generationTask {
	q, model := p.req, p.model.Card.Name
	salt := kv.Salt{LoRA: p.model.adapterName(), Namespace: q.CacheSalt}
	id, sampling := p.call.id, p.sampling
	if i > 0 { // prompts share only what the client set
		id += "/" + strconv.Itoa(i)
		if q.Seed == nil {
			sampling.Seed = rand.Uint64()
		}
	}
	g := &generationTask{
		model:   p.model,
		index:   i,
		started: p.call.started,
		rules: textRules{
			tokenizer:   p.model.pipeline.Tokenizer,
			stopStrings: ns,
			minTokens:   q.MinTokens,
			keepStop:    q.KeepStop,
			keepSpecial: q.KeepSpecial,
			logprobs:    q.Logprobs >= 0,
		},
		guideParam: p.guideParam(),
		sendsRole:  q.Endpoint.IsConversation(),
		choices:    make([]answerChoice, q.N),
		chunks:     make([]api.Chunk, 0, 3), // a role, a text and an end
		counts:     api.TokenCounts{Prompt: len(prompt.Tokens)},
		lastToken:  make([]time.Time, q.N),
		firstToken: p.call.metrics.firstToken.WithLabelValues(),
		interToken: p.call.metrics.interToken.WithLabelValues(),
	}
	g.Route = route.Request{
		ID:             id,
		Model:          model,
		Tokens:         prompt.Tokens,
		Media:          prompt.Media,
		Salt:           salt,
		Pin:            p.pin,
		PrefillPin:     p.prefillPin,
		Session:        p.session,
		ExpectedOutput: q.Ext.ExpectedOutput,
		Override:       q.Ext.Override,
		Allowed:        q.Ext.Allowed,
		Priority:       q.Ext.Priority,
		Client:         p.call.clientShare(),
	}
	g.Request = engine.Request{
		ID:           id,
		Model:        model,
		Salt:         salt,
		Prompt:       prompt.Tokens,
		Media:        prompt.Media,
		Objects:      TrimObjects(prompt.Objects),
		Choices:      q.N,
		Sampling:     sampling,
		Stop:         stop,
		Logprobs:     q.Logprobs,
		OutputSchema: p.guide,
	}
	if g.Request.FeaturesAt = p.lent; p.lent.IsZero() {
		g.Request.Features = prompt.Features
	}
	g.Workers, g.Sink = p.call.f.catalog.latestWorkers(p.model), g
	if q.Echo {
		g.echo = p.echoText(i, prompt.Tokens)
	}
	for j := range g.choices {
		g.choices[j].decoder = p.model.pipeline.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: q.KeepSpecial})
		g.choices[j].stopMatcher = newStopMatcher(ns)
		g.choices[j].chars = utf8.RuneCountInString(g.echo)
	}
	p.attachParsers(g)
	return g
}

// echoText is the text of a prompt that the answer begins with.
func (p *typedRequest) echoText(i int, tokens []kv.Token) string {
	if q := p.req; q.Ext.Tokens == nil && q.Prompts[i].Tokens == nil {
		return q.Prompts[i].Text
	}
	return p.model.decodeTokens(tokens, prep.DecodeOptions{KeepSpecial: p.req.KeepSpecial})
}

// stopConditions returns when choices end after a prompt of n tokens.
func (p *typedRequest) stopConditions(n int) (engine.Stop, error) {
	q, card := p.req, &p.model.Card
	switch {
	case n == 0:
		return engine.Stop{}, fault.InvalidParam(p.promptParam(), "the prompt has no tokens: it must have at least one")
	case n+1 > card.ContextLength:
		return engine.Stop{}, p.refuseLength(strconv.Itoa(n))
	}
	room := card.ContextLength - n
	limit := q.MaxTokens
	if limit == 0 {
		limit = card.DefaultMaxTokens
	}
	if limit == 0 || limit > room {
		limit = room
	}
	stop := engine.Stop{
		MaxTokens: limit,
		MinTokens: min(q.MinTokens, limit),
		Tokens:    q.StopTokens,
		IgnoreEOS: q.IgnoreEOS,
	}
	if !q.IgnoreEOS && len(p.model.pipeline.StopTokens) > 0 {
		stop.Tokens = append(append([]kv.Token(nil), stop.Tokens...), p.model.pipeline.StopTokens...)
	}
	return stop, nil
}

// samplingOf returns the card's defaults with the client's settings.
func (p *typedRequest) samplingOf() (engine.Sampling, error) {
	q := p.req
	s := p.model.Card.Defaults
	setIfGiven(&s.Temperature, q.Temperature)
	setIfGiven(&s.TopP, q.TopP)
	setIfGiven(&s.MinP, q.MinP)
	setIfGiven(&s.PresencePenalty, q.PresencePenalty)
	setIfGiven(&s.FrequencyPenalty, q.FrequencyPenalty)
	setIfGiven(&s.RepetitionPenalty, q.RepetitionPenalty)
	setIfGiven(&s.TopK, q.TopK)
	s.TopK = max(0, s.TopK)
	if q.TopP != nil && *q.TopP == 0 {
		s.TopP = leastTopP
	}
	s.Seed = rand.Uint64()
	setIfGiven(&s.Seed, q.Seed)
	if q.Bias != nil {
		s.Bias = make([]engine.TokenBias, len(q.Bias))
		for i, b := range q.Bias {
			s.Bias[i] = engine.TokenBias{Token: b.Token, Bias: b.Bias}
		}
	}
	if q.N > 1 && s.Temperature == 0 {
		return s, fault.InvalidParam("n", "'n' greater than 1 needs a 'temperature' greater than 0: at 0 all %d choices would be equal", q.N)
	}
	return s, nil
}

// leastTopP replaces a client's top_p of 0, which keeps only the most likely token; the engine contract
// reads 0 as off.
const leastTopP = 1e-9

func setIfGiven[T any](field *T, set *T) {
	if set != nil {
		*field = *set
	}
}

// checkVocabulary checks the token ids outside prompts.
func (p *typedRequest) checkVocabulary() error {
	if err := p.model.checkTokens("stop_token_ids", p.req.StopTokens); err != nil {
		return err
	}
	for _, b := range p.req.Bias {
		if err := p.model.checkTokens("logit_bias", []kv.Token{b.Token}); err != nil {
			return err
		}
	}
	return nil
}

// checkTokens checks that a client's token ids are in the vocabulary.
func (m *servedModel) checkTokens(param string, tokens []kv.Token) error {
	size := m.Card.VocabSize
	for i, t := range tokens {
		if int64(t) >= int64(size) {
			return fault.InvalidParam(param, "'%s' has token id %d at index %d; the vocabulary of the model '%s' has %d entries", param, t, i, m.Card.Name, size)
		}
	}
	return nil
}

// checkPromptTokens checks the token ids of a prompt: they are in the vocabulary, and none is a media
// placeholder. Engines are known to crash, with all of their requests, on a placeholder without a media
// object.
func (m *servedModel) checkPromptTokens(param string, tokens []kv.Token) error {
	if err := m.checkTokens(param, tokens); err != nil || m.pipeline == nil {
		return err
	}
	if i := m.pipeline.IndexMediaToken(tokens); i >= 0 {
		return fault.InvalidParam(param, "'%s' has token id %d at index %d, which stands for media in prompts of the model '%s': send messages, with the media as parts of them", param, tokens[i], i, m.Card.Name)
	}
	return nil
}

// pinnedWorker returns the worker that the client demands, in headers or else the body; the zero Worker if it
// leaves the choice to the router.
func pinnedWorker(h http.Header, ext api.RequestExt) (kv.Worker, error) {
	if name, v := firstHeader(h, "X-Worker-Instance-Id", "X-Dynamo-Worker-Instance-Id"); v != "" {
		id, err := parseWorkerID(name, v)
		if err != nil {
			return kv.Worker{}, err
		}
		ext.Worker = id
	}
	if _, err := pinnedPrefillWorker(h, ext); err != nil {
		return kv.Worker{}, err
	}
	if name, v := firstHeader(h, "X-Dp-Rank", "X-Dynamo-Dp-Rank"); v != "" {
		n, err := strconv.ParseUint(v, 10, 32)
		switch {
		case err != nil:
			return kv.Worker{}, fault.InvalidParam(name, "the header %s must be a decimal rank, not %q", name, shorten(v))
		case ext.Worker == 0:
			return kv.Worker{}, fault.InvalidParam(name, "the header %s needs a worker id beside it (x-worker-instance-id)", name)
		}
		rank := uint32(n)
		ext.Rank = &rank
	}
	return ext.PinnedWorker()
}

// pinnedPrefillWorker returns the worker which the client demands for the prompt, in a header or else the body; 0
// if it leaves the choice to the router.
func pinnedPrefillWorker(h http.Header, ext api.RequestExt) (kv.WorkerID, error) {
	if name, v := firstHeader(h, "X-Prefill-Instance-Id", "X-Dynamo-Prefill-Instance-Id"); v != "" {
		return parseWorkerID(name, v)
	}
	return ext.PrefillWorker, nil
}

// sessionOf returns the session of a request, from the header x-session-id or the body. The header takes
// precedence.
func sessionOf(h http.Header, ext api.RequestExt) (route.Session, error) {
	s, id := ext.Session, h.Get("X-Session-Id")
	switch {
	case id == "" || id == s.ID:
		return s, nil
	case len(id) > route.MaxSessionID:
		return s, fault.InvalidParam("x-session-id", "the header x-session-id must have at most %d bytes, not %d", route.MaxSessionID, len(id))
	}
	return route.Session{ID: id}, nil
}

func parseWorkerID(name, v string) (kv.WorkerID, error) {
	id, err := strconv.ParseUint(v, 10, 64)
	if err != nil || id == 0 || id > uint64(kv.MaxWorkerID) {
		return 0, fault.InvalidParam(name, "the header %s must be a decimal worker id between 1 and %d, not %q", name, kv.MaxWorkerID, shorten(v))
	}
	return kv.WorkerID(id), nil
}

// firstHeader returns the first of the named headers that is set, with its name in lower case. The
// names must be canonical: a lookup by another form allocates.
func firstHeader(h http.Header, names ...string) (name, value string) {
	for _, name := range names {
		if v := h.Get(name); v != "" {
			return strings.ToLower(name), v
		}
	}
	return "", ""
}
