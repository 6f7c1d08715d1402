// Package responses is the wire form of POST /v1/responses, OpenAI's other API of
// conversations: a request is a list of items, and so is its answer, which a
// stream tells in named events.
//
// The server keeps nothing between requests. What refers to something kept
// (previous_response_id, conversation, background, references to items) is refused
// by name, and every answer says "store": false, also to the many clients that
// leave "store" out or ask for it: they get their answer, and send the
// conversation along each time.
//
// Reasoning is given in the clear, as content of items of type reasoning, which a
// client sends back with the rest of the conversation. There are no summaries and
// nothing encrypted.
package responses
