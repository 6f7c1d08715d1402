package openai

import (
	"math"
	"strconv"

	"penstock/core/kv"
)

// Head is what all chunks of one answer, and the whole answer, have in common. It
// must not change once a chunk has been appended, and serves one goroutine.
type Head struct {
	Endpoint    Endpoint
	ID          string // chatcmpl-… or cmpl-…
	Model       string // as the client named it
	Fingerprint string // of the numerics that computed the answer
	Created     int64  // seconds since 1970
	// IncludeUsage says that a chunk of usage will end the stream; the others
	// then have a usage of null.
	IncludeUsage bool
	// Alternatives is how many alternatives of each token were asked for; 0 also
	// if no log-probabilities were.
	Alternatives int

	opening []byte // of every chunk, made by the first
}

// ChunkKind says which part of an answer a Chunk is.
type ChunkKind uint8

// The kinds. A choice has at most one Role (chat only, before the rest), any
// number of Text and one Finish; Usage is the last chunk of the answer.
const (
	Role ChunkKind = iota
	Text
	Finish
	Usage
)

// Chunk is one step of an answer.
type Chunk struct {
	Kind   ChunkKind
	Choice int
	// Text continues the choice; Text only. It is valid UTF-8.
	Text []byte
	// Logprobs describe tokens, in order; nil if they were not asked for. Text only.
	Logprobs []Logprob
	// Reason is why the choice ended: "stop" or "length". Finish only.
	Reason string
	// Tokens are what the answer cost. Usage only.
	Tokens TokenCounts
	// Ext, in the last chunk of the answer, says how it came about.
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

// TokenCounts count the tokens of a request. Cached are those of Prompt whose
// keys and values were not computed again.
type TokenCounts struct {
	Prompt, Completion, Cached int
}

// Add adds o's counts to c's.
func (c *TokenCounts) Add(o TokenCounts) {
	c.Prompt += o.Prompt
	c.Completion += o.Completion
	c.Cached += o.Cached
}

// AnswerExt is the object "nvext" of an answer.
type AnswerExt struct {
	// Attempts are all that were routed, in that order.
	Attempts []Attempt
	// WorkerFields adds worker_id, the worker of the last attempt.
	WorkerFields bool
	// Query, if not nil, is all there is: the request only asked.
	Query *QueryAnswer
}

// QueryAnswer answers the annotation query_instance_id: where the request would
// have gone, and its prompt.
type QueryAnswer struct {
	Worker        kv.Worker
	OverlapBlocks int
	Tokens        []kv.Token
}

// Attempt is one attempt at one prompt of a request.
type Attempt struct {
	Prompt        int // index among the request's prompts
	Number        uint32
	Worker        kv.Worker
	OverlapBlocks int // the router's belief
}

// AppendChunk appends c as one JSON object of a stream. It allocates only if dst
// must grow.
func (h *Head) AppendChunk(dst []byte, c *Chunk) []byte {
	if h.opening == nil {
		object := "chat.completion.chunk"
		if h.Endpoint == Completion {
			object = "text_completion"
		}
		h.opening = h.appendOpening(nil, object)
	}
	dst = append(dst, h.opening...)
	switch {
	case c.Kind == Usage:
		dst = append(dst, `],"usage":`...)
		dst = appendUsage(dst, c.Tokens)
	case h.IncludeUsage:
		dst = h.appendChoice(dst, c)
		dst = append(dst, `],"usage":null`...)
	default:
		dst = h.appendChoice(dst, c)
		dst = append(dst, ']')
	}
	dst = appendExt(dst, c.Ext)
	return append(dst, '}')
}

// appendOpening appends an answer's head up to and including the bracket that
// opens its choices.
func (h *Head) appendOpening(dst []byte, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, h.ID)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, h.Created, 10)
	dst = append(dst, `,"model":`...)
	dst = appendString(dst, h.Model)
	dst = append(dst, `,"system_fingerprint":`...)
	if h.Fingerprint == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, h.Fingerprint)
	}
	return append(dst, `,"choices":[`...)
}

