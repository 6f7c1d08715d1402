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
const atOnce = 16

// serveEmbeddings answers a request for embeddings, or returns why not. Each input is a task of its
// own, with its own routing decision.
func (c *call) embed() error {
	if err := c.admit(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	req, err := decoded(c, openai.DecodeEmbeddings)
	if err != nil {
		return err
	}
	m, err := c.find(c.f.catalog.encodes, req.Model)
	if err != nil {
		return err
	}
	all, err := c.embeddings(ctx, m, req)
	if err != nil {
		return err
	}
	for _, e := range all {
		c.spend(len(e.request.Prompt), 0)
	}
	err = bounded.Each(ctx, len(all), atOnce, func(ctx context.Context, i int) error {
		return c.f.attempts(ctx, all[i], all[i].route.Pin.ID != 0)
	})
	if err != nil && ctx.Err() != nil {
		err = ended(ctx)
	}
	answer := openai.EmbeddingsAnswer{Model: req.Model, Format: req.Format}
	for _, e := range all {
		c.answer.ext.Attempts = append(c.answer.ext.Attempts, e.tried...)
		if e.answer.Vector == nil {
			continue
		}
		answer.Vectors = append(answer.Vectors, e.answer.Vector)
		answer.Tokens += len(e.request.Prompt)
	}
	c.metrics.prompt.WithLabelValues().Add(float64(answer.Tokens))
	if c.visit != nil {
		c.visit.tokens.Prompt = answer.Tokens
	}
	if err != nil {
		return err
	}
	for _, v := range answer.Vectors {
		if len(v) != len(answer.Vectors[0]) {
			return engine.Broken("embeddings of different lengths", nil)
		}
	}
	if err := c.answer.accept(&event{decision: all[0].decision}); err != nil {
		return err
	}
	return c.answer.whole(append(openai.AppendEmbeddings(nil, &answer), '\n'))
}

// embeddingTasks returns a task for each input.
func (c *call) embeddings(ctx context.Context, m *model, req *openai.EmbeddingsRequest) ([]*embedding, error) {
	pin, err := pinned(c.r.Header, api.RequestExt{})
	if err != nil {
		return nil, err
	}
	if len(m.withoutEmbeddings()) == len(m.workers) {
		return nil, fault.Param("model", "the model '%s' makes no embeddings: name one that does", m.card.Name)
	}
	param := func(i int) string {
		if len(req.Inputs) == 1 {
			return "input"
		}
		return "input[" + strconv.Itoa(i) + "]"
	}
	prompts, err := m.encode(ctx, req.Inputs, param)
	if err != nil {
		return nil, err
	}
	all := make([]*embedding, len(prompts))
	for i, prompt := range prompts {
		tokens := prompt.Tokens
		if err := m.embeds(param(i), len(tokens)); err != nil {
			return nil, err
		}
		id := c.id
		if i > 0 {
			id += "/" + strconv.Itoa(i)
		}
		all[i] = &embedding{
			f: c.f, model: m, index: i,
			request: engine.EmbedRequest{ID: id, Model: m.card.Name, Prompt: tokens},
			// Engines compute all of an input, whatever they have cached.
			route: route.Request{ID: id, Model: m.card.Name, Tokens: tokens, Salt: kv.Salt{LoRA: m.adapter}, Pin: pin, Override: route.Override{OverlapWeight: new(float64)}},
		}
	}
	return all, nil
}

// checkEmbeddingLength checks that the model can take an input of n tokens.
func (m *model) embeds(param string, n int) error {
	switch {
	case n == 0:
		return fault.Param(param, "'%s' has no tokens: it must have at least one", param)
	case n >= m.card.ContextLength:
		return fault.Param(param, "'%s' has %d tokens, and the model '%s' takes at most %d: shorten it", param, n, m.card.Name, m.card.ContextLength-1)
	}
	return nil
}
