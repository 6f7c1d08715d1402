package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"penstock/core/fault"
)

// The bounds of an outcome on the wire, in bytes; longer texts are cut.
const (
	maxMessage = 4 << 10
	maxParam   = 256
)

// outcome is what the caller gets for the handler's error: the client's part of
// a *fault.Error, and Internal for anything else. The cause stays behind as
// text, for logs, so that nobody comes to match on it.
func outcome(method string, err error) error {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if errors.As(err, &f) {
		return &fault.Error{Code: f.Code, Message: f.Message, Param: f.Param, RetryAfter: f.RetryAfter}
	}
	return &fault.Error{
		Code:    fault.Internal,
		Message: fmt.Sprintf("call %s: the handler failed; the log says why", method),
		Err:     errors.New(err.Error()),
	}
}

// appendFault appends the client's part of f as planes over a network carry it:
//
//	1 byte   code
//	4 bytes  retry after, milliseconds, little-endian
//	2 bytes  length of the parameter, little-endian, and so many bytes of it
//	rest     message
func appendFault(dst []byte, f *fault.Error) []byte {
	dst = append(dst, byte(f.Code))
	wait := min(max(f.RetryAfter.Milliseconds(), 0), 1<<32-1)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(wait))
	param := clip(f.Param, maxParam)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(param)))
	dst = append(dst, param...)
	return append(dst, clip(f.Message, maxMessage)...)
}

// decodeFault reads what appendFault wrote. A code of a later version is kept:
// it reads as Internal.
func decodeFault(b []byte) (*fault.Error, error) {
	if len(b) < 7 {
		return nil, fmt.Errorf("decode outcome: %d bytes, at least 7 are needed", len(b))
	}
	f := &fault.Error{
		Code:       fault.Code(b[0]),
		RetryAfter: time.Duration(binary.LittleEndian.Uint32(b[1:])) * time.Millisecond,
	}
	n := int(binary.LittleEndian.Uint16(b[5:]))
	b = b[7:]
	if n > maxParam || n > len(b) || len(b)-n > maxMessage {
		return nil, fmt.Errorf("decode outcome: a parameter of %d bytes in %d is out of bounds", n, len(b))
	}
	f.Param = strings.ToValidUTF8(string(b[:n]), "�")
	f.Message = strings.ToValidUTF8(string(b[n:]), "�")
	return f, nil
}

// clip returns s cut to at most n bytes of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
