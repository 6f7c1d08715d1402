package engine

import (
	"errors"
	"slices"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
)

// MediaFailure is the error of a request of which one object has no rows: which object, and why. An engine returns it
// from Generate before the first delta; after that the request is accepted, and a failure is any other error. If
// several objects failed, it returns errors.Join of one MediaFailure for each, and [MediaFailures] finds them all.
//
// It wraps a [fault.Error], which is what clients are told and decides about status and retries as everywhere.
type MediaFailure struct {
	// Index is that of the object in Request.Objects.
	Index int
	Kind  encode.FailureKind
	// Detail is the cause, for clients and logs: at most MaxFailureDetail bytes of it travel.
	Detail string
	// Fault has the code, and the part of the client's request which shows the object.
	Fault *fault.Error
}

// MaxFailureDetail bounds the detail of a failure on the request plane, in bytes.
const MaxFailureDetail = 256

// failureClasses are the codes and the names of the kinds. Code and advice are for objects of which no more is known
// than the kind.
var failureClasses = [...]struct {
	name   string
	code   fault.Code
	advice string
}{
	encode.NotFailed: {"unknown", fault.Internal, "the object could not be encoded"},
	encode.Corrupt:   {"corrupt", fault.Invalid, "the object cannot be decoded"},
	// No other worker has larger encoders.
	encode.OutOfMemory:    {"out_of_memory", fault.MediaFailed, "the object is too large for the encoder: send a smaller one"},
	encode.DeadlinePassed: {"deadline", fault.Deadline, "the object was not encoded in time: send the request again, or a smaller object"},
	// Another worker has other encoders.
	encode.EncoderLost:   {"encoder_lost", fault.Unavailable, "the encoders of the object were lost: send the request again"},
	encode.SizeDiffers:   {"size_differs", fault.Invalid, "the object has another number of tokens than the prompt has places"},
	encode.EncoderFailed: {"encoder_failed", fault.EngineError, "the encoder failed on the object"},
	encode.Unreachable:   {"unreachable", fault.Invalid, "the object's file cannot be fetched"},
}

// FailureName is the name of a kind in the HTTP API and in metrics. A kind of a later version is "unknown".
func FailureName(kind encode.FailureKind) string {
	if int(kind) < len(failureClasses) {
		return failureClasses[kind].name
	}
	return failureClasses[encode.NotFailed].name
}

// FailureNames are the names of all kinds, in order.
func FailureNames() []string {
	var names []string
	for _, class := range failureClasses[encode.Corrupt:] {
		names = append(names, class.name)
	}
	return names
}

// FailureKindOf returns the kind of a name; NotFailed if there is none.
func FailureKindOf(name string) encode.FailureKind {
	return encode.FailureKind(1 + slices.Index(FailureNames(), name))
}

// NewMediaFailure returns the failure of an object of a request. The code follows from the kind.
func NewMediaFailure(index int, kind encode.FailureKind, object *media.Object, detail string) *MediaFailure {
	class := &failureClasses[encode.NotFailed]
	if int(kind) < len(failureClasses) {
		class = &failureClasses[kind]
	}
	f := &fault.Error{Code: class.code, Message: class.advice, Param: object.Part}
	if detail != "" {
		f.Message += ": " + detail
	}
	if object.Part != "" {
		f.Message = "'" + object.Part + "': " + f.Message
	}
	return &MediaFailure{Index: index, Kind: kind, Detail: detail, Fault: f}
}

// WrapMediaFailure returns err as the failure of an object of a request. It keeps the code, the parameter and the message
// of a *fault.Error. It returns err as it is if it has none, or is a MediaFailure already.
func WrapMediaFailure(index int, kind encode.FailureKind, err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if _, already := errors.AsType[*MediaFailure](err); already || !ok {
		return err
	}
	return &MediaFailure{Index: index, Kind: kind, Detail: f.Message, Fault: f}
}

// EndsRequest reports whether no other worker does better: the object, or the time for it, is the matter.
func (f *MediaFailure) EndsRequest() bool {
	return f.Kind != encode.EncoderLost && f.Kind != encode.EncoderFailed
}

// Error returns the message for the client.
func (f *MediaFailure) Error() string { return f.Fault.Error() }

// FailedObjects are failures as they travel.
func FailedObjects(failures []*MediaFailure) []FailedObject {
	out := make([]FailedObject, len(failures))
	for i, f := range failures {
		out[i] = FailedObject{Index: f.Index, Kind: f.Kind, Detail: f.Detail}
	}
	return out
}

// ReceivedFailures is the error of a call which failed with err after it had sent failures, of which all have an object.
// The first failure has the fault of err, unless that only says that the call broke off.
func ReceivedFailures(failed []FailedObject, objects []media.Object, err error) error {
	all := make([]error, len(failed))
	for i, f := range failed {
		m := NewMediaFailure(f.Index, f.Kind, &objects[f.Index], f.Detail)
		known, ok := errors.AsType[*fault.Error](err)
		if ok && i == 0 && (known.Code == m.Fault.Code || !known.Code.Class().Retryable) {
			m.Fault = known
		}
		all[i] = m
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// Unwrap returns the fault.
func (f *MediaFailure) Unwrap() error { return f.Fault }

// MediaFailures returns all failures in the tree of err, ascending by index; nil if there are none. Of several about
// one object the first counts.
func MediaFailures(err error) []*MediaFailure {
	all := appendFailures(nil, err)
	slices.SortStableFunc(all, func(a, b *MediaFailure) int { return a.Index - b.Index })
	return slices.CompactFunc(all, func(a, b *MediaFailure) bool { return a.Index == b.Index })
}

func appendFailures(dst []*MediaFailure, err error) []*MediaFailure {
	switch e := err.(type) {
	case *MediaFailure:
		return append(dst, e)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			dst = appendFailures(dst, one)
		}
	case interface{ Unwrap() error }:
		return appendFailures(dst, e.Unwrap())
	}
	return dst
}
