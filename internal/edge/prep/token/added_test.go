package token

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"penstock/core/kv"
)

// naivePieces finds, at each position, the longest token by trying all.
func naivePieces(tokens []addedToken, text string) []string {
	var out []string
	plain := 0
	for i := 0; i < len(text); {
		best := -1
		for j, t := range tokens {
			if strings.HasPrefix(text[i:], t.content) && (best < 0 || len(t.content) > len(tokens[best].content)) {
				best = j
			}
		}
		if best < 0 {
			i++
			continue
		}
		if plain < i {
			out = append(out, text[plain:i])
		}
		out = append(out, fmt.Sprint(tokens[best].id))
		i += len(tokens[best].content)
		plain = i
	}
	if plain < len(text) {
		out = append(out, text[plain:])
	}
	return out
}

func TestAddedAgainstDefinition(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 9))
		var tokens []addedToken
		seen := map[string]bool{}
		for i := range 1 + rng.IntN(8) {
			content := randomWord(rng, 1+rng.IntN(5))
			if !seen[content] {
				tokens = append(tokens, addedToken{id: kv.Token(100 + i), content: content})
			}
			seen[content] = true
		}
		text := randomWord(rng, rng.IntN(40))
		want := naivePieces(tokens, text)
		var got []string
		newAddedSet(tokens, nil).splitPieces(text, []segmentRun{{len(text), true}}, func(p textPiece) bool {
			if p.token != nil {
				got = append(got, fmt.Sprint(p.token.id))
			} else {
				got = append(got, p.text)
			}
			return true
		})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d: %q with %+v: got %q, want %q", seed, text, tokens, got, want)
		}
	}
}

func TestAddedStopsWhenTold(t *testing.T) {
	s := newAddedSet([]addedToken{{id: 1, content: "b"}}, nil)
	for stopAfter := 1; stopAfter <= 3; stopAfter++ {
		calls := 0
		s.splitPieces("abab", []segmentRun{{4, true}}, func(textPiece) bool {
			calls++
			return calls < stopAfter
		})
		if calls != stopAfter {
			t.Errorf("%d calls after being told to stop at %d", calls, stopAfter)
		}
	}
}
