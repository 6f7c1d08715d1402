package prep

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media/family"
)

// Pipeline is all that a served model needs between text and tokens. It does not
// change once made and is safe for concurrent use.
type Pipeline struct {
	Tokenizer Tokenizer
	// Template renders chats; nil if the model serves completions only.
	Template Template
	// TemplateName says which template that is and why, for logs.
	TemplateName string
	// TemplateText is the source of the model's own template, which shows how it
	// writes calls; "" if it has none.
	TemplateText string
	// ToolFormat is the form in which Template itself shows calls, as package parse
	// names it; "" if that is for TemplateText to tell.
	ToolFormat string
	// StopTokens end a turn besides the model card's own.
	StopTokens []kv.Token
	// Family is how the model's prompts show media, nil if they show none or it is not known how;
	// SetFamily sets it.
	Family *family.Family
	// NoFamily says why there is none, as a sentence without its full stop; "" if there is one.
	NoFamily string
	// families opens the family for engines that serve the model in different ways; nil if SetFamily
	// alone says what it is.
	families func(family.Serving) (*family.Family, error)
	// Digest is the hex SHA-256 over the files that all this was made from.
	Digest string

	marks    []kv.Token // that hold the places of media, ascending
	literals []string   // their texts
}

// HasToken reports whether text is one token of the vocabulary.
func (p *Pipeline) HasToken(text string) bool {
	_, ok := p.Tokenizer.ID(text)
	return ok
}

// EncodeChat appends the prompt of a conversation to dst. The error is a
// *fault.Error: Invalid if the conversation is not one, Unimplemented if the
// model has no template that can render it.
func (p *Pipeline) EncodeChat(dst []kv.Token, c *Chat) ([]kv.Token, error) {
	segments, err := p.Render(c)
	if err != nil {
		return dst, err
	}
	return p.EncodeSegments(dst, segments), nil
}

// Render is the first half of EncodeChat: the text of a conversation.
func (p *Pipeline) Render(c *Chat) ([]Segment, error) {
	if p.Template == nil {
		return nil, fault.New(fault.Unimplemented, "this model has no chat template; give a plain prompt instead of messages (/v1/completions, penstock route --raw)")
	}
	if err := p.unshown(c); err != nil {
		return nil, err
	}
	if err := p.literal(c); err != nil {
		return nil, err
	}
	return p.Template.Render(nil, c)
}

// Text returns the text of a conversation's prompt.
func (p *Pipeline) Text(c *Chat) (string, error) {
	segments, err := p.Render(c)
	if err != nil || len(segments) == 0 {
		return "", err
	}
	return join(segments), nil
}

// EncodeSegments is the second half of EncodeChat: it appends the tokens of the
// segments of a prompt to dst.
func (p *Pipeline) EncodeSegments(dst []kv.Token, segments []Segment) []kv.Token {
	if t, ok := p.Tokenizer.(SegmentEncoder); ok {
		return t.EncodeSegments(dst, segments)
	}
	for len(segments) > 0 {
		n := sameKind(segments)
		dst = p.Tokenizer.Encode(dst, join(segments[:n]), EncodeOptions{ParseSpecial: segments[0].Special})
		segments = segments[n:]
	}
	return dst
}

// unshown refuses what the model would never see: a template of its own that does
// not know of tools renders as if there were none, and nobody would know why the
// model calls nothing.
func (p *Pipeline) unshown(c *Chat) error {
	if p.TemplateText == "" {
		return nil
	}
	field := ""
	if len(c.Tools) > 0 && !strings.Contains(p.TemplateText, "tools") {
		field = "tools"
	}
	called := func(m Message) bool { return len(m.ToolCalls) > 0 }
	if i := slices.IndexFunc(c.Messages, called); i >= 0 && !strings.Contains(p.TemplateText, "tool_calls") {
		field = fmt.Sprintf("messages[%d].tool_calls", i)
	}
	if field == "" {
		return nil
	}
	err := fault.New(fault.Unimplemented, "this model's chat template does not show %s: leave it out, or ask a model that was trained on it", field)
	err.Param = field
	return err
}

// EncodeText appends the tokens of a raw prompt to dst: special tokens in it are
// recognised, and those that the model expects around a text are added. A client
// that sends one has taken the place of the template.
func (p *Pipeline) EncodeText(dst []kv.Token, text string) []kv.Token {
	return p.Tokenizer.Encode(dst, text, RawPrompt())
}

// sameKind returns how many segments at the start are of the first one's kind.
func sameKind(segments []Segment) int {
	n := 1
	for n < len(segments) && segments[n].Special == segments[0].Special {
		n++
	}
	return n
}

// join puts segments together before they are encoded: a word may span them.
func join(segments []Segment) string {
	if len(segments) == 1 {
		return segments[0].Text
	}
	var b strings.Builder
	size := 0
	for _, s := range segments {
		size += len(s.Text)
	}
	b.Grow(size)
	for _, s := range segments {
		b.WriteString(s.Text)
	}
	return b.String()
}
