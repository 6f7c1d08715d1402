package strictjson

import (
	"math/rand/v2"
	"testing"
)

// TestPlainRun: what a run steps over has no meaning in a string, and what it stops at within eight
// bytes has.
func TestPlainRun(t *testing.T) {
	const bytes = "\"\\\x00\x1f !#[]\x7f\x80\xa2\xdc\xffaaaaaaaaaaaaaaaaaaaa"
	rng := rand.New(rand.NewPCG(1, 8))
	for range 100_000 {
		s := make([]byte, rng.IntN(40))
		for i := range s {
			s[i] = bytes[rng.IntN(len(bytes))]
		}
		want := 0
		for want < len(s) && s[want] != '"' && s[want] != '\\' && s[want] >= ' ' {
			want++
		}
		if want > len(s)/8*8 || want == len(s) {
			want = len(s) / 8 * 8
		}
		if got := plainRun(s); got != want {
			t.Fatalf("%q: %d plain bytes, want %d", s, got, want)
		}
	}
}
