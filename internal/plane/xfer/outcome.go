package xfer

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/fault"
)

// TransferOutcome is how a transfer ended. The numbers are part of the wire format: append only.
type TransferOutcome uint8

// The outcomes. A later one of another build reads as Lost.
const (
	OK         TransferOutcome = iota // the owner has the bytes, verified
	Aborted                           // the writer or the owner gave up
	Expired                           // the writer was silent for longer than the lease
	Corrupt                           // a digest is wrong
	Lost                              // the connection broke, or a process died
	Unknown                           // no such transfer is open: its descriptor was used, or it is over
	Stale                             // the descriptor is that of an earlier life of the owner
	Overloaded                        // the owner has no room
	Invalid                           // the writer's bytes do not fit the transfer, or violate the protocol
)

var outcomes = [...]struct {
	name string
	code fault.Code
}{
	OK:         {"ok", fault.Internal},
	Aborted:    {"aborted", fault.Canceled},
	Expired:    {"expired", fault.Deadline},
	Corrupt:    {"corrupt", fault.Unavailable},
	Lost:       {"lost", fault.Unavailable},
	Unknown:    {"unknown", fault.NotFound},
	Stale:      {"stale", fault.Conflict},
	Overloaded: {"overloaded", fault.Overloaded},
	Invalid:    {"invalid", fault.Invalid},
}

// String returns the name of o, for logs and metrics.
func (o TransferOutcome) String() string { return outcomes[o.known()].name }

func (o TransferOutcome) known() TransferOutcome {
	if int(o) < len(outcomes) {
		return o
	}
	return Lost
}

// failure is the cause of a *fault.Error of this package.
type failure struct {
	outcome TransferOutcome
	err     error
}

func (f *failure) Error() string {
	if f.err == nil {
		return f.outcome.String()
	}
	return f.outcome.String() + ": " + f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// newFailure returns an error with the code of o. A %w verb sets the cause as in fmt.Errorf.
func newFailure(o TransferOutcome, format string, args ...any) error {
	o = o.known()
	err := fmt.Errorf(format, args...)
	return &fault.Error{Code: outcomes[o].code, Message: err.Error(), Err: &failure{o, errors.Unwrap(err)}}
}

// OutcomeOf returns the outcome of a transfer which ended with err; a context's error is Aborted,
// and an error of another package Lost.
func OutcomeOf(err error) TransferOutcome {
	if err == nil {
		return OK
	}
	var f *failure
	if errors.As(err, &f) {
		return f.outcome
	}
	if isContextError(err) {
		return Aborted
	}
	return Lost
}

// Side tells which end of a transfer a report is from.
type Side uint8

// The sides.
const (
	OwnerSide Side = iota
	WriterSide
)

// String returns the name of s, for logs and metrics.
func (s Side) String() string {
	if s == WriterSide {
		return "writer"
	}
	return "owner"
}

// Report describes a transfer which ended, for metrics.
type Report struct {
	Side      Side
	Transport Transport // 0 if no writer came
	Outcome   TransferOutcome
	// Bytes are those verified by the owner, or sent by the writer.
	Bytes int64
	Took  time.Duration // from the claim; 0 if no writer came
}

// Observer receives a report of every transfer of this process. A transfer within the process is
// reported by both sides.
type Observer interface {
	ObserveTransfer(Report)
}

type discardObserver struct{}

func (discardObserver) ObserveTransfer(Report) {}
