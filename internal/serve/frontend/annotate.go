package frontend

import (
	"context"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
)

// annotateAnswer adds what the request's annotations ask for to the answer, except llm_metrics, which is
// known only at the end.
func (p *planner) annotate(ctx context.Context, prompts []prep.Prompt) error {
	asked := p.req.Ext.Annotations
	if asked.First() == "" {
		return nil
	}
	told := &api.Annotated{}
	if asked.RequestID {
		told.RequestID = p.call.id
	}
	if asked.FormattedPrompt || asked.TokenIDs {
		if len(prompts) != 1 {
			asked.LLMMetrics, asked.RequestID = false, false
			return fault.Param("nvext.annotations", "'%s' takes one prompt, not %d", asked.First(), len(prompts))
		}
		if asked.TokenIDs {
			told.Tokens = prompts[0].Tokens
		}
		if asked.FormattedPrompt {
			text, err := p.formattedPrompt(ctx, prompts[0].Tokens)
			if err != nil {
				return err
			}
			told.Prompt = &text
		}
	}
	p.call.answer.annotate(told, p.req)
	return nil
}

// formattedPrompt returns the text that became the tokens of the request's prompt. It renders the
// template again if that runs in this process. For a prompt which came as tokens, or which an engine
// made, it returns the text of the tokens.
func (p *planner) formattedPrompt(ctx context.Context, tokens []kv.Token) (string, error) {
	q := p.req
	switch {
	case q.Ext.Tokens != nil:
	case q.Endpoint.Talks():
		if !asks(p.model.encoder) {
			return p.render(ctx, p.model.conversation(q))
		}
	case q.Prompts[0].Tokens == nil:
		return q.Prompts[0].Text, nil
	}
	return p.model.decode(tokens, prep.DecodeOptions{KeepSpecial: true}), nil
}

// renderText returns the text of a conversation's prompt. It waits for its share of the prompt memory.
func (p *planner) render(ctx context.Context, chat *prep.Chat) (string, error) {
	reserved, err := p.call.f.prompts.Wait(ctx, int64(chatCost(chat)))
	if err != nil {
		return "", ended(ctx)
	}
	defer p.call.f.prompts.Give(reserved)
	return p.model.pipe.Text(chat)
}

// decodeTokens returns the text of tokens.
func (m *model) decode(tokens []kv.Token, opts prep.DecodeOptions) string {
	d := m.pipe.Tokenizer.NewDecoder(opts)
	var text []byte
	for _, t := range tokens {
		text = d.Push(text, t)
	}
	return string(d.Flush(text))
}

// setAnnotations sets the answers to the request's annotations: as events of a stream if its clients
// accept events which their API does not define, else as members of nvext.
func (a *answer) annotate(told *api.Annotated, req *api.Request) {
	a.metrics = req.Ext.Annotations.LLMMetrics && req.Ext.Annotations.Query == api.NoQuery
	if req.Stream && (req.Endpoint == api.Chat || req.Endpoint == api.Completion) {
		a.events = told
		return
	}
	if req.Ext.Annotations.Query != api.NoQuery {
		told.Tokens = nil // QueryAnswer has them
	}
	a.ext.Annotated = told
}

// sendOpeningEvents sends the annotation events which open the stream.
func (a *answer) openEvents() error {
	if a.events == nil {
		return nil
	}
	return a.out.put(openai.AppendAnnotationEvents(nil, a.events))
}

// metricsOf returns the answer to llm_metrics; nil if it was not requested.
func (a *answer) measure(counts api.TokenCounts) *api.Metrics {
	if !a.metrics {
		return nil
	}
	m := &api.Metrics{Counts: counts}
	if n := len(a.ext.Attempts); n > 0 {
		m.Worker = a.ext.Attempts[n-1].Worker
	}
	return m
}