func (h *Head) appendChoice(dst []byte, c *Chunk) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(c.Choice), 10)
	if h.Endpoint == Completion {
		dst = append(dst, `,"text":`...)
		dst = appendString(dst, c.Text)
	} else {
		dst = appendDelta(dst, c)
	}
	dst = append(dst, `,"logprobs":`...)
	switch {
	case c.Logprobs == nil:
		dst = append(dst, "null"...)
	case h.Endpoint == Completion:
		dst = h.appendCompletionLogprobs(dst, c.Logprobs)
	default:
		dst = append(dst, `{"content":[`...)
		dst = appendChatLogprobs(dst, c.Logprobs)
		dst = append(dst, `],"refusal":null}`...)
	}
	dst = append(dst, `,"finish_reason":`...)
	if c.Kind == Finish {
		dst = appendString(dst, c.Reason)
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, '}')
}

func appendDelta(dst []byte, c *Chunk) []byte {
	switch c.Kind {
	case Role:
		return append(dst, `,"delta":{"role":"assistant","content":""}`...)
	case Text:
		dst = append(dst, `,"delta":{"content":`...)
		dst = appendString(dst, c.Text)
		return append(dst, '}')
	}
	return append(dst, `,"delta":{}`...)
}

func appendUsage(dst []byte, t TokenCounts) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(t.Prompt), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(t.Completion), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(t.Prompt+t.Completion), 10)
	dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, int64(t.Cached), 10)
	return append(dst, `}}`...)
}

func appendExt(dst []byte, x *AnswerExt) []byte {
	if x == nil {
		return dst
	}
	if x.Query != nil {
		return appendQuery(dst, x.Query)
	}
	dst = append(dst, `,"nvext":{"attempts":`...)
	dst = strconv.AppendInt(dst, int64(len(x.Attempts)), 10)
	dst = append(dst, `,"workers":[`...)
	for i, a := range x.Attempts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendAttempt(dst, a)
	}
	dst = append(dst, ']')
	if n := len(x.Attempts); x.WorkerFields && n > 0 {
		dst = append(dst, ',')
		dst = appendWorkerFields(dst, x.Attempts[n-1].Worker)
	}
	return append(dst, '}')
}

func appendAttempt(dst []byte, a Attempt) []byte {
	dst = append(dst, `{"prompt":`...)
	dst = strconv.AppendInt(dst, int64(a.Prompt), 10)
	dst = append(dst, `,"attempt":`...)
	dst = strconv.AppendUint(dst, uint64(a.Number), 10)
	dst = append(dst, `,"worker_id":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.ID), 10)
	dst = append(dst, `,"dp_rank":`...)
	dst = strconv.AppendUint(dst, uint64(a.Worker.Rank), 10)
	dst = append(dst, `,"overlap_blocks":`...)
	dst = strconv.AppendInt(dst, int64(a.OverlapBlocks), 10)
	return append(dst, '}')
}

func appendWorkerFields(dst []byte, w kv.Worker) []byte {
	dst = append(dst, `"worker_id":{"decode_worker_id":`...)
	dst = strconv.AppendUint(dst, uint64(w.ID), 10)
	dst = append(dst, `,"decode_dp_rank":`...)
	dst = strconv.AppendUint(dst, uint64(w.Rank), 10)
	return append(dst, '}')
}

func appendQuery(dst []byte, q *QueryAnswer) []byte {
	dst = append(dst, `,"nvext":{`...)
	dst = appendWorkerFields(dst, q.Worker)
	dst = append(dst, `,"overlap_blocks":`...)
	dst = strconv.AppendInt(dst, int64(q.OverlapBlocks), 10)
	dst = append(dst, `,"token_ids":`...)
	dst = appendTokens(dst, q.Tokens)
	return append(dst, '}')
}

func appendTokens(dst []byte, tokens []kv.Token) []byte {
	dst = append(dst, '[')
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(t), 10)
	}
	return append(dst, ']')
}

// appendLogprob appends a log-probability. JSON has no infinity: what has no
// probability at all prints as -9999, as the field does.
func appendLogprob(dst []byte, p float32) []byte {
	if p < -9999 || math.IsNaN(float64(p)) || math.IsInf(float64(p), 1) {
		return append(dst, "-9999"...)
	}
	return strconv.AppendFloat(dst, float64(p), 'g', -1, 32)
}
