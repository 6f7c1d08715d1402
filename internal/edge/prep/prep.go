// Package prep turns a client's request into the token ids which the engine sees, and the engine's tokens
// back into text.
package prep

import "penstock/core/kv"

// Tokenizer maps between text and token ids for one model. Implementations are
// safe for concurrent use.
type Tokenizer interface {
	// Encode appends the ids of text to dst. Special tokens in text are
	// recognised only with opts.ParseSpecial, and begin-of-sequence tokens are
	// added only with opts.AddSpecial.
	Encode(dst []kv.Token, text string, opts EncodeOptions) []kv.Token
	// AppendBytes appends the bytes of id; a special token appends its literal text. ok is false if id is not
	// in the vocabulary.
	AppendBytes(dst []byte, id kv.Token) (out []byte, ok bool)
	// IsSpecial reports whether id is a special token, which decoded text leaves out.
	IsSpecial(id kv.Token) bool
	// ID returns the id whose vocabulary entry is exactly text.
	ID(text string) (id kv.Token, ok bool)
	// VocabSize is one more than the largest id.
	VocabSize() int
	// NewDecoder returns an incremental decoder for one stream.
	NewDecoder(opts DecodeOptions) Decoder
}

// SegmentEncoder is implemented by a Tokenizer whose result depends on the segments of a prompt being one
// text. For other tokenizers each run of one kind is encoded by itself.
type SegmentEncoder interface {
	// EncodeSegments appends the ids of the segments as one text, in which special tokens are recognised in
	// special segments only. limit is that of EncodeOptions.
	EncodeSegments(dst []kv.Token, segments []Segment, limit int) []kv.Token
}

// LengthBounder is implemented by a Tokenizer which knows a least number of tokens before it encodes.
type LengthBounder interface {
	// MaxTokenBytes is the length in bytes of the longest text which one token can stand for: n bytes are
	// n/MaxTokenBytes tokens or more. It is 0 if there is no such length.
	MaxTokenBytes() int
}

// EncodeOptions say how special tokens are treated, and how much of a text is needed.
type EncodeOptions struct {
	ParseSpecial bool
	AddSpecial   bool
	// Limit, unless it is 0, is a number of tokens after which the rest is of no use: the result for a text with
	// more tokens has more than Limit of them, but not necessarily all.
	Limit int
}

// DecodeOptions say what a decoder leaves out.
type DecodeOptions struct {
	KeepSpecial bool // keep the text of special tokens
}

// Decoder turns one stream of tokens into valid UTF-8, never half a character.
// It is not safe for concurrent use.
type Decoder interface {
	// Push appends the text which id completes to dst; it may be empty.
	Push(dst []byte, id kv.Token) []byte
	// Flush appends the rest, broken characters as U+FFFD.
	Flush(dst []byte) []byte
}

// Message is one turn of a conversation as a chat template sees it.
type Message struct {
	Role    string // system, developer, user, assistant, tool, function
	Name    string
	Content string
	// NoContent reports that the client sent no content, or null.
	NoContent bool

	// Parts, if not empty, replace Content: a JSON array of content parts.
	Parts []byte
	// ToolCalls is a JSON array of the assistant's tool calls. ToolCallID is the call which a tool message
	// answers. Reasoning is the assistant's reasoning text.
	ToolCalls  []byte
	ToolCallID string
	Reasoning  string
}

// Chat is a conversation to render.
type Chat struct {
	Messages []Message
	// Tools is a JSON array of the tools; nil if there are none. A client's JSON stays text, since templates
	// print it in the client's order.
	Tools []byte
	// Args is a JSON object of further variables for the template (chat_template_kwargs); nil if none.
	// Templates in Go ignore it.
	Args []byte
	// Content is the rule of the engine which gets the prompt. It is not encoded: an engine which makes the
	// prompt itself follows its own.
	Content ContentRule
	// AddGenerationPrompt ends the prompt where the assistant's turn begins.
	AddGenerationPrompt bool
	// Media are the media in Parts, in the order of messages and parts. Media, Namespace, ProcessorArgs and
	// Features are for the encoder and no part of the conversation: the first three are encoded by
	// [AppendChatWithMedia] only, Features is sent beside it.
	Media []Media
	// Namespace scopes the client's names of media: its salt and its key. With "" names are ignored.
	Namespace string
	// ProcessorArgs reports that the client sets arguments of the model's media processor.
	ProcessorArgs bool
	// Features asks an engine which makes the prompt to return its processor's output for the media as well.
	Features bool
	// ContinueFinal leaves the last message open for the model to continue.
	ContinueFinal bool
	// Limit, unless it is 0, is the number of tokens above which the prompt is refused with a [*LengthError],
	// soon if it is far above. It is for an encoder in this process and is not encoded.
	Limit int
}

// Segment is a run of prompt text. Names of special tokens stand for the tokens in special segments only. A
// client's text is never special, so that a client cannot end a turn or open another role by spelling a
// token's name.
type Segment struct {
	Text    string
	Special bool
}

// Template renders a conversation into the text that the model was trained on.
// Implementations are safe for concurrent use.
type Template interface {
	// Render appends the prompt to dst, or returns a *fault.Error: Invalid if the
	// template refuses the conversation, Unimplemented if it cannot render it.
	// Neighbouring segments of one kind mean the same as one segment.
	Render(dst []Segment, c *Chat) ([]Segment, error)
}

// ContentRule selects the form in which message content reaches a model's own chat template. Engines differ
// in it, and a prompt made here must equal the one which the engine itself would make: the cache is keyed by
// tokens.
type ContentRule uint8

// The rules. A list is a JSON array of parts; a text is {"type":"text","text":…}.
const (
	// ContentVLLM: a list, even for a single text, where the template loops over the content; otherwise the
	// texts of the parts joined by newlines. The content of a tool message is always a text.
	ContentVLLM ContentRule = iota
	// ContentSGLang: parts stay a list where the template loops over the content or mentions media; otherwise
	// their texts are joined by spaces. A text stays a text, and so does the content of a tool message.
	ContentSGLang
	// ContentTRTLLM: texts joined by newlines, whatever the template.
	ContentTRTLLM
	// ContentLlamaCpp: texts joined by newlines, unless the template renders lists only.
	ContentLlamaCpp
)

// ContentRuleOf returns the rule of an engine by its name in model cards. External reports that the engine is
// not Penstock's own. Penstock's engines and unknown ones follow vLLM's rule.
func ContentRuleOf(engine string) (rule ContentRule, external bool) {
	switch engine {
	case "vllm":
		return ContentVLLM, true
	case "sglang":
		return ContentSGLang, true
	case "trtllm":
		return ContentTRTLLM, true
	case "llamacpp":
		return ContentLlamaCpp, true
	}
	return ContentVLLM, false
}
