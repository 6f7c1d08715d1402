package api

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"

	"penstock/core/fault"
	"penstock/internal/strictjson"
)

// NotSupported is the reason for a refused value.
const NotSupported = "is not supported by this server: leave it out"

const maxSalt = 1024 // bytes

// BodyDecoder is what the request decoders of all dialects have in common. They embed it.
type BodyDecoder struct {
	strictjson.Reader
	Req *Request

	unknown strictjson.UnknownKeys // top-level keys
}

// BodySource is a decoder which embeds a BodyDecoder.
type BodySource interface{ Base() *BodyDecoder }

// Base returns d. It makes every decoder which embeds a BodyDecoder a BodySource.
func (d *BodyDecoder) Base() *BodyDecoder { return d }

// ReadBody opens body and calls read, which must read all of it.
func (d *BodyDecoder) ReadBody(body []byte, read func() error) error {
	if err := d.Open(body); err != nil {
		return err
	}
	if err := read(); err != nil {
		return err
	}
	return d.CheckEnd()
}

// CheckModel returns an error if the request names no model.
func (d *BodyDecoder) CheckModel() error {
	if strings.TrimSpace(d.Req.Model) == "" {
		return fault.InvalidParam("model", "'model' is required and must not be blank: name one of GET /v1/models")
	}
	return nil
}

// RefuseUnsupported refuses the value being read: ignoring it would change the answer. The status is 400 and
// not 501, which clients would treat as a server error and retry.
func (d *BodyDecoder) RefuseUnsupported() error { return d.InvalidError(NotSupported) }

// IgnoreBool reads a boolean which has no effect.
func (d *BodyDecoder) IgnoreBool() error {
	_, err := d.ReadBool()
	return err
}

// IgnoreString reads a string which has no effect.
func (d *BodyDecoder) IgnoreString() error {
	_, err := d.ReadString()
	return err
}

// IgnoreObject reads an object which has no effect.
func (d *BodyDecoder) IgnoreObject() error {
	return d.ReadObject(func(string) error { return d.SkipValue() })
}

// RequireTrue reads a boolean which must be true, the value for the only supported behavior.
func (d *BodyDecoder) RequireTrue() error {
	b, err := d.ReadBool()
	if err == nil && !b {
		return d.RefuseUnsupported()
	}
	return err
}

// RequireFalse reads a boolean which must be false, the value for the only supported behavior.
func (d *BodyDecoder) RequireFalse() error {
	b, err := d.ReadBool()
	if err == nil && b {
		return d.RefuseUnsupported()
	}
	return err
}

// RequireString reads a string which must be one of ok, the values for the only supported behavior.
func (d *BodyDecoder) RequireString(ok ...string) error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	for _, o := range ok {
		if s == o {
			return nil
		}
	}
	return d.RefuseUnsupported()
}

// RequireEmptyArray reads an array which must be empty; why is the reason for refusing another.
func (d *BodyDecoder) RequireEmptyArray(why string) error {
	return d.ReadArray("an array", func(int) error { return d.ParentInvalidError("%s", why) })
}

// ReadOptional reads a string into a new value at dst.
func (d *BodyDecoder) ReadOptional(dst **string) error {
	s, err := d.ReadString()
	*dst = &s
	return err
}

// ReadWord reads a string which must be one of words.
func (d *BodyDecoder) ReadWord(words ...string) (string, error) {
	s, err := d.ReadString()
	if err != nil {
		return "", err
	}
	for _, w := range words {
		if s == w {
			return s, nil
		}
	}
	last := len(words) - 1
	if last == 1 {
		return "", d.InvalidError("must be %s or %s", words[0], words[1])
	}
	return "", d.InvalidError("must be one of %s and %s", strings.Join(words[:last], ", "), words[last])
}

// ReadRawObject reads an object and returns its text, a part of the body.
func (d *BodyDecoder) ReadRawObject() ([]byte, error) {
	if d.Kind() != strictjson.ObjectKind {
		return nil, d.WrongTypeError("an object")
	}
	return d.ReadRaw()
}

// ReadParameters reads the schema of a function's arguments, which must be an object. It returns its text, a
// part of the body.
func (d *BodyDecoder) ReadParameters() ([]byte, error) {
	return d.CaptureRaw(func() error {
		return d.ReadObject(func(key string) error {
			if key != "type" || d.Kind() != strictjson.StringKind {
				return d.SkipValue()
			}
			s, err := d.ReadString()
			if err == nil && s != "object" {
				return d.InvalidError("must be object: the arguments of a function are members of an object")
			}
			return err
		})
	})
}

// ReadSalt reads a cache salt.
func (d *BodyDecoder) ReadSalt(dst *string) error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	if s == "" || len(s) > maxSalt {
		return d.InvalidError("must have between 1 and %d bytes, not %d", maxSalt, len(s))
	}
	*dst = s
	return nil
}

// ReadTopK reads the number of tokens to choose from, at least lo.
func (d *BodyDecoder) ReadTopK(lo int64) error {
	d.Req.TopK = new(int)
	return d.ReadIntegerInto(d.Req.TopK, lo, strictjson.MaxCount)
}

// AsFault returns the first *fault.Error in err's chain. An error without one is a defect: the client then
// gets an Internal error without details.
func AsFault(err error) *fault.Error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
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
