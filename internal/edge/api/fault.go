package api

import (
	"errors"
	"math"
	"net/http"
	"strconv"

	"penstock/core/fault"
)

// Fault returns the first *fault.Error in err's chain. An error without one is a
// defect: the Internal error that a client is told instead has no detail.
func Fault(err error) *fault.Error {
	var f *fault.Error
	if errors.As(err, &f) {
		return f
	}
	return &fault.Error{
		Code:    fault.Internal,
		Message: "internal error: the server's log has the cause under the x-request-id of this response",
		Err:     err,
	}
}

// SetErrorHeader sets the header of a response that is an error: its type, where
// waiting helps for how long (in whole seconds, rounded up, at least one), and
// whether to try again, which the official clients would guess from the status:
// they repeat every 409 and everything above 499.
func SetErrorHeader(h http.Header, f *fault.Error) {
	class := f.Code.Class()
	h.Set("Content-Type", "application/json")
	h.Set("X-Should-Retry", strconv.FormatBool(class.Retryable))
	if class.Status == http.StatusServiceUnavailable || class.Status == http.StatusTooManyRequests {
		h.Set("Retry-After", strconv.Itoa(int(max(1, math.Ceil(f.RetryAfter.Seconds())))))
	}
}
