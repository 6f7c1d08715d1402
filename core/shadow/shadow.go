// Package shadow models the prefix cache of an engine that says nothing of it. It is told
// of the requests that the engine gets, and of the cached tokens that the engine reports
// for them, and answers with the events that the engine itself would have sent: what a
// request that comes now would find.
//
// Engines keep prefixes in two ways. [Slots] is that of llama.cpp: a few sequences, each
// held whole by the slot that computed it last. [Blocks] is that of engines with a paged
// cache, such as vLLM: any number of sequences that share blocks, of which the least
// recently used leave first.
//
// Both are a guess. They know nothing of requests that others send to the engine, and
// little of how it evicts. So an engine's own word always counts more: see Report.
//
// Both are plain values for one goroutine at a time. The same calls give the same events.
package shadow

import "penstock/core/kv"

// Unknown is a number of cached tokens that the engine does not say.
const Unknown = -1

// Ticket names a request between its Begin and its end. 0 is a request of which no account
// is kept, because there are too many; what is said of it changes nothing, nor does
// anything that is said of a ticket that ended.
type Ticket uint64

// Request is what is sent to an engine. Its slices are read during Begin only.
type Request struct {
	Salt kv.Salt
	// Tokens are all that the engine has to have before it generates: the prompt, and
	// what an earlier attempt generated.
	Tokens []kv.Token
	Media  []kv.Media
}

// Begun is the answer to Begin.
type Begun struct {
	Ticket Ticket
	// Cached is how many tokens of the request the engine is believed to have: what it should report.
	Cached int
	// Slot is where the request is believed to run, -1 if that is unknown. An engine that can
	// be told a slot should be told this one.
	Slot int
	// Mixed says that the engine may choose a sequence of another salt for the request, or that
	// Slot has one. An engine that compares nothing but tokens must be told to reuse nothing.
	Mixed bool
}

// ticket packs where the account of a request lies with a number that no request before
// it had there. serial is never 0.
func ticket(index int, serial uint32) Ticket { return Ticket(serial)<<32 | Ticket(uint32(index)) }

// open returns where the account of t lies in a list of so many, and its serial number.
func (t Ticket) open(accounts int) (index int, serial uint32, ok bool) {
	index, serial = int(uint32(t)), uint32(t>>32)
	return index, serial, serial != 0 && index < accounts
}

// names hands out slices for events. Events belong to those who get them, who may keep
// them: no slice is handed out twice. The memory is taken in pieces, so that a request
// costs less than an allocation.
type names[T any] struct{ free []T }

// namesPiece is how many names are allocated at once: 32 KiB.
const namesPiece = 4096

// take returns n elements that nobody else has.
func (a *names[T]) take(n int) []T {
	if n > namesPiece/4 {
		return make([]T, n)
	}
	if n > len(a.free) {
		a.free = make([]T, namesPiece)
	}
	s := a.free[:n:n]
	a.free = a.free[n:]
	return s
}

// copyOf returns a copy of s that nobody else has.
func (a *names[T]) copyOf(s []T) []T {
	c := a.take(len(s))
	copy(c, s)
	return c
}
