package frontend

import (
	"context"
	"errors"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/bounded"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
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
		c.spendTokens(len(e.Request.Prompt), 0)
	}
	err = bounded.ForEach(ctx, len(all), maxParallel, func(ctx context.Context, i int) error {
		return c.f.dispatcher.Embed(ctx, all[i], 1)
	})
	if err != nil && ctx.Err() != nil {
		err = contextError(ctx)
	}
	answer := openai.EmbeddingsAnswer{Model: req.Model, Format: req.Format}
	for i, e := range all {
		for n, d := range e.Decisions {
			c.answer.recordAttempt(i, uint32(n+1), d, 0)
		}
		if e.Answer.Vector == nil {
			continue
		}
		answer.Vectors = append(answer.Vectors, e.Answer.Vector)
		answer.Tokens += len(e.Request.Prompt)
	}
	c.recordUsage(api.TokenCounts{Prompt: answer.Tokens}, 0)
	if err != nil {
		return err
	}
	for _, v := range answer.Vectors {
		if len(v) != len(answer.Vectors[0]) {
			return engine.ContractError("embeddings of different lengths", nil)
		}
	}
	if err := c.answer.acceptRequest(all[0].Decision, ""); err != nil {
		return err
	}
	return c.answer.sendWhole(append(openai.AppendEmbeddings(nil, &answer), '\n'))
}

// embeddingTasks returns a task for each input.
func (c *apiCall) embeddingTasks(ctx context.Context, m *servedModel, req *openai.EmbeddingsRequest) ([]*dispatch.Embedding, error) {
	pin, err := pinnedWorker(c.r.Header, api.RequestExt{})
	if err != nil {
		return nil, err
	}
	if !m.HasWorker(func(c *engine.Card) bool { return c.Embeddings }) {
		return nil, fault.InvalidParam("model", "the model '%s' makes no embeddings: name one that does", m.Card.Name)
	}
	param := func(i int) string {
		if len(req.Inputs) == 1 {
			return "input"
		}
		return "input[" + strconv.Itoa(i) + "]"
	}
	prompts, err := m.encodePrompts(ctx, req.Inputs, countedContexts*m.Card.ContextLength, param)
	if long, ok := errors.AsType[*prep.LengthError](err); ok {
		return nil, m.refuseEmbeddingLength(long.Param, "at least "+strconv.Itoa(long.AtLeast))
	}
	if err != nil {
		return nil, err
	}
	all := make([]*dispatch.Embedding, len(prompts))
	for i, prompt := range prompts {
		tokens := prompt.Tokens
		if err := m.checkEmbeddingLength(param(i), len(tokens)); err != nil {
			return nil, err
		}
		id := c.id
		if i > 0 {
			id += "/" + strconv.Itoa(i)
		}
		e := &dispatch.Embedding{Request: engine.EmbedRequest{ID: id, Model: m.Card.Name, Prompt: tokens}}
		e.Route = route.Request{ID: id, Model: m.Card.Name, Salt: kv.Salt{LoRA: m.adapterName()}, Pin: pin}
		e.Workers = c.f.catalog.latestWorkers(m)
		all[i] = e
	}
	return all, nil
}

// checkEmbeddingLength checks that the model can take an input of n tokens.
func (m *servedModel) checkEmbeddingLength(param string, n int) error {
	switch {
	case n == 0:
		return fault.InvalidParam(param, "'%s' has no tokens: it must have at least one", param)
	case n >= m.Card.ContextLength:
		return m.refuseEmbeddingLength(param, strconv.Itoa(n))
	}
	return nil
}

// refuseEmbeddingLength is the error for an input of so many tokens, which does not fit the context.
func (m *servedModel) refuseEmbeddingLength(param, tokens string) error {
	return fault.InvalidParam(param, "'%s' has %s tokens, and the model '%s' takes at most %d: shorten it", param, tokens, m.Card.Name, m.Card.ContextLength-1)
}
