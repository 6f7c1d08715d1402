package remote

import (
	"cmp"
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
	"penstock/internal/engine"
)

// errUnreachable marks errors which say that an engine does not answer at all.
var errUnreachable = errors.New("unreachable")

// errNotFound marks errors which say that an engine does not have a path.
var errNotFound = errors.New("not found")

// IsNotFound reports whether err says that an engine does not have a path.
func IsNotFound(err error) bool { return errors.Is(err, errNotFound) }

// errBrokeOff marks errors which make it doubtful whether an engine answers at all.
var errBrokeOff = errors.New("broke off")

// unreachableError is the error for an engine that did not answer: another worker may. An engine that
// accepted a request and is late with the response may be busy, so it is probed before it counts as down.
func unreachableError(host string, err error) error {
	if errors.Is(err, errNoHeader) {
		return &fault.Error{
			Code: fault.Unavailable, Err: errors.Join(errBrokeOff, err),
			Message: "the engine at " + host + " took a request and did not begin to answer it in time; see what it is doing",
		}
	}
	return &fault.Error{Code: fault.Unavailable, Message: "the engine at " + host + " does not answer; see whether it runs", Err: errors.Join(errUnreachable, err)}
}

// maxErrorBody bounds what is read of an error response, maxMessage what is repeated of it, in bytes.
const (
	maxErrorBody = 64 << 10
	maxMessage   = 300
)

// RefusalError reads a response with an unsuccessful status and returns its meaning for the request: Invalid
// for what the engine will never serve, with the engine's own message; Overloaded for what it has no room for
// now; EngineError where it reports the failure (status 500); Unavailable for what another worker may serve.
func (a *Response) RefusalError() error {
	body, err := io.ReadAll(io.LimitReader(a, maxErrorBody))
	if err != nil && len(body) == 0 {
		body = nil // the status is sufficient
	}
	said := parseErrorBody(body)
	f := classifyStatus(a.Status, said)
	f.RetryAfter = a.RetryAfter
	return f
}

// errorBody is an engine's description of an error.
type errorBody struct {
	message, param string
	code           int  // 0 if the body names none
	silent         bool // the body has no text
}

// classifyStatus returns the error for a status.
func classifyStatus(status int, s errorBody) *fault.Error {
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

// StreamError returns the meaning of an error inside a stream: data is the JSON of an event that has a member
// "error", or is one. Only its code says whether the request could be served elsewhere.
func StreamError(data []byte) error {
	s := parseErrorBody(data)
	s.code = cmp.Or(s.code, http.StatusInternalServerError)
	return classifyStatus(s.code, s)
}

// parseErrorBody reads the error of an engine in the known forms: {"error":{"message","param","code"}}, the
// same without the outer object, {"error":"…"}, {"detail":…}, or text.
func parseErrorBody(body []byte) errorBody {
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
		return errorBody{message: SanitizeMessage(text), silent: strings.TrimSpace(text) == ""}
	}
	in := outer.inner
	if len(outer.Error) > 0 && json.Unmarshal(outer.Error, &in) != nil {
		_ = json.Unmarshal(outer.Error, &in.Message) // a string, else unknown
	}
	if in.Message == "" && len(outer.Detail) > 0 && json.Unmarshal(outer.Detail, &in.Message) != nil {
		in.Message = "its fields are not valid" // a list of problems, which include values
	}
	s := errorBody{message: SanitizeMessage(in.Message), param: sanitizeParam(in.Param), silent: in.Message == ""}
	s.code, _ = strconv.Atoi(strings.Trim(string(in.Code), `"`))
	if s.code < 400 || s.code > 599 {
		s.code = 0
	}
	return s
}

// secrets matches credentials that engines quote and clients must not read: keys and passwords after their
// names, credentials in URLs, and keys in the forms of well-known services.
var secrets = regexp.MustCompile(`(?i)((?:api[-_]?key|authorization|password|passwd|secret|access[-_]?token)["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?|bearer\s+|://[^/\s@:]*:)([^\s"',;@}]+)|\b(?:sk|hf|ghp)[-_][A-Za-z0-9_-]{8,}`)

// SanitizeMessage returns an engine's message in a form fit to be repeated: one line of bounded length
// without secrets, cut where the engine starts to quote its input.
func SanitizeMessage(s string) string {
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

// sanitizeParam returns the name of a parameter, or "" if s is not one.
func sanitizeParam(s string) string {
	if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && r != '.' && r != '[' && r != ']' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return ""
	}
	return s
}

// maxRetryAfter bounds the Retry-After of an engine.
const maxRetryAfter = 10 * time.Minute

// parseRetryAfter reads the Retry-After header: seconds, or a date.
func parseRetryAfter(h http.Header, now time.Time) time.Duration {
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

// ReadError returns ctx's error if it ended, else the meaning of a failure to read the response: Unavailable,
// another worker may continue.
func (a *Response) ReadError(ctx context.Context, err error) error {
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

// incidents counts repeated failures, so that the first is logged and a warning stays while they continue.
// The zero value is ready.
type incidents struct {
	n  uint64
	at time.Time // of the last
}

// record counts one more, and reports whether it is the first for some time.
func (m *incidents) record() (news bool) {
	news = !m.isRecent()
	m.n++
	m.at = time.Now()
	return news
}

// isRecent reports whether the last one is recent.
func (m *incidents) isRecent() bool { return m.n > 0 && time.Since(m.at) < recentWindow }

// errFailed marks errors of an engine that reports its own failure (status 500).
var errFailed = errors.New("failed")

// dialectFor returns the dialect for req.
func (b *Base) dialectFor(req *engine.Request) Dialect {
	if len(req.Features) > 0 && b.cfg.Features != nil {
		return b.cfg.Features
	}
	return b.cfg.Dialect
}

// mapFeaturesError returns the meaning of err, which ended a call, where the request has Features: an engine
// that refuses them, or fails on them, may still serve the request without them. If output was delivered,
// here or by another worker, only another worker can continue.
func (b *Base) mapFeaturesError(p *SubRequest, err error) error {
	switch {
	case err == nil || len(p.Request.Features) == 0:
		return err
	case p.isPromptComputed() || isResumed(p.Request):
		if fault.CodeOf(err) == fault.EngineError { // perhaps caused by another engine's features: a third engine may take them
			return &fault.Error{Code: fault.Unavailable, Message: err.Error(), Err: err}
		}
		return err
	}
	failed := errors.Is(err, errFailed) || fault.CodeOf(err) == fault.EngineError
	switch code := fault.CodeOf(err); {
	case failed, code == fault.TooLarge, code == fault.Unimplemented:
		b.mu.Lock()
		news := b.mu.unfeatured.record()
		b.mu.Unlock()
		if news {
			b.log.Warn("the engine does not take what another one's processor made of media", "error", err)
		}
	case code == fault.Invalid: // its reason may be another field
	default:
		return err
	}
	return engine.RefuseFeatures(err)
}

// RefusedFeatures reports whether the engine has recently refused, or failed on, Features.
func (b *Base) RefusedFeatures() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.unfeatured.isRecent()
}

// featureWarnings warns of an engine that refuses Features.
func (b *Base) featureWarnings() []engine.Warning {
	if !b.RefusedFeatures() {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnFeatures, Remedy: "run one version of the engine for all workers of the model, with the same settings, or set mm-transfer to off",
		Detail: "the engine refuses or fails over what another one's processor made of media: requests that show some are passed on as they are, and their streams cannot move",
	}}
}
