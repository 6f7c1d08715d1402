package anthropic

import (
	"errors"
	"math"
	"net/http"
	"strconv"

	"penstock/core/fault"
	"penstock/internal/strictjson"
)

// errorType returns the API's word for a code. It is told apart from the status,
// which is that of core/fault's table for all APIs.
func errorType(c fault.Code) string {
	switch c {
	case fault.Invalid, fault.Canceled, fault.Unimplemented:
		return "invalid_request_error"
	case fault.NotFound:
		return "not_found_error"
	case fault.TooLarge:
		return "request_too_large"
	case fault.Limited:
		return "rate_limit_error"
	case fault.Overloaded, fault.Unavailable:
		return "overloaded_error"
	case fault.Conflict:
		return "conflict_error"
	case fault.Deadline:
		return "timeout_error"
	case fault.Unauthorized:
		return "authentication_error"
	}
	return "api_error"
}

// appendError appends err as the API's error object. An error without a
// *fault.Error in its chain is a defect: the client learns that, and no detail.
func appendError(dst []byte, err error, requestID string) []byte {
	f := asFault(err)
	dst = append(dst, `{"type":"error","error":{"type":"`...)
	dst = append(dst, errorType(f.Code)...)
	dst = append(dst, `","message":`...)
	dst = strictjson.AppendString(dst, f.Message)
	dst = append(dst, `},"request_id":`...)
	if requestID == "" {
		dst = append(dst, "null"...)
	} else {
		dst = strictjson.AppendString(dst, requestID)
	}
	return append(dst, '}')
}

// asFault returns the first *fault.Error in err's chain, or the Internal error
// that a client is told instead of an error of another kind.
func asFault(err error) *fault.Error {
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

// WriteError writes err as a whole response: its status, Retry-After where
// waiting helps, and the error object. The header x-request-id, if w has it, is
// repeated under the name that the official clients read, and so is whether to
// try again, which they would guess from the status: they repeat every 409 and
// everything above 499.
func WriteError(w http.ResponseWriter, err error) {
	f := asFault(err)
	class := f.Code.Class()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	id := h.Get("x-request-id")
	if id != "" {
		h.Set("request-id", id)
	}
	h.Set("x-should-retry", strconv.FormatBool(class.Retryable))
	if class.Status == http.StatusServiceUnavailable || class.Status == http.StatusTooManyRequests {
		// In whole seconds, rounded up, at least one.
		h.Set("Retry-After", strconv.Itoa(int(max(1, math.Ceil(f.RetryAfter.Seconds())))))
	}
	w.WriteHeader(class.Status)
	// A client that does not take its error is gone.
	_, _ = w.Write(append(appendError(nil, f, id), '\n'))
}
