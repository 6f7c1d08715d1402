// Package replay is the vocabulary of load: requests with the moments at which
// they are sent, where they come from, the prompts that they stand for, and what
// was measured of their answers. The simulated cluster, which serves them in
// virtual time, and the load generator, which sends them to a server, work on the
// same requests and report the same rows.
package replay

import (
	"encoding/json"
	"time"

	"penstock/core/kv"
)

// Request is one request of a workload.
type Request struct {
	// Index is the request's place in its workload, from 0. Line is its place in
	// the file that it comes from, from 1; 0 if there is none.
	Index, Line int

	// At is when the request is sent, from the beginning of the workload; negative
	// if the workload does not say, so that an arrival process must.
	At time.Duration
	// Session names a conversation: its requests are sent in order, each not before
	// the answer to the one before it has ended and Delay has passed. "" is none.
	Session string
	Delay   time.Duration

	// Input and Output are the tokens of the prompt and of the answer.
	Input, Output int
	// Blocks name the prompt's content, each a block of BlockTokens tokens, the last
	// one cut to Input: equal names at the equal place, after equal names, are equal
	// tokens. nil if the workload does not say: the prompt then shares nothing.
	Blocks      []int64
	BlockTokens int
	// The content of the prompt where the workload has it: token ids, a text, or
	// a conversation with its tools as the Chat Completions API has them; Payload is
	// a whole body of a request. At most one of Tokens, Text, Messages and Payload
	// is set.
	Tokens   []kv.Token
	Text     string
	Messages json.RawMessage
	Tools    json.RawMessage
	Payload  json.RawMessage
	// Extra is an object whose members are put into the body that is sent.
	Extra json.RawMessage
	Media []Media

	Model    string // or an adapter; "" is the run's
	Salt     string // cache namespace
	Priority int
}

// Media is one image, video or piece of audio that a prompt shows.
type Media struct {
	Kind          string // "image", "video", "audio"
	ID            string // equal ids are equal content
	Width, Height int    // pixels; 0 if not known
	Tokens        int    // that it takes in the prompt; 0 if not known
	URL           string
}

// Set makes r a copy of o that shares no slice of tokens, blocks or bytes with it, in
// the memory that r's slices have: what a source gave can so be kept.
func (r *Request) Set(o *Request) {
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

// Source gives the requests of a workload, once, in the order of At; those of a
// session in their order. It has one owner.
type Source interface {
	// Next sets r to the next request, reusing its slices; what r has is good until
	// the next call, since it may be the source's own memory. It returns io.EOF after the last one. Other errors say where in
	// the workload the fault is.
	Next(r *Request) error
	// Close ends the use of the source.
	Close() error
}

// Workload can be run through again and again: every Open gives the same
// requests.
type Workload interface {
	Open() (Source, error)
}
