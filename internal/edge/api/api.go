// Package api is what the APIs that clients speak have in common: a request as
// the frontend understands it, and the steps of its answer.
//
// A dialect decodes its own form into a [Request] and prints the [Chunk]s of the
// answer in its own form, so that everything between the two is written once. A
// whole answer is the fold of the chunks that a stream would have printed ([Fold]),
// so the two can never differ.
package api

// Endpoint is one of the endpoints that models serve.
type Endpoint uint8

// The endpoints.
const (
	Chat       Endpoint = iota // POST /v1/chat/completions
	Completion                 // POST /v1/completions
	Embeddings                 // POST /v1/embeddings
	Responses                  // POST /v1/responses
	Messages                   // POST /v1/messages
)

// String returns the endpoint's name as metrics print it.
func (e Endpoint) String() string {
	return [...]string{"chat_completions", "completions", "embeddings", "responses", "messages"}[e]
}

// Talks reports whether the endpoint's requests are conversations.
func (e Endpoint) Talks() bool { return e == Chat || e == Responses || e == Messages }

// Writer prints one answer in the form of one API, as a stream or whole. It
// serves one goroutine.
type Writer interface {
	// Append takes the next chunk, of which it keeps nothing but its Ext, and
	// appends what a stream says of it to dst.
	Append(dst []byte, c *Chunk) []byte
	// End appends what completes the answer: a stream's last events, or the whole
	// body.
	End(dst []byte) []byte
	// Fail appends the event that ends a broken stream.
	Fail(dst []byte, err error) []byte
}
