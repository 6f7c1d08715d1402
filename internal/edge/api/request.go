// Package api contains what the client APIs have in common: a decoded request as the frontend understands it,
// and the chunks of its answer.
//
// A dialect decodes its wire format into a [Request] and prints the [Chunk]s of the answer in its wire
// format, so that everything between exists once. A whole answer is the [Fold] of the chunks which a stream
// would have printed, so the two cannot differ but by [Request.FillContent].
package api

import (
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/strictjson"
)

// Request is a decoded request with every field within its limits. Code which knows the model handles what
// depends on it: context length, vocabulary, default sampling, tool call formats. Nil pointers are fields
// which the client did not set.
type Request struct {
	Endpoint Endpoint
	Model    string

	Messages            []Message // conversations only; at least one
	AddGenerationPrompt bool      // conversations only
	ContinueFinal       bool      // conversations only

	// Tools are the functions which the model may call, in the client's order. ToolsJSON is the same as the
	// array of a chat request, which chat templates print.
	Tools      []Tool
	ToolsJSON  []byte
	ToolChoice ToolChoice
	// OneCall limits the answer to one call.
	OneCall bool

	Format Format
	// TemplateArgs is a JSON object of additional chat template variables; nil if there are none.
	TemplateArgs []byte
	// HideReasoning omits the model's reasoning from the answer.
	HideReasoning bool
	// FillContent gives an answer without content and calls its reasoning as content. A stream repeats the
	// reasoning at its end; in a whole answer it is content alone.
	FillContent bool

	Prompts []Prompt // completions only; at least one
	Echo    bool     // completions only: the answer begins with the prompt

	Stream       bool
	IncludeUsage bool // the stream ends with a usage chunk
	// ContinuousUsage, with IncludeUsage, adds the usage of their choice so far to the other chunks.
	ContinuousUsage bool

	N         int // choices for each prompt, at least 1
	MaxTokens int // 0 if not set
	MinTokens int

	Temperature       *float64
	TopP              *float64
	MinP              *float64
	TopK              *int // -1 and 0 are off
	PresencePenalty   *float64
	FrequencyPenalty  *float64
	RepetitionPenalty *float64
	Seed              *uint64
	Bias              []TokenBias // ascending by token

	Stop        []string // none is empty
	StopTokens  []kv.Token
	IgnoreEOS   bool
	KeepStop    bool // the stop string stays in the text
	KeepSpecial bool // special tokens stay in the text

	Logprobs int // number of alternatives to the chosen token; -1 for no log-probabilities

	CacheSalt string
	// Owner is the namespace of the client's media names. The server sets it when it accepts the request.
	Owner string
	// Features requests the prompt together with the output of the engine's media processor. The server sets
	// it when it accepts the request.
	Features bool
	// ProcessorArgs says that the client sets arguments of the model's media processor (mm_processor_kwargs),
	// which only the engine understands.
	ProcessorArgs bool
	Ext           RequestExt
}

// Message is one turn of a conversation. If the content was given as parts, Content is their texts joined by
// newlines.
type Message struct {
	Role    string // system, developer, user, assistant, tool or function
	Name    string
	Content string
	// NoContent says that there is no content: the client sent null, or only tool calls.
	NoContent bool
	// Parts are the parts of a content which was given as parts; nil for others. The Messages API, which
	// joins texts itself, sets them only if there are media.
	Parts []Part
	// ToolCalls is a JSON array of the assistant's tool calls in the form of chat requests:
	// {"id","type":"function","function":{"name","arguments"}}, with the arguments as JSON in a string; nil
	// if there are none.
	ToolCalls []byte
	// ToolCallID is the id of the call which a tool's message answers.
	ToolCallID string
	// Reasoning is the assistant's reasoning before its text.
	Reasoning string
}

// JoinTexts returns the texts of parts, separated by newlines.
func JoinTexts(parts []Part) string {
	if len(parts) == 1 {
		return parts[0].Text
	}
	var text strings.Builder
	begun := false
	for i := range parts {
		if parts[i].Media != nil {
			continue
		}
		if begun {
			text.WriteByte('\n')
		}
		begun = true
		text.WriteString(parts[i].Text)
	}
	return text.String()
}

// Tool is a function which the model may call.
type Tool struct {
	Name string
	// Parameters is the JSON schema of its arguments; nil accepts any object.
	Parameters []byte
}

// ToolMode says what the model may or must do with its tools.
type ToolMode uint8

// The modes.
const (
	ToolAuto     ToolMode = iota // answer, or call
	ToolNone                     // answer
	ToolRequired                 // call at least one
	ToolNamed                    // call ToolChoice.Name
)

// ToolChoice is a mode and, for ToolNamed, the name of one of the request's tools.
type ToolChoice struct {
	Mode ToolMode
	Name string
}

// RequiresCall reports whether the answer must be tool calls.
func (c ToolChoice) RequiresCall() bool { return c.Mode == ToolRequired || c.Mode == ToolNamed }

// FormatKind is the kind of text which the answer must be.
type FormatKind uint8

// The kinds.
const (
	FormatText   FormatKind = iota
	FormatJSON              // a JSON object
	FormatSchema            // JSON that matches Format.Schema
)

