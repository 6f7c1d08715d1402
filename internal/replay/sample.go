package replay

import "time"

// Sample is what came of one request. Moments are from the beginning of the run.
type Sample struct {
	Index int
	// Due is when the request should have been sent, Sent when it was: a client that
	// is late distorts what it measures.
	Due, Sent time.Duration
	// First and Last are when the first and the last token came; they mean something
	// if Output is not 0.
	First, Last time.Duration
	// Done is when the request was over, with or without an answer.
	Done time.Duration
	// Input and Cached are prompt tokens, and those of them that were served from
	// a cache; Output are the tokens of the answer.
	Input, Cached, Output int
	// Worker served the request; 0 if that is not known.
	Worker uint64
	// Error says in a word why there is no whole answer, such as "overloaded",
	// "timeout", "status_500"; "" if there is one. The words are few: errors are
	// counted by them.
	Error string
}
