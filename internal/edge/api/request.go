package api

import (
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
)

// Request is a decoded request whose every field is within its limits. What
// depends on the model (context length, vocabulary, default sampling, formats of
// tool calls) is left to whoever knows the model: nil pointers are fields that the
// client did not set.
type Request struct {
	Endpoint Endpoint
	Model    string

	Messages            []Message // of conversations; at least one
	AddGenerationPrompt bool      // of conversations
	ContinueFinal       bool      // of conversations

	// Tools are the functions that the model may call, in the client's order, and
	// ToolsJSON the same as the array of a chat request, which templates print.
	Tools      []Tool
	ToolsJSON  []byte
	ToolChoice ToolChoice
	// OneCall says that the answer may have one call at most.
	OneCall bool

	Format Format
	// TemplateArgs is a JSON object of further variables for the chat template;
	// nil if none.
	TemplateArgs []byte
	// HideReasoning leaves what the model thought out of the answer.
	HideReasoning bool

	Prompts []Prompt // completions only; at least one
	Echo    bool     // completions only: the answer begins with the prompt

	Stream       bool
	IncludeUsage bool // the stream ends with a chunk of usage
	// ContinuousUsage says that, with IncludeUsage, the other chunks have the usage of their choice so far.
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

	Logprobs int // -1 for none, else how many alternatives beside the chosen token

	CacheSalt string
	// Owner is whose names of media those of the request are. Who takes the request says it.
	Owner string
	// Features asks for the prompt with what an engine's processor makes of its media. Who takes the request says it.
	Features bool
	// ProcessorArgs says that the client sets arguments of the model's media processor
	// (mm_processor_kwargs), which only the engine knows the meaning of.
	ProcessorArgs bool
	Ext           RequestExt
}

// Message is one turn of a conversation. Content given as parts is their texts
// joined by newlines.
type Message struct {
	Role    string // system, developer, user, assistant, tool or function
	Name    string
	Content string
	// NoContent says that there is none: the client sent null, or nothing but calls.
	NoContent bool
	// Parts are the pieces of a content that was given as parts, whose texts alone Content then has;
	// nil of all others. The Messages API, which joins texts itself, has them of media only.
	Parts []Part
	// ToolCalls is a JSON array of what the assistant called, as chat requests
	// have it: {"id","type":"function","function":{"name","arguments"}}, arguments
	// being JSON in a string. nil if nothing.
	ToolCalls []byte
	// ToolCallID says which call a tool's message answers.
	ToolCallID string
	// Reasoning is what the assistant thought before it spoke.
	Reasoning string
}

// Tool is a function that the model may call.
type Tool struct {
	Name string
	// Parameters is the JSON schema of its arguments; nil for an object of any kind.
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

// ToolChoice is a mode and, for ToolNamed, the tool, which is one of the request's.
type ToolChoice struct {
	Mode ToolMode
	Name string
}

// Must reports whether the answer must be calls.
func (c ToolChoice) Must() bool { return c.Mode == ToolRequired || c.Mode == ToolNamed }

// FormatKind says what kind of text the answer must be.
type FormatKind uint8

// The kinds.
const (
	FormatText   FormatKind = iota
	FormatJSON              // a JSON object
	FormatSchema            // JSON that matches Format.Schema
)

// Format is what the text of the answer must be.
type Format struct {
	Kind   FormatKind
	Schema []byte // FormatSchema only
	// Param is the field that asked, for errors.
	Param string
}

// Prompt is one prompt of a completions request: Tokens, or Text if that is nil.
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
	// Annotations are what the request asks to be told beside its answer.
	Annotations Annotations
	// Worker is backend_instance_id or decode_worker_id: the worker that must
	// serve the request; 0 if none. Rank is dp_rank, nil if not given.
	Worker kv.WorkerID
	Rank   *uint32
	// Tokens are token_data: the prompt, tokenized by the client; nil if none.
	Tokens []kv.Token
	// ExpectedOutput is agent_hints.osl; 0 if none.
	ExpectedOutput int
	// Priority is agent_hints.priority, in seconds, and strict_priority.
	Priority queue.Priority
	// Session is session_control.
	Session route.Session
	// Allowed are allowed_worker_ids: the only workers that may serve the request; nil if
	// all may.
	Allowed []kv.WorkerID
	// Override is router_config_override.
	Override route.Override
	// WorkerFields asks for nvext.worker_id in the answer.
	WorkerFields bool
}

// Pin returns the worker and rank that must serve the request; the zero Worker if the router
// may choose. The error is a *fault.Error: a rank is one of a worker.
func (x *RequestExt) Pin() (kv.Worker, error) {
	pin := kv.Worker{ID: x.Worker}
	if x.Rank == nil {
		return pin, nil
	}
	if x.Worker == 0 {
		return kv.Worker{}, fault.Param("nvext.dp_rank", "'nvext.dp_rank' needs a worker id beside it (nvext.backend_instance_id)")
	}
	pin.Rank = *x.Rank
	return pin, nil
}
