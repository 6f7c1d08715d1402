// Package openai is the wire form of the OpenAI API: strict decoding of chat,
// completion and embedding requests, and the bytes of answers, streams and errors.
//
// Decoding knows every field that OpenAI and the servers in the field define.
// A field is understood, or accepted because ignoring it cannot change the
// answer, or refused by name; nothing is dropped in silence. Answers are
// written from one kind of [Chunk]: a stream prints each, a whole answer is
// their fold by a [Collector], so the two can never differ.
package openai

import (
	"penstock/core/kv"
	"penstock/core/route"
)

// Endpoint is one of the endpoints that models serve.
type Endpoint uint8

// The endpoints.
const (
	Chat       Endpoint = iota // POST /v1/chat/completions
	Completion                 // POST /v1/completions
	Embeddings                 // POST /v1/embeddings; not for Decode
)

// String returns the endpoint's name as metrics print it.
func (e Endpoint) String() string {
	switch e {
	case Completion:
		return "completions"
	case Embeddings:
		return "embeddings"
	}
	return "chat_completions"
}

// Request is a decoded request whose every field is within its limits. What
// depends on the model (context length, vocabulary, default sampling) is left
// to whoever knows the model: nil pointers are fields that the client did not
// set.
type Request struct {
	Endpoint Endpoint
	Model    string

	Messages            []Message // chat only; at least one
	AddGenerationPrompt bool      // chat only
	ContinueFinal       bool      // chat only

	Prompts []Prompt // completions only; at least one
	Echo    bool     // completions only: the answer begins with the prompt

	Stream       bool
	IncludeUsage bool // the stream ends with a chunk of usage

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
	Ext       RequestExt
}

// Message is one turn of a conversation. Content given as parts is their texts
// joined by newlines.
type Message struct {
	Role    string // system, developer, user, assistant, tool or function
	Name    string
	Content string
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
	// Annotations ask for extra information about the request.
	Annotations []string
	// Worker is backend_instance_id or decode_worker_id: the worker that must
	// serve the request; 0 if none.
	Worker kv.WorkerID
	// Tokens are token_data: the prompt, tokenized by the client; nil if none.
	Tokens []kv.Token
	// ExpectedOutput is agent_hints.osl; 0 if none.
	ExpectedOutput int
	// Override is router_config_override.
	Override route.Override
	// WorkerFields asks for nvext.worker_id in the answer.
	WorkerFields bool
}

// QueryInstance is the annotation that asks which worker would serve a request,
// without sending it there.
const QueryInstance = "query_instance_id"

// Asks reports whether the request carries an annotation.
func (x *RequestExt) Asks(annotation string) bool {
	for _, a := range x.Annotations {
		if a == annotation {
			return true
		}
	}
	return false
}
