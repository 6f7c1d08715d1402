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
func (p *typedRequest) annotateAnswer(ctx context.Context, prompts []prep.Prompt) error {
	asked := p.req.Ext.Annotations
	if asked.FirstAnnotation() == "" {
		return nil
	}
	told := &api.Annotated{}
	if asked.RequestID {
		told.RequestID = p.call.id
	}
	if asked.FormattedPrompt || asked.TokenIDs {
		if len(prompts) != 1 {
			asked.LLMMetrics, asked.RequestID = false, false
			return fault.InvalidParam("nvext.annotations", "'%s' takes one prompt, not %d", asked.FirstAnnotation(), len(prompts))
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
	p.call.answer.setAnnotations(told, p.req)
	return nil
}

// formattedPrompt returns the text that became the tokens of the request's prompt. It renders the
// template again if that runs in this process. For a prompt which came as tokens, or which an engine
// made, it returns the text of the tokens.
func (p *typedRequest) formattedPrompt(ctx context.Context, tokens []kv.Token) (string, error) {
	q := p.req
	switch {
	case q.Ext.Tokens != nil:
	case q.Endpoint.IsConversation():
		if !usesEngines(p.model.encoder) {
			return p.renderText(ctx, p.model.chatOf(q))
		}
	case q.Prompts[0].Tokens == nil:
		return q.Prompts[0].Text, nil
	}
	return p.model.decodeTokens(tokens, prep.DecodeOptions{KeepSpecial: true}), nil
}

// renderText returns the text of a conversation's prompt. It waits for its share of the prompt memory.
func (p *typedRequest) renderText(ctx context.Context, chat *prep.Chat) (string, error) {
	reserved, err := p.call.f.prompts.Reserve(ctx, int64(chatCost(chat)))
	if err != nil {
		return "", contextError(ctx)
	}
	defer p.call.f.prompts.Release(reserved)
	return p.model.pipeline.RenderText(chat)
}

// decodeTokens returns the text of tokens.
func (m *servedModel) decodeTokens(tokens []kv.Token, opts prep.DecodeOptions) string {
	d := m.pipeline.Tokenizer.NewDecoder(opts)
	var text []byte
	for _, t := range tokens {
		text = d.Push(text, t)
	}
	return string(d.Flush(text))
}

// setAnnotations sets the answers to the request's annotations: as events of a stream if its clients
// accept events which their API does not define, else as members of nvext.
func (a *answerWriter) setAnnotations(told *api.Annotated, req *api.Request) {
	a.wantsMetrics = req.Ext.Annotations.LLMMetrics && req.Ext.Annotations.Query == api.NoQuery
	if req.Stream && (req.Endpoint == api.Chat || req.Endpoint == api.Completion) {
		a.annotations = told
		return
	}
	if req.Ext.Annotations.Query != api.NoQuery {
		told.Tokens = nil // QueryAnswer has them
	}
	a.ext.Annotated = told
}

// sendOpeningEvents sends the annotation events which open the stream.
func (a *answerWriter) sendOpeningEvents() error {
	if a.annotations == nil {
		return nil
	}
	return a.sse.put(openai.AppendAnnotationEvents(nil, a.annotations))
}

// metricsOf returns the answer to llm_metrics; nil if it was not requested.
func (a *answerWriter) metricsOf(counts api.TokenCounts) *api.Metrics {
	if !a.wantsMetrics {
		return nil
	}
	m := &api.Metrics{Counts: counts}
	if n := len(a.ext.Attempts); n > 0 {
		m.Worker, m.Prefill = a.ext.Attempts[n-1].Worker, a.ext.Attempts[n-1].Prefill
	}
	return m
}
