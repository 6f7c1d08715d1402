package openai

import (
	"net/http"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// AppendError appends err as the API's error object. An error without a *fault.Error in its chain is a
// defect: the client learns only that.
func AppendError(dst []byte, err error) []byte {
	f := api.AsFault(err)
	class := f.Code.Class()
	dst = strictjson.AppendMember(dst, `{"error":{"message":`, f.Message)
	dst = strictjson.AppendMember(dst, `,"type":`, class.Type)
	dst = strictjson.AppendOptional(dst, `,"param":`, f.Param)
	dst = strictjson.AppendMember(dst, `,"code":`, class.Name)
	return append(dst, `}}`...)
}

// WriteError writes err as a whole response: the error object, and its status, from which the official
// clients derive the exception which they raise.
func WriteError(w http.ResponseWriter, err error) {
	f := api.AsFault(err)
	class := f.Code.Class()
	api.SetErrorHeaders(w.Header(), f)
	w.WriteHeader(class.Status)
	// An error here means that the client has disconnected.
	_, _ = w.Write(append(AppendError(nil, f), '\n'))
}

// WriteMethodNotAllowed answers a request whose method the path does not support. The status is 405, which
// has no fault.Code because it concerns only HTTP. allow lists the supported methods.
func WriteMethodNotAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	h := w.Header()
	h.Set("Allow", allow)
	h.Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusMethodNotAllowed)
	err := fault.New(fault.Invalid, "the method %.20s is not allowed here: use %s", r.Method, allow)
	_, _ = w.Write(append(AppendError(nil, err), '\n'))
}
