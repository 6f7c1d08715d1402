package openai

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"penstock/core/fault"
	"penstock/internal/strictjson"
)

// AppendError appends err as the API's error object. An error without a
// *fault.Error in its chain is a defect: the client learns that, and no detail.
func AppendError(dst []byte, err error) []byte {
	f := Fault(err)
	class := f.Code.Class()
	dst = append(dst, `{"error":{"message":`...)
	dst = strictjson.AppendString(dst, f.Message)
	dst = append(dst, `,"type":`...)
	dst = strictjson.AppendString(dst, class.Type)
	dst = append(dst, `,"param":`...)
	if f.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = strictjson.AppendString(dst, f.Param)
	}
	dst = append(dst, `,"code":`...)
	dst = strictjson.AppendString(dst, class.Name)
	return append(dst, `}}`...)
}

// Fault returns the first *fault.Error in err's chain, or the Internal error
// that a client is told instead of an error of another kind.
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

// WriteError writes err as a whole response: its status, by which the official
// clients choose the exception that they raise, Retry-After where waiting helps,
// and the error object. Those clients try again after 409 and every 5xx, so they
// are told where that is useless.
func WriteError(w http.ResponseWriter, err error) {
	f := Fault(err)
	class := f.Code.Class()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if class.Status == http.StatusServiceUnavailable || class.Status == http.StatusTooManyRequests {
		h.Set("Retry-After", retryAfter(f.RetryAfter))
	}
	if !class.Retryable && (class.Status == http.StatusConflict || class.Status >= 500) {
		h.Set("X-Should-Retry", "false")
	}
	w.WriteHeader(class.Status)
	// A client that does not take its error is gone.
	_, _ = w.Write(append(AppendError(nil, f), '\n'))
}

// RefuseMethod answers a request whose method the path does not take: 405, which
// is no code of the vocabulary, since it is about HTTP. allow lists those it does.
func RefuseMethod(w http.ResponseWriter, r *http.Request, allow string) {
	h := w.Header()
	h.Set("Allow", allow)
	h.Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusMethodNotAllowed)
	err := fault.New(fault.Invalid, "the method %.20s is not allowed here: use %s", r.Method, allow)
	_, _ = w.Write(append(AppendError(nil, err), '\n'))
}

// retryAfter is d in whole seconds, rounded up, at least one.
func retryAfter(d time.Duration) string {
	return strconv.Itoa(int(max(1, math.Ceil(d.Seconds()))))
}
