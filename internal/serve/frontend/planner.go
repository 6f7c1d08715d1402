package frontend

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// requestPlanner turns a decoded request into generations for one model. It combines the request with
// the model's card and refuses what neither allows.
type requestPlanner struct {
	call  *apiCall
	req   *api.Request
	model *servedModel
	// spare is the request as a passthrough, used if its media cannot be served otherwise; nil if it
	// cannot be passed through.
	spare *passthroughTask
}

// planRequest returns a generation for each prompt and prepares the answer for them.
func (p *requestPlanner) planRequest(ctx context.Context) ([]*generationTask, error) {
	pin, err := p.pinnedWorker()
	if err != nil {
		return nil, err
	}
	sampling, err := p.samplingOf()
	if err != nil {
		return nil, err
	}
	if err := p.checkVocabulary(); err != nil {
		return nil, err
	}
	guide, err := p.guideOf()
	if err != nil {
		return nil, err
	}
	grammar, err := p.outputGrammar()
	if err != nil {
		return nil, err
	}
	if err := p.model.checkMedia(p.req); err != nil {
		return nil, err
	}
	if p.req.HasMedia() {
		p.req.Owner = p.call.mediaOwner(p.req.CacheSalt)
	}
	prompts, err := p.makePrompts(ctx)
	if err != nil {
		return nil, err
	}
	if p.req.HasMedia() {
		if err := p.planMedia(ctx, &prompts[0]); err != nil {
			return nil, err
		}
	}
	needles := newStopStrings(p.req.Stop)
	session, err := p.sessionOf()
	if err != nil {
		return nil, err
	}
	gens := make([]*generationTask, len(prompts))
	for i, prompt := range prompts {
		stop, err := p.stopConditions(len(prompt.Tokens))
		if err != nil {
			return nil, err
		}
		gens[i] = p.newGeneration(i, prompt, sampling, stop, needles)
		gens[i].route.Pin, gens[i].route.Session = pin, session
		gens[i].request.Hints = dispatch.EncodeHints(&gens[i].route)
		gens[i].request.OutputSchema, gens[i].guideParam = guide, p.guideParam()
		if i > 0 { // prompts share only what the client set
			id := p.call.id + "/" + strconv.Itoa(i)
			gens[i].request.ID, gens[i].route.ID = id, id
			if p.req.Seed == nil {
				gens[i].request.Sampling.Seed = rand.Uint64()
			}
		}
		p.attachParsers(gens[i], grammar)
	}
	a := p.call.answer
	a.openChoices = len(prompts) * p.req.N
	a.ext.WorkerFields = p.req.Ext.WorkerFields
	return gens, p.annotateAnswer(ctx, prompts)
}

// makePrompts makes the prompts of the request.
func (p *requestPlanner) makePrompts(ctx context.Context) ([]prep.Prompt, error) {
	if p.spare == nil {
		return p.model.makePrompts(ctx, p.req)
	}
	prompt, err := p.model.promptOf(ctx, p.req)
	return []prep.Prompt{prompt}, err
}

// planMedia handles the media of a conversation's prompt. An engine that takes media with the tokens
// must get all of them, raw or processed by another engine; otherwise the request is passed through.
// For other engines only the routing uses them.
func (p *requestPlanner) planMedia(ctx context.Context, prompt *prep.Prompt) error {
	p.call.keepMedia(prompt)
	p.call.countMedia(ctx, p.req, prompt)
	if p.spare != nil {
		p.spare.usePrompt(prompt)
		if prompt.TextOnlyReason != media.NoReason || p.req.Features && prompt.Features == nil {
			return errPass
		}
	}
	if prompt.Features != nil {
		p.call.metrics.mediaShipped.WithLabelValues().Inc()
	}
	if !p.model.card.AcceptsObjects {
		return nil
	}
	if err := requireMedia(ctx, prompt); err != nil {
		return err
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
	return nil
}

func (p *requestPlanner) newGeneration(i int, prompt prep.Prompt, sampling engine.Sampling, stop engine.Stop, ns stopStrings) *generationTask {
	f, q, card := p.call.f, p.req, &p.model.card
	salt := kv.Salt{LoRA: p.model.adapter, Namespace: q.CacheSalt}
	g := &generationTask{
		f:       f,
		model:   p.model,
		index:   i,
		started: p.call.started,
		request: engine.Request{
			ID:       p.call.id,
			Model:    card.Name,
			Salt:     salt,
			Prompt:   prompt.Tokens,
			Media:    prompt.Media,
			Objects:  TrimObjects(prompt.Objects),
			Features: prompt.Features,
			Choices:  q.N,
			Sampling: sampling,
			Stop:     stop,
			Logprobs: q.Logprobs,
		},
		route: route.Request{
			ID:             p.call.id,
			Model:          card.Name,
			Tokens:         prompt.Tokens,
			Media:          prompt.Media,
			Salt:           salt,
			ExpectedOutput: q.Ext.ExpectedOutput,
			Override:       q.Ext.Override,
			Allowed:        q.Ext.Allowed,
			Priority:       q.Ext.Priority,
			Client:         p.call.clientShare(),
		},
		rules: textRules{
			tokenizer:   p.model.pipeline.Tokenizer,
			stopStrings: ns,
			minTokens:   q.MinTokens,
			keepStop:    q.KeepStop,
			keepSpecial: q.KeepSpecial,
			logprobs:    q.Logprobs >= 0,
		},
		sendsRole:   q.Endpoint.IsConversation(),
		choices:     make([]answerChoice, q.N),
		chunks:      make([]api.Chunk, 0, 3), // a role, a text and an end
		openChoices: q.N,
		counts:      api.TokenCounts{Prompt: len(prompt.Tokens)},
		lastToken:   make([]time.Time, q.N),
		firstToken:  p.call.metrics.firstToken.WithLabelValues(),
		interToken:  p.call.metrics.interToken.WithLabelValues(),
	}
	if q.Echo {
		g.echo = p.echoText(i, prompt.Tokens)
	}
	for j := range g.choices {
		g.choices[j].decoder = p.model.pipeline.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: q.KeepSpecial})
		g.choices[j].stopMatcher = newStopMatcher(ns)
		g.choices[j].tokens = make([]kv.Token, 0, min(max(stop.MaxTokens, 0), 64))
		g.choices[j].chars = utf8.RuneCountInString(g.echo)
	}
	return g
}

