package api

import (
	"errors"
	"math"
	"net/http"
	"strconv"

	"penstock/core/fault"
)

// AsFault returns the first *fault.Error in err's chain. An error without one is a defect: the client then
// gets an Internal error without details.
func AsFault(err error) *fault.Error {
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

// SetErrorHeaders sets the headers of an error response: its type, how long to wait if waiting helps (in
// whole seconds, rounded up, at least one), and whether to retry. Without the latter the official clients
// decide by the status: they retry every 409 and everything above 499.
func SetErrorHeaders(h http.Header, f *fault.Error) {
	class := f.Code.Class()
	h.Set("Content-Type", "application/json")
	h.Set("X-Should-Retry", strconv.FormatBool(class.Retryable))
	if class.Status == http.StatusServiceUnavailable || class.Status == http.StatusTooManyRequests {
		h.Set("Retry-After", strconv.Itoa(int(max(1, math.Ceil(f.RetryAfter.Seconds())))))
	}
}
