package frontend

import (
	"context"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/engine"
)

// embedsAtOnce bounds the inputs of one request that are with workers at one
// time, so that a request of thousands leaves room in their queues.
const embedsAtOnce = 16

// embed answers a request for embeddings, or returns why not. Each input is a
// task of its own, with its own routing decision.
func (c *call) embed() error {
	if err := c.f.admit(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	req, err := decoded(c, openai.DecodeEmbeddings)
	if err != nil {
		return err
	}
	m, err := c.f.catalog.find(req.Model)
	if err != nil {
		return err
	}
	c.model = m.card.Name
	all, err := c.embeddings(m, req)
	if err != nil {
		return err
	}
	err = c.embedAll(ctx, all)
	answer := openai.EmbeddingsAnswer{Model: req.Model, Format: req.Format}
	for _, e := range all {
		c.answer.ext.Attempts = append(c.answer.ext.Attempts, e.tried...)
		if e.vector == nil {
			continue
		}
		answer.Vectors = append(answer.Vectors, e.vector)
		answer.Tokens += len(e.request.Prompt)
	}
	c.f.metrics.prompt.WithLabelValues(c.model).Add(float64(answer.Tokens))
	if err != nil {
		return err
	}
	for _, v := range answer.Vectors {
		if len(v) != len(answer.Vectors[0]) {
			return broken("embeddings of different lengths", nil)
		}
	}
	if err := c.answer.accept(&event{decision: all[0].decision}); err != nil {
		return err
	}
	return c.answer.whole(append(openai.AppendEmbeddings(nil, &answer), '\n'))
}

// embeddings returns a task for each input.
func (c *call) embeddings(m *model, req *openai.EmbeddingsRequest) ([]*embedding, error) {
	pin, err := pinned(c.r.Header, 0)
	if err != nil {
		return nil, err
	}
	if len(m.withoutEmbeddings()) == len(m.workers) {
		return nil, fault.Param("model", "the model '%s' makes no embeddings: name one that does", m.card.Name)
	}
	all := make([]*embedding, len(req.Inputs))
	for i, input := range req.Inputs {
		param := "input"
		if len(req.Inputs) > 1 {
			param = "input[" + strconv.Itoa(i) + "]"
		}
		tokens, err := m.input(param, input)
		if err != nil {
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
			route: route.Request{ID: id, Model: m.card.Name, Tokens: tokens, Pin: pin, Override: route.Override{OverlapWeight: new(float64)}},
		}
	}
	return all, nil
}

// input returns the tokens of an input that the model can take.
func (m *model) input(param string, p api.Prompt) ([]kv.Token, error) {
	tokens := p.Tokens
	if tokens == nil {
		tokens = m.pipe.EncodeText(nil, p.Text)
	} else if err := m.known(param, tokens); err != nil {
		return nil, err
	}
	switch n := len(tokens); {
	case n == 0:
		return nil, fault.Param(param, "'%s' has no tokens: it must have at least one", param)
	case n >= m.card.ContextLength:
		return nil, fault.Param(param, "'%s' has %d tokens, and the model '%s' takes at most %d: shorten it", param, n, m.card.Name, m.card.ContextLength-1)
	}
	return tokens, nil
}

// embedAll completes the tasks, some at a time, until all are complete or one has
// failed. It returns when all that it started have ended.
func (c *call) embedAll(ctx context.Context, all []*embedding) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan *embedding, len(all))
	for _, e := range all {
		queue <- e
	}
	close(queue)
	hands := min(len(all), embedsAtOnce)
	done := make(chan error, hands)
	for range hands {
		go func() {
			done <- contained(func() error {
				for e := range queue {
					if err := c.f.attempts(ctx, e, e.route.Pin.ID != 0); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	var first error
	for range hands {
		if err := <-done; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}
