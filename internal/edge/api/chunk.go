package api

import "penstock/core/kv"

// Head is what all chunks of one answer have in common. Fingerprint is known when
// a worker has accepted the request; nothing changes once a chunk has been
// appended.
type Head struct {
	ID          string // of the request; dialects put their own word before it
	Model       string // as the client named it
	Fingerprint string // of the numerics that computed the answer
	Created     int64  // seconds since 1970
}

// ChunkKind says which part of an answer a Chunk is.
type ChunkKind uint8

// The kinds. A choice has at most one Role (conversations only, before the rest),
// any number of Text, Reasoning and calls, and one Finish; Usage is the last chunk
// of the answer. A call is a CallBegin, any number of Arguments and a CallEnd,
// which is missing if the answer ended before the call did; calls of a choice do
// not overlap, but text may stand between them.
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

// Reason is why a choice ended.
type Reason uint8

// The reasons.
const (
	NoReason     Reason = iota // it has not ended
	ReasonStop                 // the model ended it, or a stop string did
	ReasonLength               // a limit of tokens
	ReasonCalls                // the model called functions
)

// Chunk is one step of an answer.
type Chunk struct {
	Kind   ChunkKind
	Choice int
	// Text continues the choice's text, reasoning or arguments. It is valid UTF-8.
	Text []byte
	// Logprobs describe tokens, in order; nil if they were not asked for. Text and
	// Reasoning only; the text may be empty then.
	Logprobs []Logprob
	// Call counts the calls of the choice from 0; CallBegin, Arguments and CallEnd.
	Call int
	// CallID and Name are a call's id and function. CallBegin only.
	CallID, Name string
	// Reason is why the choice ended. Finish only.
	Reason Reason
	// StopString is the one that ended the choice; "" if none did. Finish only.
	StopString string
	// Tokens are what the answer cost: all of it in Usage; in the others Prompt and Cached of
	// the choice's prompt, and Completion and Reasoning of the choice so far, which are 0 in Role.
	Tokens TokenCounts
	// Ext says how the answer came about. In Usage and the last Finish.
	Ext *AnswerExt
}

// Logprob is a token, its log-probability and the most likely alternatives.
type Logprob struct {
	Token   []byte // the bytes it stands for, which need not be whole characters
	Logprob float32
	Top     []TokenLogprob
	Offset  int // where the token begins, in characters of the choice's text
}

// TokenLogprob is one alternative.
type TokenLogprob struct {
	Token   []byte
	Logprob float32
}

// CachedUnknown is the number of cached tokens where no engine has said it. Answers leave
// such a number out.
const CachedUnknown = -1

// TokenCounts count the tokens of a request. Cached are those of Prompt whose
// keys and values were not computed again, or CachedUnknown, Reasoning those of
// Completion that the model thought with.
type TokenCounts struct {
	Prompt, Completion, Cached, Reasoning int
}

// Add adds o's counts to c's. What is cached of all is known only if it is of each.
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
	// Attempts are all that were routed, in that order.
	Attempts []Attempt
	// WorkerFields adds worker_id, the worker of the last attempt.
	WorkerFields bool
	// Query, if not nil, is there instead: the request only asked.
	Query *QueryAnswer
	// Annotated answers the annotations of a request whose answer has no events for them; nil
	// if there are none.
	Annotated *Annotated
}

// Asked reports whether x, which may be nil, answers a request that only asked.
func (x *AnswerExt) Asked() bool { return x != nil && x.Query != nil }

// QueryAnswer answers the annotation QueryInstance: where the request would
// have gone, and its prompt.
type QueryAnswer struct {
	Worker        kv.Worker
	OverlapBlocks int
	Tokens        []kv.Token
	// TextOnly says why only the text before the request's media counts; "" if all of it does.
	TextOnly string
}

// Attempt is one attempt at one prompt of a request.
type Attempt struct {
	Prompt        int // index among the request's prompts
	Number        uint32
	Worker        kv.Worker
	OverlapBlocks int // the router's belief
	// Predicted and Reported are the tokens of the prompt that the worker was believed to
	// have cached, and that it said it had; Reported is CachedUnknown before it says so.
	Predicted, Reported int
	// Inexact says that the worker went on with the tokens of one of other numerics:
	// what follows need not be what that one would have said.
	Inexact bool
}
