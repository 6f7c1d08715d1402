package token

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

func TestReferenceNormalizers(t *testing.T) {
	var fixtures []struct {
		Normalizer json.RawMessage
		Digests    []string
	}
	unmarshalFixture(t, "plain.normalizers", &fixtures)
	for _, f := range fixtures {
		list, err := newNormalizers(f.Normalizer)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v", f.Normalizer, err)
		}
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for i, want := range f.Digests {
				if got := digestNormalizer(list[0], rune(i)*0x1000); got != want {
					t.Errorf("%s: a code point from %U on differs", f.Normalizer, i*0x1000)
				}
			}
		})
	}
}

// digestNormalizer is described in make_plain.py.
func digestNormalizer(n normalizer, block rune) string {
	h := sha256.New()
	for r := block; r < block+0x1000; r++ {
		if r < 0xD800 || 0xE000 <= r {
			h.Write([]byte(n("A"+string(r)+"\u0301\u0323") + "|"))
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func TestReplaceRuns(t *testing.T) {
	for _, c := range []struct{ text, two, one string }{
		{"", "", ""},
		{"a", "a", "a"},
		{" a  b", " a_b", "_a_b"},
		{"   ", "_", "_"},
		{"a b   ", "a b_", "a_b_"},
	} {
		if got := replaceRuns(c.text, 2, "_", isBlank); got != c.two {
			t.Errorf("%q: %q, want %q", c.text, got, c.two)
		}
		if got := replaceRuns(c.text, 1, "_", isBlank); got != c.one {
			t.Errorf("%q: %q, want %q", c.text, got, c.one)
		}
	}
}

func TestNormalizersReturnASCIIItself(t *testing.T) {
	for _, kind := range []string{"NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"} {
		list, err := newNormalizers(json.RawMessage(`{"type":"` + kind + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Repeat("plain text ", 10)
		if n := testing.AllocsPerRun(10, func() { _ = list[0](text) }); n != 0 {
			t.Errorf("%s: %v allocations", kind, n)
		}
	}
}
