package engine

import (
	"context"
	"net/http"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

// Passer is an engine that takes a client's request as the client wrote it, and whose
// answer is the client's as the engine wrote it: for models whose tokenizer or template
// is the engine's alone. Such an answer cannot move to another worker once a byte of it is out.
type Passer interface {
	// Passes returns the paths whose requests are taken, such as
	// "/v1/chat/completions", ascending. It does not change.
	Passes() []string
	// Pass serves one request and calls sink with each piece of the answer in order. The first
	// piece has Accepted set, with the answer's status and type, and no data; nothing before it
	// commits the engine. An answer that refuses the client's request (a status of 400 to 499 but
	// 408, 425 and 429) is the answer; everything else that is no success is a *fault.Error
	// instead. The last piece has Last set. It returns ctx's error when ctx ends, sink's error
	// if sink fails, or a *fault.Error; in each case the engine has been told to stop before it
	// returns. sink must not keep the piece or its slices.
	Pass(ctx context.Context, req *PassRequest, sink func(*PassPiece) error) error
}

// PassRequest is one attempt at a client's request that is passed on.
type PassRequest struct {
	ID      string // of the client's request, the same for all attempts
	Attempt uint32 // from 1; a late answer of an old attempt is dropped by it
	Model   string // what the engine is told: the card's name or an adapter's
	// Salt is what its blocks are hashed with.
	Salt kv.Salt
	Path string // one of Passes
	// Body is the client's JSON object, of which the engine's adapter changes no more than the
	// model, the id, what makes it tell its usage and what its media are called.
	Body []byte
	// Stream says that the answer is a stream of server-sent events.
	Stream bool
	// Prompt are the tokens that the engine makes of the body, as far as they are known:
	// for those who keep account of caches. It may be nil.
	Prompt []kv.Token
	// Media are where Prompt shows media, and Objects who the media of Body are, in the order in which
	// Body shows them (their Source and Tensor are not set): the engine is told their keys where it
	// takes them. Both may be nil.
	Media   []kv.Media
	Objects []media.Object
	// Hints are as those of a Request: for router processes.
	Hints []byte
}

// Validate checks what every engine may rely on; whether Body is JSON is the engine's
// question. It returns a *fault.Error of code Invalid that names the field, or nil.
func (r *PassRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.Param("attempt", "attempts are numbered from 1")
	case r.Path == "":
		return fault.Param("path", "a request that is passed on has a path")
	case len(r.Body) == 0:
		return fault.Param("body", "the request has no body: send a JSON object")
	}
	return nil
}

// Refuses reports whether an answer of a status is the engine's refusal of the client's
// request, which is the answer: another engine would refuse it too.
func Refuses(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// PassOrder holds the pieces of one attempt's answer to the contract of a Passer, whoever
// takes them. The zero value is ready.
type PassOrder struct{ begun, ended bool }

// Take returns an error if p cannot come next.
func (o *PassOrder) Take(p *PassPiece) error {
	switch {
	case o.ended:
		return Broken("more after the end of an answer", nil)
	case p.Accepted == o.begun:
		return Broken("a piece of an answer before its status, or a second status", nil)
	case p.Accepted && p.Status/100 != 2 && !Refuses(p.Status):
		return Broken("an answer with a status that is none", nil)
	case p.Accepted && (p.Last || len(p.Data) > 0):
		return Broken("an answer with its status", nil)
	case p.Tokens < 0, p.PromptTokens < CachedUnknown, p.OutputTokens < CachedUnknown, p.Cached < CachedUnknown:
		return Broken("a number of tokens that cannot be", nil)
	}
	o.begun, o.ended = true, p.Last
	return nil
}

// PassPiece is a piece of an answer that is passed on.
type PassPiece struct {
	Attempt  uint32
	Accepted bool
	Status   int    // HTTP status; with Accepted only
	Type     string // Content-Type; with Accepted only
	// Data are bytes of the answer. Of a stream they are whole events, comments left out,
	// "data: [DONE]" included.
	Data []byte
	// Tokens is how many tokens of output the piece has, as far as can be told.
	Tokens int
	Last   bool
	// With Last: what the engine said of the whole, each CachedUnknown if nothing.
	PromptTokens, OutputTokens, Cached int
}
