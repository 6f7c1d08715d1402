package kv

import (
	"strconv"

	"github.com/zeebo/xxh3"
)

// MediaHash maps the identifier which a client or an engine gave a media object to the 64-bit hash which
// enters block hashes: for 64 hex digits (a full digest) the first 16 of them, for any other text XXH3-64
// with seed 0. An empty identifier has no hash.
func MediaHash(id string) (hash uint64, ok bool) {
	if id == "" {
		return 0, false
	}
	if len(id) == 64 && isHex(id) {
		// Cannot fail: 16 hex digits.
		hash, _ = strconv.ParseUint(id[:16], 16, 64)
		return hash, true
	}
	return xxh3.HashString(id), true
}

// ContentHash returns the 64-bit hash of a media object's bytes or URL: XXH3-64 with a seed over the
// concatenated parts.
func ContentHash(seed uint64, parts ...[]byte) uint64 {
	if len(parts) == 1 {
		return xxh3.HashSeed(parts[0], seed)
	}
	h := xxh3.NewSeed(seed)
	for _, p := range parts {
		_, _ = h.Write(p) // never fails
	}
	return h.Sum64()
}

// PadToken returns the placeholder token for a media object where an engine expects its identity in the token
// ids (SGLang's rule): 1,000,000 plus the low 30 bits of its hash.
func PadToken(hash uint64) Token {
	return Token(1_000_000 + hash&(1<<30-1))
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}
