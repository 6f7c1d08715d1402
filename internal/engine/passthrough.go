package engine

import (
	"context"
	"net/http"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

// PassthroughEngine is an engine that takes a client's request unchanged and whose answer reaches the client
// unchanged: for models whose tokenizer or template only the engine has. Such an answer cannot move to
// another worker after its first byte was sent.
type PassthroughEngine interface {
	// PassthroughPaths returns the paths whose requests are taken, such as "/v1/chat/completions", ascending.
	// It does not change.
	PassthroughPaths() []string
	// PassThrough serves one request and calls sink with each chunk of the answer in order. The first chunk
	// has Accepted set, with the answer's status and type, and no data; nothing before it commits the engine.
	// A refusal of the client's request (a status of 400 to 499 except 408, 425 and 429) is a valid answer;
	// every other status outside 2xx is a *fault.Error instead. The last chunk has Last set. PassThrough
	// returns ctx's error when ctx ends, sink's error if sink fails, or a *fault.Error; in each case it has
	// stopped the engine before it returns. sink must not keep the chunk or its slices.
	PassThrough(ctx context.Context, req *PassthroughRequest, sink func(*PassthroughChunk) error) error
}

// PassthroughRequest is one attempt at a client's request that is passed through.
type PassthroughRequest struct {
	ID      string // client request id, the same for all attempts
	Attempt uint32 // from 1; identifies late answers of an old attempt, which are dropped
	Model   string // the name sent to the engine: the card's name or an adapter's
	// Salt is the salt of the request's block hashes.
	Salt kv.Salt
	Path string // one of PassthroughPaths
	// Body is the client's JSON object. The engine's adapter changes only the model, the id, the option that
	// turns usage reports on, and the keys of media.
	Body []byte
	// Stream says that the answer is a stream of server-sent events.
	Stream bool
	// Prompt are the tokens that the engine makes of the body, as far as they are known, for cache
	// accounting. It may be nil.
	Prompt []kv.Token
	// Media are the ranges where Prompt shows media, and Objects identify the media of Body, in the order in
	// which Body shows them (their Source and Tensor are not set): the engine is sent their keys if it takes
	// them. Both may be nil.
	Media   []kv.Media
	Objects []media.Object
	// Hints are routing hints, as in a Request.
	Hints []byte
}

// Validate checks what every engine may rely on; the engine checks whether Body is JSON. It returns a
// *fault.Error of code Invalid that names the field, or nil.
func (r *PassthroughRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case r.Path == "":
		return fault.InvalidParam("path", "a request that is passed on has a path")
	case len(r.Body) == 0:
		return fault.InvalidParam("body", "the request has no body: send a JSON object")
	}
	return nil
}

// IsClientRefusal reports whether an answer of a status is the engine's refusal of the client's request. Such
// an answer is final: another engine would refuse the request too.
func IsClientRefusal(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// PassthroughOrder checks that the chunks of one attempt's answer keep to the contract of a
// PassthroughEngine. The zero value is ready.
type PassthroughOrder struct{ started, finished bool }

// AcceptChunk returns an error if p must not come next.
func (o *PassthroughOrder) AcceptChunk(p *PassthroughChunk) error {
	switch {
	case o.finished:
		return ContractError("more after the end of an answer", nil)
	case p.Accepted == o.started:
		return ContractError("a piece of an answer before its status, or a second status", nil)
	case p.Accepted && p.Status/100 != 2 && !IsClientRefusal(p.Status):
		return ContractError("an answer with a status that is none", nil)
	case p.Accepted && (p.Last || len(p.Data) > 0):
		return ContractError("an answer with its status", nil)
	case p.Tokens < 0, p.PromptTokens < CachedUnknown, p.OutputTokens < CachedUnknown, p.Cached < CachedUnknown:
		return ContractError("a number of tokens that cannot be", nil)
	}
	o.started, o.finished = true, p.Last
	return nil
}

// PassthroughChunk is a piece of an answer that is passed through.
type PassthroughChunk struct {
	Attempt  uint32
	Accepted bool
	Status   int    // HTTP status; with Accepted only
	Type     string // Content-Type; with Accepted only
	// Data are bytes of the answer. In a stream they are whole events, without comments, "data: [DONE]"
	// included.
	Data []byte
	// Tokens is how many output tokens the chunk has, as far as is known.
	Tokens int
	Last   bool
	// With Last: the engine's counts for the whole answer, each CachedUnknown if not reported.
	PromptTokens, OutputTokens, Cached int
}