// Format is the required format of the answer's text.
type Format struct {
	Kind   FormatKind
	Schema []byte // FormatSchema only
	// Param is the field which set the format, for error messages.
	Param string
}

// Prompt is one prompt of a completions request: Tokens, or Text if Tokens is nil.
type Prompt struct {
	Text   string
	Tokens []kv.Token
}

// TokenBias adds Bias to the logit of Token.
type TokenBias struct {
	Token kv.Token
	Bias  float32
}

// RequestExt is the request object "nvext".
type RequestExt struct {
	// Annotations are the annotations which the request asks for.
	Annotations Annotations
	// Worker is backend_instance_id or decode_worker_id: the worker which must serve the request; 0 if there
	// is none. Rank is dp_rank; nil if not given.
	Worker kv.WorkerID
	Rank   *uint32
	// PrefillWorker is prefill_worker_id: the worker which must compute the prompt, if another one than Worker does; 0 if
	// there is none.
	PrefillWorker kv.WorkerID
	// Tokens is token_data: the prompt, tokenized by the client; nil if not given.
	Tokens []kv.Token
	// ExpectedOutput is agent_hints.osl; 0 if none.
	ExpectedOutput int
	// Priority is agent_hints.priority, in seconds, and strict_priority.
	Priority queue.Priority
	// Session is session_control.
	Session route.Session
	// Allowed is allowed_worker_ids: the only workers which may serve the request; nil allows all.
	Allowed []kv.WorkerID
	// Override is router_config_override.
	Override route.Override
	// WorkerFields requests nvext.worker_id in the answer.
	WorkerFields bool
	// MediaFailure is media_failure: what happens if an object of the request cannot be had or encoded.
	MediaFailure MediaPolicy
}

// MediaPolicy says what happens to a request of which an object fails.
type MediaPolicy uint8

// The policies.
const (
	FailRequest MediaPolicy = iota // the request fails
	TextOnly                       // it is served without the object, and the answer says so
)

// MediaPolicyNames are the names of the policies, in order.
func MediaPolicyNames() []string { return []string{"fail", "text_only"} }

// PinnedWorker returns the worker and rank which must serve the request; the zero Worker if the router may
// choose. It returns a *fault.Error if there is a rank without a worker.
func (x *RequestExt) PinnedWorker() (kv.Worker, error) {
	pin := kv.Worker{ID: x.Worker}
	if x.Rank == nil {
		return pin, nil
	}
	if x.Worker == 0 {
		return kv.Worker{}, fault.InvalidParam("nvext.dp_rank", "'nvext.dp_rank' needs a worker id beside it (nvext.backend_instance_id)")
	}
	pin.Rank = *x.Rank
	return pin, nil
}

// Endpoint is an API endpoint of a model.
type Endpoint uint8

// The endpoints.
const (
	Chat       Endpoint = iota // POST /v1/chat/completions
	Completion                 // POST /v1/completions
	Embeddings                 // POST /v1/embeddings
	Responses                  // POST /v1/responses
	Messages                   // POST /v1/messages
)

// String returns the endpoint's name in metrics.
func (e Endpoint) String() string {
	return [...]string{"chat_completions", "completions", "embeddings", "responses", "messages"}[e]
}

// IsConversation reports whether the endpoint's requests are conversations.
func (e Endpoint) IsConversation() bool { return e == Chat || e == Responses || e == Messages }

// Writer prints one answer in the format of one API, streamed or whole. It is not safe for concurrent use.
type Writer interface {
	// Append appends the stream's events for the next chunk to dst. It retains nothing of c except Ext.
	Append(dst []byte, c *Chunk) []byte
	// End appends the end of the answer: a stream's last events, or the whole body.
	End(dst []byte) []byte
	// Fail appends the event which ends a failed stream.
	Fail(dst []byte, err error) []byte
}

// IsValidName reports whether s can name a function or a schema: it has 1 to most bytes, each an ASCII
// letter, a digit or one of marks.
func IsValidName(s string, most int, marks string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte(marks, c) >= 0:
		default:
			return false
		}
	}
	return s != "" && len(s) <= most
}

// AppendCall appends a tool call in the form of chat requests and answers.
func AppendCall[S []byte | string](dst []byte, id, name string, arguments S) []byte {
	dst = strictjson.AppendMember(dst, `{"id":`, id)
	dst = strictjson.AppendMember(dst, `,"type":"function","function":{"name":`, name)
	dst = strictjson.AppendMember(dst, `,"arguments":`, arguments)
	return append(dst, `}}`...)
}

// AppendTool appends a function as an element of a chat request's tools. A nil description and nil parameters
// are left out.
func AppendTool(dst []byte, name string, description *string, parameters []byte) []byte {
	dst = strictjson.AppendMember(dst, `{"type":"function","function":{"name":`, name)
	if description != nil {
		dst = strictjson.AppendMember(dst, `,"description":`, *description)
	}
	if parameters != nil {
		dst = append(dst, `,"parameters":`...)
		dst = append(dst, parameters...)
	}
	return append(dst, `}}`...)
}
