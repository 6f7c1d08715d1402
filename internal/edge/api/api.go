// Package api contains what the client APIs have in common: a decoded request as the frontend understands it,
// and the chunks of its answer.
//
// A dialect decodes its wire format into a [Request] and prints the [Chunk]s of the answer in its wire
// format, so that everything between exists once. A whole answer is the [Fold] of the chunks which a stream
// would have printed, so the two cannot differ.
package api

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
