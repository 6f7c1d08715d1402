package rpc

import (
	"crypto/sha256"
	"crypto/subtle"
)

// sameToken compares in a time that tells nothing of either, not even its length.
// A server without a token takes every client.
func sameToken(theirs, ours string) bool {
	if ours == "" {
		return true
	}
	a, b := sha256.Sum256([]byte(theirs)), sha256.Sum256([]byte(ours))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
