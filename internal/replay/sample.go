package replay

import "time"

// Sample is the outcome of one request. Times count from the start of the run.
type Sample struct {
	Index int
	// Due is when the request should have been sent, Sent when it was: a late client distorts its
	// measurements.
	Due, Sent time.Duration
	// First and Last are when the first and the last token arrived; valid if Output is not 0.
	First, Last time.Duration
	// Done is when the request finished, with or without a response.
	Done time.Duration
	// Input is the number of prompt tokens, Cached how many of them came from a cache, Output the number of
	// response tokens.
	Input, Cached, Output int
	// Worker served the request; 0 if unknown.
	Worker uint64
	// Error is a word for why there is no complete response, such as "overloaded", "timeout", "status_500";
	// "" if there is one. There are few words, since errors are counted by them.
	Error string
}
