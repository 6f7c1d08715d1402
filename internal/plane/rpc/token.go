package rpc

import (
	"crypto/sha256"
	"crypto/subtle"
)

// tokensMatch compares in constant time, which reveals nothing of either token, not even its
// length. A server without a token accepts every client.
func tokensMatch(theirs, ours string) bool {
	if ours == "" {
		return true
	}
	a, b := sha256.Sum256([]byte(theirs)), sha256.Sum256([]byte(ours))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
