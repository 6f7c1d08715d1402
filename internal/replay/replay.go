// Package replay defines workloads and results: requests with their send times, the sources of requests, the
// prompts which they stand for, and the measured results. The simulated cluster, which serves requests in
// virtual time, and the load generator, which sends them to a server, work on the same requests and report
// the same rows.
package replay

import (
	"encoding/json"
	"time"

	"penstock/core/kv"
)

// Request is one request of a workload.
type Request struct {
	// Index is the request's position in its workload, from 0. Line is its line in the file, from 1; 0 if
	// there is none.
	Index, Line int

	// At is the send time from the start of the workload; negative if the workload has none, so that an
	// arrival process must set it.
	At time.Duration
	// Session names a conversation: its requests are sent in order, each after the previous response has
	// finished and Delay has passed. "" is none.
	Session string
	Delay   time.Duration

	// Input and Output are the token counts of the prompt and of the response.
	Input, Output int
	// Blocks name the prompt's content, each a block of BlockTokens tokens, the last one cut to Input. Equal
	// names at the same position after equal names are equal tokens. nil if the workload has none: the prompt
	// then shares nothing.
	Blocks      []int64
	BlockTokens int
	// The content of the prompt where the workload has it: token ids, a text, or a conversation with its
	// tools as in the Chat Completions API; Payload is a whole request body. At most one of Tokens, Text,
	// Messages and Payload is set.
	Tokens   []kv.Token
	Text     string
	Messages json.RawMessage
	Tools    json.RawMessage
	Payload  json.RawMessage
	// Extra is an object whose members are added to the request body.
	Extra json.RawMessage
	Media []Media

	// Client is whose request it is; clients get equal shares while they wait. "" is a client too.
	Client   string `json:",omitempty"`
	Model    string // or an adapter; "" is the run's
	Salt     string // cache namespace
	Priority int
}

// Media is one image, video or audio clip of a prompt.
type Media struct {
	Kind          string // "image", "video", "audio"
	ID            string // equal ids mean equal content
	Width, Height int    // pixels; 0 if unknown
	Tokens        int    // in the prompt; 0 if unknown
	// Start is the position of its first token in a prompt of Blocks; 0 if unknown. Without Blocks media come
	// first, one after the other.
	Start int `json:",omitempty"`
	URL   string
}

// CopyFrom makes r a copy of o which shares no slice of tokens, blocks or bytes with it, reusing the memory
// of r's slices, so that a caller can keep a request of a source.
func (r *Request) CopyFrom(o *Request) {
	old := *r
	*r = *o
	r.Blocks = append(old.Blocks[:0], o.Blocks...)
	r.Tokens = append(old.Tokens[:0], o.Tokens...)
	r.Messages = append(old.Messages[:0], o.Messages...)
	r.Tools = append(old.Tools[:0], o.Tools...)
	r.Payload = append(old.Payload[:0], o.Payload...)
	r.Extra = append(old.Extra[:0], o.Extra...)
	r.Media = append(old.Media[:0], o.Media...)
}

// Source returns the requests of a workload once, in the order of At, and the requests of a session in their
// order. It has one owner.
type Source interface {
	// Next sets r to the next request, reusing its slices; r is valid until the next call, since it may refer
	// to the source's own memory. It returns io.EOF after the last one. Other errors say where in the
	// workload the fault is.
	Next(r *Request) error
	// Close releases the source.
	Close() error
}

// Workload can be read repeatedly: every Open returns the same requests.
type Workload interface {
	Open() (Source, error)
}
