package anthropic

import (
	"net/http"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// errorType returns the API's error type for a code. The status is independent of it: it comes from
// core/fault's table for all APIs.
func errorType(c fault.Code) string {
	switch c {
	case fault.Invalid, fault.Canceled, fault.Unimplemented, fault.MediaFailed:
		return "invalid_request_error"
	case fault.NotFound:
		return "not_found_error"
	case fault.TooLarge:
		return "request_too_large"
	case fault.Limited:
		return "rate_limit_error"
	case fault.Overloaded, fault.Unavailable, fault.Draining, fault.Ineligible, fault.TransferFailed, fault.PoolLost:
		return "overloaded_error"
	case fault.Conflict:
		return "conflict_error"
	case fault.Deadline:
		return "timeout_error"
	case fault.Unauthorized:
		return "authentication_error"
	case fault.Forbidden:
		return "permission_error"
	}
	return "api_error"
}

// appendError appends err as the API's error object. An error without a *fault.Error in its chain is a
// defect: the client learns only that.
func appendError(dst []byte, err error, requestID string) []byte {
	f := api.AsFault(err)
	dst = append(dst, `{"type":"error","error":{"type":"`...)
	dst = append(dst, errorType(f.Code)...)
	dst = strictjson.AppendMember(dst, `","message":`, f.Message)
	if f.Param == "thread" {
		// The official client's tool runner requests a thread by default. After this answer it sends the
		// whole conversation each time instead.
		dst = append(dst, `,"details":{"error_code":"thread_unsupported_request","unsupported":["thread"]}`...)
	}
	dst = strictjson.AppendOptional(dst, `},"request_id":`, requestID)
	return append(dst, '}')
}

// ErrorSchema is the JSON schema of an error: of a response body, and of the event which ends a failed
// stream.
const ErrorSchema = `{"type":"object","additionalProperties":false,"required":["type","error","request_id"],"properties":{"type":{"const":"error"},` +
	`"error":{"type":"object","additionalProperties":false,"required":["type","message"],"properties":{"type":{"type":"string"},"message":{"type":"string"},` +
	`"details":{"type":"object","additionalProperties":false,"required":["error_code","unsupported"],"properties":{"error_code":{"type":"string"},` +
	`"unsupported":{"type":"array","items":{"type":"string"}}}}}},` +
	`"request_id":{"type":["string","null"]}}}`

// WriteError writes err as a whole response: its status, Retry-After if waiting helps, and the error object.
// It copies the header x-request-id, if w has it, to request-id, which the official clients read.
func WriteError(w http.ResponseWriter, err error) {
	f := api.AsFault(err)
	class := f.Code.Class()
	h := w.Header()
	api.SetErrorHeaders(h, f)
	id := h.Get("x-request-id")
	if id != "" {
		h.Set("request-id", id)
	}
	w.WriteHeader(class.Status)
	// An error here means that the client has disconnected.
	_, _ = w.Write(append(appendError(nil, f, id), '\n'))
}
