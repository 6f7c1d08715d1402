// Package fault is the closed set of error codes: a code decides what a client sees and whether another
// worker may be tried, according to one table.
package fault

import (
	"errors"
	"fmt"
	"time"
)

// Code classifies an error. The numbers are part of the wire format: append only.
type Code uint8

// The codes. The zero value reads as Internal.
const (
	Internal       Code = iota // a defect or an unclassified failure
	Invalid                    // the request can never succeed as it is
	NotFound                   // the model, request or worker named does not exist
	TooLarge                   // the body exceeds a limit
	Limited                    // the key is over its limit
	Overloaded                 // every queue that could take the request is full
	Unavailable                // no worker can serve it now
	Conflict                   // it contradicts existing state
	Canceled                   // the client went away
	Deadline                   // time ran out
	Unauthorized               // credentials are missing or wrong
	Unimplemented              // known, but not offered by this server
	Draining                   // the worker is shutting down as planned: another one continues
	Forbidden                  // the credentials are valid, but do not allow this
	Ineligible                 // workers serve it, but the request itself rules out every one of them
	EngineError                // a working engine failed on the request and says why: one other may be tried
	MediaFailed                // a medium of the request cannot be decoded or encoded, by any worker
	TransferFailed             // KV blocks, embeddings or tensors did not arrive: they can be computed or sent again
	PoolLost                   // the shared pool of KV blocks is gone: what it held can be computed again
)

// Class is what a Code means to clients.
type Class struct {
	Name      string // stable, for logs, metrics and the OpenAI "code" field
	Status    int    // HTTP status
	Type      string // OpenAI "type" field
	Retryable bool   // another attempt, possibly elsewhere, may succeed; clients are told so
}

var classes = [...]Class{
	Internal:      {"internal_error", 500, "server_error", false},
	Invalid:       {"invalid_request", 400, "invalid_request_error", false},
	NotFound:      {"not_found", 404, "invalid_request_error", false},
	TooLarge:      {"request_too_large", 413, "invalid_request_error", false},
	Limited:       {"rate_limit_exceeded", 429, "rate_limit_error", true},
	Overloaded:    {"overloaded", 503, "service_unavailable_error", true},
	Unavailable:   {"unavailable", 503, "service_unavailable_error", true},
	Conflict:      {"conflict", 409, "invalid_request_error", false},
	Canceled:      {"client_closed_request", 499, "invalid_request_error", false},
	Deadline:      {"deadline_exceeded", 504, "timeout_error", true},
	Unauthorized:  {"unauthorized", 401, "authentication_error", false},
	Unimplemented: {"not_implemented", 501, "invalid_request_error", false},
	Draining:      {"draining", 503, "service_unavailable_error", true},
	Forbidden:     {"forbidden", 403, "permission_error", false},
	Ineligible:    {"no_eligible_worker", 503, "service_unavailable_error", true},
	EngineError:   {"engine_error", 500, "server_error", false},
	// The medium itself is at fault: no other worker does better.
	MediaFailed:    {"media_failed", 422, "invalid_request_error", false},
	TransferFailed: {"transfer_failed", 503, "service_unavailable_error", true},
	PoolLost:       {"pool_lost", 503, "service_unavailable_error", true},
}

// Class returns the row of the table for c; an unknown code reads as Internal.
func (c Code) Class() Class {
	if int(c) < len(classes) {
		return classes[c]
	}
	return classes[Internal]
}

// String returns the code's stable name.
func (c Code) String() string { return c.Class().Name }

// Error is an error with a code. Message is for the client: it says what is wrong and what to do, and never
// contains a prompt, a token or a secret.
type Error struct {
	Code    Code
	Message string
	// Param is the invalid field of the request, as a JSON path; "" if none.
	Param string
	// RetryAfter is how long a client should wait; 0 if unknown.
	RetryAfter time.Duration
	// Err is the cause, for logs only; nil if there is none.
	Err error
}

// New returns an error of the given code with a formatted message. A %w verb
// sets the cause as in fmt.Errorf.
func New(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// InvalidParam returns an Invalid error about one field of a request.
func InvalidParam(param, format string, args ...any) *Error {
	e := New(Invalid, format, args...)
	e.Param = param
	return e
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first *Error in err's chain; Internal if there is none. The code which owns
// a context classifies its errors.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}
