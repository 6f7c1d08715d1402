// Package cachemodel predicts the prefix cache of an engine which publishes no KV events. Its models are
// told of the requests which the engine gets, and of the cached tokens which the engine reports for them.
// They return the events which the engine itself would have sent, so that they predict what a new request
// would find.
//
// Engines keep prefixes in two ways. [SlotModel] models llama.cpp: a few slots, each holds the
// sequence which it computed last. [PagedModel] models engines with a paged cache, such as vLLM: any number
// of sequences share blocks, and the least recently used blocks are evicted first.
//
// Both are predictions. They know nothing of requests which others send to the engine, and little of how it
// evicts. The engine's own reports therefore take precedence: see ReportCached.
//
// Both are plain values for one goroutine at a time. The same calls give the same events.
package cachemodel

import "penstock/core/kv"

// Unknown is the number of cached tokens if the engine does not report one.
const Unknown = -1

// Ticket identifies a request from StartRequest to its end. 0 is a request which is not tracked, because
// there are too many. Reports about it, or about a ticket which ended, change nothing.
type Ticket uint64

// EngineRequest is what is sent to an engine. StartRequest reads its slices and does not keep them.
type EngineRequest struct {
	Salt kv.Salt
	// Tokens are all tokens which the engine must compute before it generates: the prompt, and what an
	// earlier attempt generated.
	Tokens []kv.Token
	Media  []kv.Media
}

// Prediction is the answer to StartRequest.
type Prediction struct {
	Ticket Ticket
	// Cached is the predicted number of cached tokens of the request: what the engine should report.
	Cached int
	// Slot is the predicted slot of the request, -1 if unknown. Send it to an engine which accepts a slot.
	Slot int
	// MixesSalts says that the engine may choose a sequence of another salt for the request, or that Slot
	// has one. An engine which compares only tokens must then be told to reuse nothing.
	MixesSalts bool
}

// newTicket packs the index of a request with a serial number which no earlier request had at that index.
// serial is never 0.
func newTicket(index int, serial uint32) Ticket { return Ticket(serial)<<32 | Ticket(uint32(index)) }

// unpack returns the index in a list of `accounts` requests, and the serial number.
func (t Ticket) unpack(accounts int) (index int, serial uint32, ok bool) {
	index, serial = int(uint32(t)), uint32(t>>32)
	return index, serial, serial != 0 && index < accounts
}

// sliceArena allocates slices for events. The receivers own the events and may keep them: no slice is
// handed out twice. Memory is allocated in chunks, so that a request costs less than one allocation.
type sliceArena[T any] struct{ free []T }

// arenaChunk is the number of elements allocated at once: 32 KiB.
const arenaChunk = 4096

// allocate returns a new slice of n elements.
func (a *sliceArena[T]) allocate(n int) []T {
	if n > arenaChunk/4 {
		return make([]T, n)
	}
	if n > len(a.free) {
		a.free = make([]T, arenaChunk)
	}
	s := a.free[:n:n]
	a.free = a.free[n:]
	return s
}

// copyOf returns a copy of s.
func (a *sliceArena[T]) copyOf(s []T) []T {
	c := a.allocate(len(s))
	copy(c, s)
	return c
}
