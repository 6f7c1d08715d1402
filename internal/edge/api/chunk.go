package api

import "penstock/core/kv"

// Head is common to all chunks of one answer. Fingerprint is set when a worker has accepted the request.
// Nothing changes after the first chunk.
type Head struct {
	ID          string // of the request; dialects add their own prefix
	Model       string // as in the request
	Fingerprint string // of the numerics which computed the answer
	Created     int64  // seconds since 1970
}

// ChunkKind says which part of an answer a Chunk is.
type ChunkKind uint8

// The kinds. A choice has at most one Role (conversations only, before the rest), any number of Text,
// Reasoning and calls, and one Finish. Usage is the last chunk of the answer. A call is a CallBegin, any
// number of Arguments, and a CallEnd, which is missing if the answer ended within the call. Calls of a choice
// do not overlap, but there may be text between them.
const (
	Role ChunkKind = iota
	Text
	Reasoning
	CallBegin
	Arguments
	CallEnd
	Finish
	Usage
)

// FinishReason is the reason why a choice ended.
type FinishReason uint8

// The reasons.
const (
	NoReason     FinishReason = iota // it has not ended
	ReasonStop                       // the model ended it, or a stop string did
	ReasonLength                     // the token limit
	ReasonCalls                      // the model called functions
)

// Chunk is one step of an answer.
type Chunk struct {
	Kind   ChunkKind
	Choice int
	// Text continues the choice's text, reasoning or arguments. It is valid UTF-8.
	Text []byte
	// Logprobs describe tokens in order; nil if they were not requested. Only Text and Reasoning have them,
	// and their text may be empty.
	Logprobs []Logprob
	// Call is the index of the call within the choice, from 0. CallBegin, Arguments and CallEnd only.
	Call int
	// CallID and Name are a call's id and function. CallBegin only.
	CallID, Name string
	// Reason is why the choice ended. Finish only.
	Reason FinishReason
	// StopString is the stop string which ended the choice; "" if none did. Finish only.
	StopString string
	// Tokens are the token counts. In Usage they cover the whole answer. In other chunks, Prompt and Cached
	// are those of the choice's prompt, and Completion and Reasoning the tokens of the choice so far, which are 0
	// in Role.
	Tokens TokenCounts
	// Ext says how the answer was produced. Usage and the last Finish have it.
	Ext *AnswerExt
}

// Logprob is a token, its log-probability and the most likely alternatives.
type Logprob struct {
	Token   []byte // the token's bytes, which may end within a character
	Logprob float32
	Top     []TokenLogprob
	Offset  int // start of the token, in characters of the choice's text
}

// TokenLogprob is one alternative.
type TokenLogprob struct {
	Token   []byte
	Logprob float32
}

// CachedUnknown is the number of cached tokens if no engine has reported it. Answers omit such a number.
const CachedUnknown = -1

// TokenCounts counts the tokens of a request. Cached counts the tokens of Prompt whose keys and values came
// from the cache, or is CachedUnknown. Reasoning counts the reasoning tokens within Completion.
type TokenCounts struct {
	Prompt, Completion, Cached, Reasoning int
}

// Add adds o's counts to c's. The sum of Cached is known only if both are.
func (c *TokenCounts) Add(o TokenCounts) {
	c.Prompt += o.Prompt
	c.Completion += o.Completion
	if c.Cached == CachedUnknown || o.Cached == CachedUnknown {
		c.Cached = CachedUnknown
	} else {
		c.Cached += o.Cached
	}
	c.Reasoning += o.Reasoning
}

// AnswerExt is the object "nvext" of an answer.
type AnswerExt struct {
	// Attempts are all attempts which were routed, in order.
	Attempts []Attempt
	// WorkerFields adds worker_id, the worker of the last attempt.
	WorkerFields bool
	// Query, if not nil, replaces all of it: the request was only a query.
	Query *QueryAnswer
	// MediaDropped are the media without which the request was served, MediaHalved the media which were made smaller for
	// it, ascending by index.
	MediaDropped []DroppedMedia
	MediaHalved  []HalvedMedia
	// Annotated answers the request's annotations if the answer has no events for them; nil if there are
	// none.
	Annotated *Annotated
}

// DroppedMedia is an object without which a request was served. Index counts the media of the request from 0, and Kind
// says why.
type DroppedMedia struct {
	Index int
	Kind  string
}

// HalvedMedia is an object which was halved so often: its frames, or its resolution.
type HalvedMedia struct{ Index, Times int }

// IsQuery reports whether x, which may be nil, answers a query.
func (x *AnswerExt) IsQuery() bool { return x != nil && x.Query != nil }

// QueryAnswer answers the annotation QueryInstance: the worker which the request would have been sent to, and
// its prompt.
type QueryAnswer struct {
	Worker        kv.Worker
	OverlapBlocks int
	Tokens        []kv.Token
	// TextOnly says why only the text before the request's media counts; "" if everything counts.
	TextOnly string
}

// Attempt is one attempt at one prompt of a request.
type Attempt struct {
	Prompt        int // index among the request's prompts
	Number        uint32
	Worker        kv.Worker
	Prefill       kv.Worker // which computed the prompt for Worker; zero if that did itself
	OverlapBlocks int       // as the router estimated it
	// Predicted and Reported are the prompt tokens which the router expected the worker to have cached, and
	// which the worker reported. Reported is CachedUnknown until then.
	Predicted, Reported int
	// Inexact says that the worker continued tokens which another worker generated with other numerics, so
	// that the text may differ from that worker's.
	Inexact bool
}
