package frontend

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
)

const maxRequestID = 128

// requestIDKey is the context key of a request's id.
type requestIDKey struct{}

// requestIDOf returns the id of the request of ctx; "" if it has none.
func requestIDOf(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// newRequestID returns the id of a request: the client's own if it sent a valid one, else a random one.
func newRequestID(h http.Header) string {
	_, id := firstHeader(h, "X-Request-Id", "X-Dynamo-Request-Id")
	if !isValidID(id) {
		id = randomHex() + randomHex()
	}
	return id
}

// withRequestID gives every response an x-request-id, so that a client can name it.
func withRequestID(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", newRequestID(r.Header))
		inner.ServeHTTP(w, r)
	})
}

func randomHex() string {
	var b [8]byte
	for i, v := 0, rand.Uint64(); i < len(b); i, v = i+1, v>>8 {
		b[i] = byte(v)
	}
	return hex.EncodeToString(b[:])
}

// isValidID reports whether a client's id can be logged, sent in a header and used as a key. It has
// neither '~' nor '/', which derived ids use.
func isValidID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-' || c == '_' || c == '.' || c == ':':
		default:
			return false
		}
	}
	return true
}
