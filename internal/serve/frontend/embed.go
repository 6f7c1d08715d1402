package frontend

import (
	"context"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/bounded"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/engine"
)

// maxParallel bounds the parts of one request that are with workers at one time, so that a request with
// thousands of parts leaves room in their queues.
const maxParallel = 16

// serveEmbeddings answers a request for embeddings, or returns why not. Each input is a task of its
// own, with its own routing decision.
func (c *apiCall) serveEmbeddings() error {
	if err := c.admitRequest(); err != nil {
		return err
	}
	ctx, cancel := c.requestContext()
	defer cancel()
	req, err := decodeBody(c, openai.DecodeEmbeddings)
	if err != nil {
		return err
	}
	m, err := c.findModel(c.f.catalog.findEncodable, req.Model)
	if err != nil {
		return err
	}
	all, err := c.embeddingTasks(ctx, m, req)
	if err != nil {
		return err
	}
	for _, e := range all {
		c.spendTokens(len(e.request.Prompt), 0)
	}
	err = bounded.ForEach(ctx, len(all), maxParallel, func(ctx context.Context, i int) error {
		return c.f.runAttempts(ctx, all[i], all[i].route.Pin.ID != 0)
	})
	if err != nil && ctx.Err() != nil {
		err = contextError(ctx)
	}
	answer := openai.EmbeddingsAnswer{Model: req.Model, Format: req.Format}
	for _, e := range all {
		c.answer.ext.Attempts = append(c.answer.ext.Attempts, e.attempts...)
		if e.answer.Vector == nil {
			continue
		}
		answer.Vectors = append(answer.Vectors, e.answer.Vector)
		answer.Tokens += len(e.request.Prompt)
	}
	c.metrics.prompt.WithLabelValues().Add(float64(answer.Tokens))
	if c.record != nil {
		c.record.tokens.Prompt = answer.Tokens
	}
	if err != nil {
		return err
	}
	for _, v := range answer.Vectors {
		if len(v) != len(answer.Vectors[0]) {
			return engine.ContractError("embeddings of different lengths", nil)
		}
	}
	if err := c.answer.acceptRequest(&generationEvent{decision: all[0].decision}); err != nil {
		return err
	}
	return c.answer.sendWhole(append(openai.AppendEmbeddings(nil, &answer), '\n'))
}

// embeddingTasks returns a task for each input.
func (c *apiCall) embeddingTasks(ctx context.Context, m *servedModel, req *openai.EmbeddingsRequest) ([]*embeddingTask, error) {
	pin, err := pinnedWorker(c.r.Header, api.RequestExt{})
	if err != nil {
		return nil, err
	}
	if len(m.WithoutEmbeddings()) == len(m.Workers) {
		return nil, fault.InvalidParam("model", "the model '%s' makes no embeddings: name one that does", m.Card.Name)
	}
	param := func(i int) string {
		if len(req.Inputs) == 1 {
			return "input"
		}
		return "input[" + strconv.Itoa(i) + "]"
	}
	prompts, err := m.encodePrompts(ctx, req.Inputs, param)
	if err != nil {
		return nil, err
	}
	all := make([]*embeddingTask, len(prompts))
	for i, prompt := range prompts {
		tokens := prompt.Tokens
		if err := m.checkEmbeddingLength(param(i), len(tokens)); err != nil {
			return nil, err
		}
		id := c.id
		if i > 0 {
			id += "/" + strconv.Itoa(i)
		}
		all[i] = &embeddingTask{
			f: c.f, model: m, index: i,
			request: engine.EmbedRequest{ID: id, Model: m.Card.Name, Prompt: tokens},
			// Engines compute all of an input, whatever they have cached.
			route: route.Request{ID: id, Model: m.Card.Name, Tokens: tokens, Salt: kv.Salt{LoRA: m.adapterName()}, Pin: pin, Override: route.Override{OverlapWeight: new(float64)}},
		}
	}
	return all, nil
}

// checkEmbeddingLength checks that the model can take an input of n tokens.
func (m *servedModel) checkEmbeddingLength(param string, n int) error {
	switch {
	case n == 0:
		return fault.InvalidParam(param, "'%s' has no tokens: it must have at least one", param)
	case n >= m.Card.ContextLength:
		return fault.InvalidParam(param, "'%s' has %d tokens, and the model '%s' takes at most %d: shorten it", param, n, m.Card.Name, m.Card.ContextLength-1)
	}
	return nil
}
