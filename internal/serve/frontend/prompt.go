package frontend

import (
	"context"
	"errors"

	"penstock/core/fault"
	"penstock/internal/bounded"
	"penstock/internal/catalog"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// MakePrompt returns what a worker would be given for a chat completion request, or a completion
// request with one prompt. Questions about where a request would go are about this prompt. The error is
// a *fault.Error.
func (f *Frontend) MakePrompt(ctx context.Context, q *api.Request) (prep.Prompt, error) {
	m, err := f.catalog.findEncodable(q.Model)
	if err != nil {
		return prep.Prompt{}, err
	}
	return m.singlePrompt(ctx, q)
}

// Prompter makes prompts of one model for questions about their routing in a process without a
// frontend. They equal the prompts that a frontend would make for the same requests.
type Prompter struct{ model *servedModel }

// NewPrompter returns the Prompter of the model of a card. source resolves media; without it only the
// text of a prompt counts.
func NewPrompter(card engine.Card, pipe *prep.Pipeline, source MediaSource) *Prompter {
	local := prep.LocalEncoder{Pipeline: pipe}
	if source != nil && pipe.Family != nil {
		local.Media = ResolverForCard(source, &card)
	}
	return &Prompter{&servedModel{Model: &catalog.Model{Card: card}, pipeline: pipe, encoder: local}}
}

// MakePrompt returns what a worker would be given, as Frontend.MakePrompt does.
func (p *Prompter) MakePrompt(ctx context.Context, q *api.Request) (prep.Prompt, error) {
	return p.model.singlePrompt(ctx, q)
}

// singlePrompt returns the only prompt of a question.
func (m *servedModel) singlePrompt(ctx context.Context, q *api.Request) (prep.Prompt, error) {
	if !q.Endpoint.IsConversation() && len(q.Prompts) != 1 {
		return prep.Prompt{}, fault.InvalidParam("prompt", "'prompt' must be one prompt, not %d", len(q.Prompts))
	}
	if err := m.checkMedia(q); err != nil {
		return prep.Prompt{}, err
	}
	q.Owner = mediaOwnerOf("", q.CacheSalt)
	all, err := m.makePrompts(ctx, q)
	if err != nil {
		return prep.Prompt{}, err
	}
	all[0].Free() // a question sends nothing to a worker
	return all[0], nil
}

// makePrompts returns each prompt of a request, as this model's engines see it.
func (m *servedModel) makePrompts(ctx context.Context, q *api.Request) ([]prep.Prompt, error) {
	return m.makePromptsUpTo(ctx, q, 0)
}

// makePromptsUpTo is makePrompts for a request without media which refuses prompts that have more tokens than
// limit, unless that is 0: with a *prep.LengthError, before it has made all of a long one.
func (m *servedModel) makePromptsUpTo(ctx context.Context, q *api.Request, limit int) ([]prep.Prompt, error) {
	if q.Ext.Tokens != nil {
		return []prep.Prompt{{Tokens: q.Ext.Tokens}}, m.checkPromptTokens("nvext.token_data", q.Ext.Tokens)
	}
	if q.Endpoint.IsConversation() {
		chat := m.chatOf(q)
		chat.Limit = limit
		p, err := m.encoder.EncodeChat(ctx, chat)
		if err != nil && ctx.Err() != nil {
			err = contextError(ctx)
		}
		return []prep.Prompt{p}, err
	}
	return m.encodePrompts(ctx, q.Prompts, limit, func(int) string { return "prompt" })
}

// encodePrompts returns the prompts that a client gave as texts or tokens; param names each in errors, also in
// the *prep.LengthError for a text with more tokens than limit, unless that is 0. An encoder that waits for
// engines works on several at a time.
func (m *servedModel) encodePrompts(ctx context.Context, given []api.Prompt, limit int, param func(i int) string) ([]prep.Prompt, error) {
	all := make([]prep.Prompt, len(given))
	var texts []int
	for i, p := range given {
		if p.Tokens == nil {
			texts = append(texts, i)
			continue
		}
		if err := m.checkPromptTokens(param(i), p.Tokens); err != nil {
			return nil, err
		}
		all[i].Tokens = p.Tokens
	}
	hands := 1
	if usesEngines(m.encoder) {
		hands = maxParallel
	}
	err := bounded.ForEach(ctx, len(texts), hands, func(ctx context.Context, n int) (err error) {
		i := texts[n]
		opts := prep.RawPrompt()
		opts.Limit = limit
		all[i], err = m.encoder.EncodeText(ctx, given[i].Text, opts)
		return renameParam(err, param(i))
	})
	if err != nil && ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	return all, err
}

// countedContexts is the number of context lengths up to which the tokens of a prompt that is too long are
// counted for the error. Encoding all of a far longer one takes time and memory which others wait for.
const countedContexts = 2

// renameParam replaces the parameter name of an error about a text by the request's own.
func renameParam(err error, param string) error {
	if long, ok := errors.AsType[*prep.LengthError](err); ok {
		long.Param = param
		return long
	}
	var refused *fault.Error
	if !errors.As(err, &refused) || refused.Param != "prompt" {
		return err
	}
	f := *refused
	f.Param = param
	return &f
}

// chatOf is the input of the model's encoder for a request.
func (m *servedModel) chatOf(q *api.Request) *prep.Chat {
	_, elsewhere := m.encoder.(*engineEncoder)
	rule, external := prep.ContentRuleOf(m.Card.Engine)
	chat := &prep.Chat{
		Content:             rule,
		Messages:            make([]prep.Message, len(q.Messages)),
		Args:                q.TemplateArgs,
		AddGenerationPrompt: q.AddGenerationPrompt,
		ContinueFinal:       q.ContinueFinal,
		Namespace:           q.Owner,
		ProcessorArgs:       q.ProcessorArgs,
		Features:            q.Features,
	}
	for i := range q.Messages {
		m := &q.Messages[i]
		chat.Messages[i] = prep.Message{
			Role: m.Role, Name: m.Name, Content: m.Content, NoContent: m.NoContent,
			ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, Reasoning: m.Reasoning,
		}
		// Workers of the previous version, with an engine of their own, take the texts of a message as
		// one.
		if m.HasMedia() || !elsewhere || external {
			appendParts(chat, i, m, !elsewhere)
		}
	}
	if q.ToolChoice.Mode != api.ToolNone { // tools that must not be called are not shown
		chat.Tools = q.ToolsJSON
	}
	return chat
}
