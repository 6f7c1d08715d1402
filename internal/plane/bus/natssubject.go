package bus

import (
	"strings"

	"penstock/core/fault"
)

// A key is encoded as one token of a NATS subject: letters, digits, '-', '_', '/' and ':' are
// literal, any other byte is '=' and two upper-case hex digits, and the empty key is a single '='.
// The encoding is canonical: decodeKey accepts only tokens which appendKey can produce.

const hexDigits = "0123456789ABCDEF"

func isPlainByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '/' || c == ':'
}

// appendKey appends the token for key to dst.
func appendKey(dst []byte, key string) []byte {
	if key == "" {
		return append(dst, '=')
	}
	for i := range len(key) {
		if c := key[i]; isPlainByte(c) {
			dst = append(dst, c)
		} else {
			dst = append(dst, '=', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return dst
}

// decodeKey decodes the output of appendKey.
func decodeKey(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	if token == "" || len(token) > 3*MaxKey {
		return "", errBadKey(token)
	}
	if strings.IndexByte(token, '=') < 0 {
		for i := range len(token) {
			if !isPlainByte(token[i]) {
				return "", errBadKey(token)
			}
		}
		return token, nil
	}
	key := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c == '=' {
			if i+2 >= len(token) {
				return "", errBadKey(token)
			}
			hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
			if hi < 0 || lo < 0 || isPlainByte(byte(hi<<4|lo)) {
				return "", errBadKey(token)
			}
			c = byte(hi<<4 | lo)
			i += 2
		} else if !isPlainByte(c) {
			return "", errBadKey(token)
		}
		key = append(key, c)
	}
	return string(key), nil
}

func errBadKey(token string) error {
	return fault.New(fault.Invalid, "subject: a token of %d bytes is not an encoded key", len(token))
}