// echoText is the text of a prompt that the answer begins with.
func (p *requestPlanner) echoText(i int, tokens []kv.Token) string {
	if q := p.req; q.Ext.Tokens == nil && q.Prompts[i].Tokens == nil {
		return q.Prompts[i].Text
	}
	return p.model.decodeTokens(tokens, prep.DecodeOptions{KeepSpecial: p.req.KeepSpecial})
}

// stopConditions returns when choices end after a prompt of n tokens.
func (p *requestPlanner) stopConditions(n int) (engine.Stop, error) {
	q, card := p.req, &p.model.card
	param := "messages"
	switch {
	case q.Ext.Tokens != nil:
		param = "nvext.token_data"
	case q.Endpoint == api.Completion:
		param = "prompt"
	case q.Endpoint == api.Responses:
		param = "input"
	}
	switch {
	case n == 0:
		return engine.Stop{}, fault.InvalidParam(param, "the prompt has no tokens: it must have at least one")
	case n+1 > card.ContextLength:
		return engine.Stop{}, fault.InvalidParam(param, "the prompt has %d tokens, and the context length of the model '%s' is %d tokens, output included: shorten the prompt", n, card.Name, card.ContextLength)
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
func (p *requestPlanner) samplingOf() (engine.Sampling, error) {
	q := p.req
	s := p.model.card.Defaults
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
func (p *requestPlanner) checkVocabulary() error {
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
	size := m.card.VocabSize
	for i, t := range tokens {
		if int64(t) >= int64(size) {
			return fault.InvalidParam(param, "'%s' has token id %d at index %d; the vocabulary of the model '%s' has %d entries", param, t, i, m.card.Name, size)
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
		return fault.InvalidParam(param, "'%s' has token id %d at index %d, which stands for media in prompts of the model '%s': send messages, with the media as parts of them", param, tokens[i], i, m.card.Name)
	}
	return nil
}

// pinnedWorker returns the worker that the client demands; the zero Worker if it leaves the choice to the
// router. Headers take precedence over the body.
func (p *requestPlanner) pinnedWorker() (kv.Worker, error) {
	return pinnedWorker(p.call.r.Header, p.req.Ext)
}

// pinnedWorker returns the worker that headers demand, else the body's.
func pinnedWorker(h http.Header, ext api.RequestExt) (kv.Worker, error) {
	if name, v := firstHeader(h, "X-Worker-Instance-Id", "X-Dynamo-Worker-Instance-Id"); v != "" {
		id, err := parseWorkerID(name, v)
		if err != nil {
			return kv.Worker{}, err
		}
		ext.Worker = id
	}
	// Disaggregated prefill is not supported yet, but a bad id is an error.
	if name, v := firstHeader(h, "X-Prefill-Instance-Id", "X-Dynamo-Prefill-Instance-Id"); v != "" {
		if _, err := parseWorkerID(name, v); err != nil {
			return kv.Worker{}, err
		}
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

// sessionOf returns the session of the request, from the header x-session-id or the body. The header
// takes precedence.
func (p *requestPlanner) sessionOf() (route.Session, error) {
	s := p.req.Ext.Session
	id := p.call.r.Header.Get("X-Session-Id")
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
