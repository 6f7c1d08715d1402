package kv

import (
	"strconv"

	"github.com/zeebo/xxh3"
)

// MediaHash maps the identifier that a client or an engine gave a media object
// to the 64-bit hash that enters block hashes: 64 hex digits (a full digest)
// count by their first 16, any other text by XXH3-64 with seed 0. An empty
// identifier has no hash.
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

// ContentHash is the 64-bit hash of a media object's bytes or of its URL: XXH3-64
// over the parts, one after another, with a seed.
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

// PadToken returns the placeholder token that stands for a media object where an
// engine wants the object to show in the token ids themselves (SGLang's rule):
// 1,000,000 plus the low 30 bits of its hash.
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
