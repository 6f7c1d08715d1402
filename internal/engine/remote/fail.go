package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"penstock/core/fault"
)

// errUnreachable marks errors that say that an engine does not answer at all.
var errUnreachable = errors.New("unreachable")

// errNotFound marks errors that say that an engine does not have a path.
var errNotFound = errors.New("not found")

// NotFound reports whether err says that an engine does not have a path.
func NotFound(err error) bool { return errors.Is(err, errNotFound) }

// errBrokeOff marks errors that make one wonder whether an engine answers at all.
var errBrokeOff = errors.New("broke off")

// unreachable is the error of an engine that did not answer: another worker may. One that took a request and
// is late with it may have much to do, so that it is asked before it is believed to be gone.
func unreachable(host string, err error) error {
	if errors.Is(err, errNoHeader) {
		return &fault.Error{
			Code: fault.Unavailable, Err: errors.Join(errBrokeOff, err),
			Message: "the engine at " + host + " took a request and did not begin to answer it in time; see what it is doing",
		}
	}
	return &fault.Error{Code: fault.Unavailable, Message: "the engine at " + host + " does not answer; see whether it runs", Err: errors.Join(errUnreachable, err)}
}

// maxErrorBody bounds what is read of an answer that is an error, maxMessage what is
// repeated of it.
const (
	maxErrorBody = 64 << 10
	maxMessage   = 300
)

// Refused reads an answer of a status that is no success and returns what it means for the
// request: Invalid for what the engine will never serve, with the engine's own words,
// Overloaded for what it has no room for now, EngineError where it says on what it failed (status 500),
// Unavailable for what another worker may serve.
func (a *Answer) Refused() error {
	body, err := io.ReadAll(io.LimitReader(a, maxErrorBody))
	if err != nil && len(body) == 0 {
		body = nil // the status says enough
	}
	said := readError(body)
	f := classify(a.Status, said)
	f.RetryAfter = a.RetryAfter
	return f
}

// said is what an engine writes of an error.
type said struct {
	message, param string
	code           int  // 0 if the body names none
	silent         bool // the body has no words
}

// classify returns the error of a status.
func classify(status int, s said) *fault.Error {
	switch message := "the engine refuses the request: " + s.message; {
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity:
		f := fault.New(fault.Invalid, "%s", message)
		f.Param = s.param
		return f
	case status == http.StatusRequestEntityTooLarge:
		return fault.New(fault.TooLarge, "%s", message)
	case status == http.StatusForbidden && s.message != "":
		return fault.New(fault.Unavailable, "the engine does not allow what was asked (status 403): %s", s.message)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fault.New(fault.Unavailable, "the engine does not take the key of its adapter (status %d): set api-key-file", status)
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		f := fault.New(fault.Unavailable, "the engine does not know what was asked (status %d): %s", status, s.message)
		f.Err = errNotFound
		return f
	case status == http.StatusTooManyRequests:
		return fault.New(fault.Overloaded, "the engine has no room for the request: try again later")
	case status == http.StatusNotImplemented:
		return fault.New(fault.Unimplemented, "the engine cannot serve the request: %s", s.message)
	case status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooEarly:
		return fault.New(fault.Invalid, "%s", message)
	}
	if status == http.StatusInternalServerError && !s.silent {
		return fault.New(fault.EngineError, "the engine failed on the request with status %d: %s", status, s.message)
	}
	f := fault.New(fault.Unavailable, "the engine failed with status %d: %s", status, s.message)
	if status == http.StatusInternalServerError {
		f.Err = errFailed
	}
	return f
}

// StreamError returns what an error inside a stream means: data is the JSON of an event that has
// a member "error", or is one. It says nothing of whether the request could be served elsewhere
// but by the code that it names.
func StreamError(data []byte) error {
	s := readError(data)
	if s.code == 0 {
		s.code = http.StatusInternalServerError
	}
	return classify(s.code, s)
}

// readError reads the error of an engine in the forms that they have: {"error":{"message","param",
// "code"}}, the same without the outer object, {"error":"…"}, {"detail":…}, or text.
func readError(body []byte) said {
	type inner struct {
		Message string          `json:"message"`
		Param   string          `json:"param"`
		Code    json.RawMessage `json:"code"`
	}
	var outer struct {
		inner
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &outer) != nil {
		text := string(body[:min(len(body), 2*maxMessage)])
		return said{message: Clean(text), silent: strings.TrimSpace(text) == ""}
	}
	in := outer.inner
	if len(outer.Error) > 0 && json.Unmarshal(outer.Error, &in) != nil {
		_ = json.Unmarshal(outer.Error, &in.Message) // a string, or nothing is known
	}
	if in.Message == "" && len(outer.Detail) > 0 && json.Unmarshal(outer.Detail, &in.Message) != nil {
		in.Message = "its fields are not valid" // a list of them, values included
	}
	s := said{message: Clean(in.Message), param: cleanParam(in.Param), silent: in.Message == ""}
	s.code, _ = strconv.Atoi(strings.Trim(string(in.Code), `"`))
	if s.code < 400 || s.code > 599 {
		s.code = 0
	}
	return s
}

// secrets matches what errors quote and no client may read: keys and passwords behind their names, credentials in
// URLs, and keys in the forms of well-known services.
var secrets = regexp.MustCompile(`(?i)((?:api[-_]?key|authorization|password|passwd|secret|access[-_]?token)["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?|bearer\s+|://[^/\s@:]*:)([^\s"',;@}]+)|\b(?:sk|hf|ghp)[-_][A-Za-z0-9_-]{8,}`)

// Clean returns an engine's words fit to be repeated: one line of bounded length without secrets, cut where
// the engine begins to quote what it was sent.
func Clean(s string) string {
	for _, quote := range []string{"'input':", "input_value=", "\"input\":", "received: "} {
		if i := strings.Index(s, quote); i >= 0 {
			s = s[:i] + "…"
		}
	}
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == utf8.RuneError
	}), " ")
	s = secrets.ReplaceAllString(s, "${1}***")
	if len(s) > maxMessage {
		cut := maxMessage
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	if s == "" {
		return "it says no more"
	}
	return s
}

// cleanParam returns the name of a parameter, or nothing if it is none.
func cleanParam(s string) string {
	if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && r != '.' && r != '[' && r != ']' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return ""
	}
	return s
}

// maxRetryAfter bounds how long an engine may have a client wait.
const maxRetryAfter = 10 * time.Minute

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	d := time.Duration(0)
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		d = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(v); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxRetryAfter)
}

// Broken returns ctx's error if it ended, else what a failure to read the answer means:
// Unavailable, another worker may go on.
func (a *Answer) Broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errSilent):
		return &fault.Error{Code: fault.Unavailable, Message: "the engine at " + a.host + " stopped in the middle of an answer; see what it is doing", Err: errors.Join(errBrokeOff, err)}
	}
	if f := (*fault.Error)(nil); errors.As(err, &f) {
		return err
	}
	return &fault.Error{Code: fault.Unavailable, Message: "the engine at " + a.host + " broke off its answer", Err: errors.Join(errBrokeOff, err)}
}
