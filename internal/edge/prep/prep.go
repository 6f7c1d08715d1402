// Package prep turns what a client sent into the token ids that the engine sees,
// and the engine's tokens back into text.
package prep

import "penstock/core/kv"

// Tokenizer maps between text and token ids for one model. Implementations are
// safe for concurrent use.
type Tokenizer interface {
	// Encode appends the ids of text to dst. Special tokens in text are
	// recognised only with opts.ParseSpecial, and begin-of-sequence tokens are
	// added only with opts.AddSpecial.
	Encode(dst []kv.Token, text string, opts EncodeOptions) []kv.Token
	// AppendBytes appends the bytes that id stands for; a special token appends
	// its literal text. ok is false if id is not in the vocabulary.
	AppendBytes(dst []byte, id kv.Token) (out []byte, ok bool)
	// Special reports whether id is a special token, which decoded text leaves out.
	Special(id kv.Token) bool
	// ID returns the id whose vocabulary entry is exactly text.
	ID(text string) (id kv.Token, ok bool)
	// VocabSize is one more than the largest id.
	VocabSize() int
	// NewDecoder returns an incremental decoder for one stream.
	NewDecoder(opts DecodeOptions) Decoder
}

// SegmentEncoder is what a Tokenizer is besides if it matters to it that the
// segments of a prompt are one text. Of another one each kind of segment is
// encoded by itself.
type SegmentEncoder interface {
	// EncodeSegments appends the ids of the segments as of one text, in which
	// special tokens are recognised in special segments only.
	EncodeSegments(dst []kv.Token, segments []Segment) []kv.Token
}

// EncodeOptions say how special tokens are treated.
type EncodeOptions struct {
	ParseSpecial bool
	AddSpecial   bool
}

// DecodeOptions say what a decoder leaves out.
type DecodeOptions struct {
	KeepSpecial bool // keep the text of special tokens
}

// Decoder turns one stream of tokens into valid UTF-8, never half a character.
// It is not safe for concurrent use.
type Decoder interface {
	// Push appends the text that id completes to dst; it may be none.
	Push(dst []byte, id kv.Token) []byte
	// Flush appends what is left, broken characters as U+FFFD.
	Flush(dst []byte) []byte
}

// Message is one turn of a conversation as a chat template sees it.
type Message struct {
	Role    string // system, developer, user, assistant, tool, function
	Name    string
	Content string
	// NoContent says that the client sent none, or null.
	NoContent bool

	// Parts, if there are any, stand for Content: a JSON array of content parts.
	Parts []byte
	// ToolCalls is a JSON array of what the assistant called, ToolCallID which of
	// those a tool's message answers, Reasoning what the assistant thought.
	ToolCalls  []byte
	ToolCallID string
	Reasoning  string
}

// Chat is a conversation to render.
type Chat struct {
	Messages []Message
	// Tools is a JSON array of what the model may call; nil if nothing. JSON that
	// a client wrote stays text, since templates print it in the client's order.
	Tools []byte
	// Args is a JSON object of further variables for the template
	// (chat_template_kwargs); nil if none. Templates that are Go code have no use
	// for any and ignore it.
	Args []byte
	// Content is the rule of the engine that the prompt is for. It does not travel: an engine that makes
	// the prompt itself has its own.
	Content ContentRule
	// AddGenerationPrompt ends the prompt where the assistant speaks next.
	AddGenerationPrompt bool
	// Media are what Parts show besides text, in the order of messages and parts. They, Namespace,
	// ProcessorArgs and Features are for who encodes, and are no part of the conversation: the first three
	// travel with [AppendShown] alone, Features beside it.
	Media []Media
	// Namespace is whose names of media those are that the client gave: its salt and its key; with ""
	// names count for nothing.
	Namespace string
	// ProcessorArgs says that the client sets arguments of the model's media processor.
	ProcessorArgs bool
	// Features asks an engine that makes the prompt also for what its processor makes of the media.
	Features bool
	// ContinueFinal leaves the last message open for the model to go on with.
	ContinueFinal bool
}

// Segment is a run of prompt text. In special ones, and only there, the names of
// special tokens stand for the tokens; what a client wrote is never special, so
// that nobody can end a turn or open another role by spelling a token's name.
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
