package frontend

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// firstStop is the naive twin of stopMatcher: the first byte at which a stop string is complete, and
// the longest string that is complete there.
func firstStop(text string, stops []string) (end, length int) {
	for end := 1; end <= len(text); end++ {
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) {
				length = max(length, len(s))
			}
		}
		if length > 0 {
			return end, length
		}
	}
	return 0, 0
}

// holdBack is the naive twin of stopMatcher.heldBytes: the longest end of text that is a proper prefix
// of a stop string.
func holdBack(text string, stops []string) int {
	for n := len(text); n > 0; n-- {
		for _, s := range stops {
			if n < len(s) && strings.HasPrefix(s, text[len(text)-n:]) {
				return n
			}
		}
	}
	return 0
}

func TestMatcher(t *testing.T) {
	word := func(rng *rand.Rand, alphabet string, n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = alphabet[rng.IntN(len(alphabet))]
		}
		return string(b)
	}
	matched := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var stops []string
		for range 1 + rng.IntN(4) {
			stops = append(stops, word(rng, "ab", 1+rng.IntN(7)))
		}
		text := word(rng, "abc", rng.IntN(60))
		m := newStopMatcher(newStopStrings(stops))
		fed, end, length := 0, 0, 0
		for fed < len(text) && length == 0 {
			piece := text[fed:min(len(text), fed+rng.IntN(5))]
			if end, length = m.feed([]byte(piece)); length > 0 {
				end += fed
				break
			}
			fed += len(piece)
			if got, want := m.heldBytes(), holdBack(text[:fed], stops); got != want {
				t.Fatalf("seed %d: after %q with stops %q: held %d, want %d", seed, text[:fed], stops, got, want)
			}
		}
		if wantEnd, wantLength := firstStop(text, stops); end != wantEnd || length != wantLength {
			t.Fatalf("seed %d: %q with stops %q: end %d length %d, want %d %d", seed, text, stops, end, length, wantEnd, wantLength)
		}
		if length > 0 {
			matched++
		}
	}
	if matched < 500 {
		t.Errorf("only %d texts had a match", matched)
	}
}
