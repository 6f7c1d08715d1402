package family

import (
	"fmt"

	"penstock/core/media"
)

// UnsupportedError says why a model's media tokens cannot be computed.
type UnsupportedError struct {
	Reason media.Reason
	Detail string // a sentence without its full stop
}

// Error implements error.
func (e *UnsupportedError) Error() string { return "media family: " + e.Detail }

func newUnsupported(format string, args ...any) *UnsupportedError {
	return &UnsupportedError{Reason: media.UnsupportedModel, Detail: fmt.Sprintf(format, args...)}
}

// SizeError says why the tokens of one object cannot be computed.
type SizeError struct {
	Kind   media.Kind
	Reason media.Reason
	Detail string // a sentence without its full stop
}

// Error implements error.
func (e *SizeError) Error() string { return e.Kind.String() + ": " + e.Detail }

// refuseSize returns the error for an object which a model's processor does not take.
func refuseSize(detail string) *SizeError {
	return &SizeError{Reason: media.SizeRefused, Detail: detail}
}

// refuseTooMany returns the error for an object too large for any prompt.
func refuseTooMany() *SizeError {
	return &SizeError{Reason: media.OverLimit, Detail: fmt.Sprintf("it would be more than %d tokens", maxTokens)}
}

// refuseThin returns the error of models which bound the ratio of the sides.
func refuseThin(w, h, ratio int64) *SizeError {
	return &SizeError{Reason: media.SizeRefused, Detail: fmt.Sprintf(
		"the model takes no pictures of which one side is more than %d times the other, and this one has %d by %d pixels", ratio, w, h)}
}
