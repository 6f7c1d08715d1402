// Package responses implements the wire format of POST /v1/responses, OpenAI's other API for conversations. A
// request is a list of items, and so is its answer. A stream consists of named events.
//
// The server keeps nothing between requests. It refuses by name every field which refers to stored state
// (previous_response_id, conversation, background, references to items). Every answer has "store": false, also
// if the client leaves "store" out or sets it: such clients get their answer, and send the whole conversation
// with each request.
//
// Reasoning is plain text, the content of items of type reasoning, which clients send back with the rest of the
// conversation. Summaries and encrypted reasoning do not exist.
package responses
