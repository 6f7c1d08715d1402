package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"penstock/core/fault"
)

// Bounds of an outcome on the wire, in bytes. Longer texts are truncated.
const (
	maxMessage = 4 << 10
	maxParam   = 256
)

// handlerOutcome converts the handler's error to the error which the caller gets: the public part
// of a *fault.Error, or Internal for any other error. The cause is kept as text only, for logs, so
// that no code can match on it.
func handlerOutcome(method string, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return &fault.Error{Code: f.Code, Message: f.Message, Param: f.Param, RetryAfter: f.RetryAfter}
	}
	return &fault.Error{
		Code:    fault.Internal,
		Message: fmt.Sprintf("call %s: the handler failed; the log says why", method),
		Err:     errors.New(err.Error()),
	}
}

// appendFault appends the public part of f in the encoding of the network planes:
//
//	1 byte   code
//	4 bytes  retry after, milliseconds, little-endian
//	2 bytes  length n of the parameter, little-endian
//	n bytes  parameter
//	rest     message
func appendFault(dst []byte, f *fault.Error) []byte {
	dst = append(dst, byte(f.Code))
	wait := min(max(f.RetryAfter.Milliseconds(), 0), 1<<32-1)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(wait))
	param := truncateUTF8(f.Param, maxParam)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(param)))
	dst = append(dst, param...)
	return append(dst, truncateUTF8(f.Message, maxMessage)...)
}

// decodeFault decodes the output of appendFault. It keeps a code of a later version; such a code
// reads as Internal.
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

// truncateUTF8 returns the longest prefix of s of at most n bytes which ends with a complete
// character.
func truncateUTF8(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
