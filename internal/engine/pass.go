package engine

import (
	"context"

	"penstock/core/kv"
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
	Path    string // one of Passes
	// Body is the client's JSON object, of which the engine's adapter changes no more than the
	// model, the id and what makes it tell its usage.
	Body []byte
	// Stream says that the answer is a stream of server-sent events.
	Stream bool
	// Prompt are the tokens that the engine makes of the body, as far as they are known:
	// for those who keep account of caches. It may be nil.
	Prompt []kv.Token
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
