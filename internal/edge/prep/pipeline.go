package prep

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media/family"
)

// Pipeline has everything which a served model needs between text and tokens. It is immutable once made and
// safe for concurrent use.
type Pipeline struct {
	Tokenizer Tokenizer
	// Template renders chats; nil if the model serves completions only.
	Template Template
	// TemplateName names the template and says why it was chosen, for logs.
	TemplateName string
	// TemplateText is the source of the model's own template, which shows how the model writes tool calls; ""
	// if it has none.
	TemplateText string
	// ToolFormat is the form in which Template shows tool calls, as package parse names it; "" if
	// TemplateText decides it.
	ToolFormat string
	// StopTokens end a turn, in addition to the model card's own.
	StopTokens []kv.Token
	// Family says how the model's prompts show media; nil if they show none or the way is unknown. SetFamily
	// sets it.
	Family *family.Family
	// NoFamilyReason says why there is no family, as a sentence without its full stop; "" if there is one.
	NoFamilyReason string
	// openServing opens the family for an engine's serving settings; nil if SetFamily set a fixed one.
	openServing func(family.Serving) (*family.Family, error)
	// Digest is the hex SHA-256 of the files from which the pipeline was made.
	Digest string

	mediaTokens []kv.Token // media placeholder tokens, ascending
	mediaTexts  []string   // their texts
}

// HasToken reports whether text is one token of the vocabulary.
func (p *Pipeline) HasToken(text string) bool {
	_, ok := p.Tokenizer.ID(text)
	return ok
}

// EncodeChat appends the prompt of a conversation to dst. The error is a *fault.Error: Invalid for an invalid
// conversation, Unimplemented if the model has no template which can render it.
func (p *Pipeline) EncodeChat(dst []kv.Token, c *Chat) ([]kv.Token, error) {
	segments, err := p.RenderChat(c)
	if err != nil {
		return dst, err
	}
	return p.EncodeSegments(dst, segments, c.Limit)
}

// RenderChat is the first half of EncodeChat: it renders the text of a conversation.
func (p *Pipeline) RenderChat(c *Chat) ([]Segment, error) {
	if p.Template == nil {
		return nil, fault.New(fault.Unimplemented, "this model has no chat template; give a plain prompt instead of messages (/v1/completions, penstock route --raw)")
	}
	if err := p.rejectUnsupportedTools(c); err != nil {
		return nil, err
	}
	if err := p.rejectMediaText(c); err != nil {
		return nil, err
	}
	return p.Template.Render(nil, p.numberImages(c))
}

// RenderText returns the text of a conversation's prompt.
func (p *Pipeline) RenderText(c *Chat) (string, error) {
	segments, err := p.RenderChat(c)
	if err != nil || len(segments) == 0 {
		return "", err
	}
	return joinSegments(segments), nil
}

// EncodeSegments is the second half of EncodeChat: it appends the tokens of the segments to dst. It returns a
// *LengthError if they are more than limit, unless that is 0.
func (p *Pipeline) EncodeSegments(dst []kv.Token, segments []Segment, limit int) ([]kv.Token, error) {
	if chunks := p.splitAtImages(segments); len(chunks) > 1 {
		return p.encodeChunks(dst, chunks), nil
	}
	size, before := 0, len(dst)
	for _, s := range segments {
		size += len(s.Text)
	}
	if err := checkLength(p.leastTokens(size), limit); err != nil {
		return dst, err
	}
	dst = p.encodeSegments(dst, segments, limit)
	return dst, checkLength(len(dst)-before, limit)
}

// leastTokens returns a number of tokens which a text of size bytes has at least.
func (p *Pipeline) leastTokens(size int) int {
	if t, ok := p.Tokenizer.(LengthBounder); ok && t.MaxTokenBytes() > 0 {
		return size / t.MaxTokenBytes()
	}
	return 0
}

// LengthError says that a text has more tokens than an encoder was asked for.
type LengthError struct {
	AtLeast int    // the tokens of the text, or fewer
	Param   string // the name of the text in the request, where a request has several
}

// Error implements error.
func (e *LengthError) Error() string {
	return fmt.Sprintf("the text has %d tokens or more, which is too long", e.AtLeast)
}

// checkLength returns a *LengthError if tokens are more than limit, unless that is 0.
func checkLength(tokens, limit int) error {
	if limit == 0 || tokens <= limit {
		return nil
	}
	return &LengthError{AtLeast: tokens}
}

func (p *Pipeline) encodeSegments(dst []kv.Token, segments []Segment, limit int) []kv.Token {
	if t, ok := p.Tokenizer.(SegmentEncoder); ok {
		return t.EncodeSegments(dst, segments, limit)
	}
	for len(segments) > 0 {
		n := countSameKind(segments)
		dst = p.Tokenizer.Encode(dst, joinSegments(segments[:n]), EncodeOptions{ParseSpecial: segments[0].Special, Limit: limit})
		segments = segments[n:]
	}
	return dst
}

// rejectUnsupportedTools refuses tools which the model would never see: a template of its own which does not
// mention tools renders as if there were none, and the model would silently never call them.
func (p *Pipeline) rejectUnsupportedTools(c *Chat) error {
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

// EncodeText appends the tokens of a raw prompt to dst: special tokens in it are recognised, and the ones
// which the model expects around a text are added. A raw prompt takes the place of the template's output.
func (p *Pipeline) EncodeText(dst []kv.Token, text string) []kv.Token {
	return p.Tokenizer.Encode(dst, text, RawPrompt())
}

// countSameKind returns the number of leading segments of the first one's kind.
func countSameKind(segments []Segment) int {
	n := 1
	for n < len(segments) && segments[n].Special == segments[0].Special {
		n++
	}
	return n
}

// joinSegments joins segments before they are encoded, since a word may span them.
func joinSegments(segments []Segment) string {
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
