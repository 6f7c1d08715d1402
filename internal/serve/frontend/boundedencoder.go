package frontend

import (
	"context"

	"penstock/core/kv"
	"penstock/internal/bounded"
	"penstock/internal/edge/prep"
	"penstock/internal/obs"
)

// boundedEncoder encodes prompts in this process. Making a prompt takes several times the memory of its
// input, so requests share a memory budget and wait for each other: a client that sends many large ones
// makes itself wait and does not make the process grow.
type boundedEncoder struct {
	local  prep.LocalEncoder
	memory *bounded.MemoryBudget
	tracer *obs.Tracer
}

var _ prep.Encoder = boundedEncoder{}

// The memory in bytes that one byte of a conversation takes while its prompt is made.
const (
	templateCost = 8                       // the values that a template sees, until the text is there
	textCost     = 10                      // the text (2), the tokens (4, and as much while their array grows)
	promptCost   = templateCost + textCost // both
)

// chatCost is the memory that making the prompt of a conversation takes, in bytes.
func chatCost(chat *prep.Chat) int {
	size := len(chat.Tools) + len(chat.Args)
	for i := range chat.Messages {
		m := &chat.Messages[i]
		size += len(m.Content) + len(m.Parts) + len(m.ToolCalls) + len(m.Reasoning)
	}
	return promptCost * size
}

// EncodeChat implements prep.Encoder.
func (c boundedEncoder) EncodeChat(ctx context.Context, chat *prep.Chat) (prep.Prompt, error) {
	tokens, err := c.encodeChat(ctx, chat, chatCost(chat))
	if err != nil {
		return prep.Prompt{}, err
	}
	if len(chat.Media) == 0 {
		return c.local.CompletePrompt(ctx, chat, tokens)
	}
	ctx, span := c.tracer.Start(ctx, "media")
	span.SetInt("penstock.media", int64(len(chat.Media)))
	prompt, err := c.local.CompletePrompt(ctx, chat, tokens)
	span.SetText("penstock.text_only", string(prompt.TextOnlyReason))
	span.End(err)
	return prompt, err
}

// encodeChat returns the tokens of a conversation; making them takes cost bytes.
func (c boundedEncoder) encodeChat(ctx context.Context, chat *prep.Chat, cost int) ([]kv.Token, error) {
	reserved, err := c.memory.Reserve(ctx, int64(cost))
	if err != nil {
		return nil, err
	}
	defer func() { c.memory.Release(reserved) }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	_, span := c.tracer.Start(ctx, "template")
	span.SetInt("penstock.messages", int64(len(chat.Messages)))
	segments, err := c.local.Pipeline.RenderChat(chat)
	span.End(err)
	if err != nil {
		return nil, err
	}
	// A long text takes seconds: others need not wait for what only its template needed.
	left := min(reserved, int64(cost/promptCost*textCost))
	c.memory.Release(reserved - left)
	reserved = left
	_, span = c.tracer.Start(ctx, "tokenize")
	tokens, err := c.local.Pipeline.EncodeSegments(nil, segments, chat.Limit)
	span.SetInt("penstock.prompt_tokens", int64(len(tokens)))
	span.End(err)
	return tokens, err
}

// EncodeText implements prep.Encoder.
func (c boundedEncoder) EncodeText(ctx context.Context, text string, opts prep.EncodeOptions) (prep.Prompt, error) {
	reserved, err := c.memory.Reserve(ctx, textCost*int64(len(text)))
	if err != nil {
		return prep.Prompt{}, err
	}
	defer c.memory.Release(reserved)
	_, span := c.tracer.Start(ctx, "tokenize")
	p, err := c.local.EncodeText(ctx, text, opts)
	span.SetInt("penstock.prompt_tokens", int64(len(p.Tokens)))
	span.End(err)
	return p, err
}
