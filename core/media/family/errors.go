package family

import (
	"fmt"

	"penstock/core/media"
)

// UnsupportedError says why the media of a model cannot be counted.
type UnsupportedError struct {
	Reason media.Reason
	Detail string // a sentence without its full stop
}

// Error implements error.
func (e *UnsupportedError) Error() string { return "media family: " + e.Detail }

func unsupported(format string, args ...any) *UnsupportedError {
	return &UnsupportedError{Reason: media.UnsupportedModel, Detail: fmt.Sprintf(format, args...)}
}

// SizeError says why one object cannot be counted.
type SizeError struct {
	Kind   media.Kind
	Reason media.Reason
	Detail string // a sentence without its full stop
}

// Error implements error.
func (e *SizeError) Error() string { return e.Kind.String() + ": " + e.Detail }

// refuse is the refusal of what a model's processor cannot take.
func refuse(detail string) *SizeError { return &SizeError{Reason: media.SizeRefused, Detail: detail} }

// tooMany is the refusal of what no prompt has place for.
func tooMany() *SizeError {
	return &SizeError{Reason: media.OverLimit, Detail: fmt.Sprintf("it would be more than %d tokens", maxTokens)}
}

// thin is the refusal of models that bound how much longer one side may be than the other.
func thin(w, h, ratio int64) *SizeError {
	return &SizeError{Reason: media.SizeRefused, Detail: fmt.Sprintf(
		"the model takes no pictures of which one side is more than %d times the other, and this one has %d by %d pixels", ratio, w, h)}
}
