package token

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestReferenceNFC(t *testing.T) {
	n, err := newNFC()
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Digests           []string
		Texts, Normalized []string
	}
	unmarshalFixture(t, "nfc", &want)
	for i, text := range want.Texts {
		got := n.normalizeNFC(text)
		if got != want.Normalized[i] {
			t.Errorf("%+q: got %+q, want %+q", text, got, want.Normalized[i])
		}
		if again := n.normalizeNFC(got); again != got {
			t.Errorf("%+q: normal form %+q becomes %+q", text, got, again)
		}
	}
	if len(want.Digests) != nfcLimit/0x1000 {
		t.Errorf("%d digests", len(want.Digests))
	}
	for i, digest := range want.Digests {
		if digestNFC(n, rune(i)*0x1000) != digest {
			t.Errorf("a code point from %U on differs", i*0x1000)
		}
	}
}

// digestNFC is described in make_tokenizers.py. A line break is neither changed
// nor seen through by normalization, so all texts are normalized at once.
func digestNFC(n *nfc, block rune) string {
	marks := []string{"\u0334", "\u0316", "\u0301", "\u0345"}
	var texts []string
	for r := block; r < block+0x1000; r++ {
		if 0xD800 <= r && r < 0xE000 {
			continue
		}
		c := string(r)
		texts = append(texts, c, "a"+c, c+"\u0301")
		for _, m := range marks {
			texts = append(texts, "q"+c+m)
		}
		for _, m := range marks {
			texts = append(texts, "q"+m+c)
		}
	}
	texts = append(texts, "")
	sum := sha256.Sum256([]byte(n.normalizeNFC(strings.Join(texts, "\n"))))
	return hex.EncodeToString(sum[:])
}

func TestNFCBlocking(t *testing.T) {
	n, err := newNFC()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"a\u0301":              "\u00E1",
		"a\u0305\u0301":        "a\u0305\u0301", // an equal class in between blocks
		"a\u0316\u0301":        "\u00E1\u0316",
		"a\u0301\u0316":        "\u00E1\u0316",
		"ab\u0301":             "ab\u0301",
		"\u0301a":              "\u0301a",
		"\u1100\u1161":         "\uAC00",
		"\u1100\u1161\u11A8":   "\uAC01",
		"\uAC00\u11A8":         "\uAC01",
		"\uAC01\u11A8":         "\uAC01\u11A8", // no room for another final
		"\uAC00\u11A7":         "\uAC00\u11A7", // not a final
		"\u1100\u0301\u1161":   "\u1100\u0301\u1161",
		"\u0B47\u0300\u0B3E":   "\u0B47\u0300\u0B3E",
		"\u212B":               "\u00C5",
		"\u0958":               "\u0915\u093C", // never composes
		"\U0001D157\U0001D165": "\U0001D157\U0001D165",
	} {
		if got := n.normalizeNFC(text); got != want {
			t.Errorf("%+q: got %+q, want %+q", text, got, want)
		}
	}
}

// TestNFCManyMarks gives one character as many marks as a request may hold: only
// that it ends says anything here.
func TestNFCManyMarks(t *testing.T) {
	n, err := newNFC()
	if err != nil {
		t.Fatal(err)
	}
	const half = 1 << 17
	got := n.normalizeNFC("q" + strings.Repeat("\u0301\u0316", half))
	if want := "q" + strings.Repeat("\u0316", half) + strings.Repeat("\u0301", half); got != want {
		t.Error("marks are not in order")
	}
}

func TestNFCReturnsSettledTextItself(t *testing.T) {
	n, err := newNFC()
	if err != nil {
		t.Fatal(err)
	}
	const text = "Plain, café, 你好, 각, 😀"
	if allocs := testing.AllocsPerRun(10, func() { _ = n.normalizeNFC(text) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// TestInBlocks: blocks of any size give what one block gives, of every
// normalizer that works in them.
func TestInBlocks(t *testing.T) {
	n, err := newNFC()
	if err != nil {
		t.Fatal(err)
	}
	p, err := newCharProperties()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 9))
	parts := []string{"a", "q", "é", "e\u0301", "\u0301", "\u0316", "\u0345", "각", "\u1100", "\u1161", "\u11a8", "ﬁ", "ﷺ", "ﾊ", "ﾞ", "½", "\u0344", "\u0958", "\xff", "\xe4", "\x80", "\n", "世", "😀"}
	compose := func(runes []rune, block string) []rune {
		for _, r := range block {
			runes = n.decomposeRune(runes, r)
		}
		n.orderMarks(runes)
		return n.composeRunes(runes)
	}
	compatible := func(runes []rune, block string) []rune {
		return append(runes, []rune(n.normalizeCompatible(block, p.compatible, n.composeRunes))...)
	}
	starts := func(r rune) bool {
		_, ok := p.compatible[r]
		return !ok && n.isStarter(r)
	}
	for range 2000 {
		var b strings.Builder
		for range 1 + rng.IntN(30) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		text := b.String()
		composed, whole := rewriteBlocks(text, len(text), n.isStarter, compose), n.normalizeCompatible(text, p.compatible, n.composeRunes)
		for _, size := range []int{1, 2, 3, 7, 20} {
			if got := rewriteBlocks(text, size, n.isStarter, compose); got != composed {
				t.Fatalf("NFC of %+q by %d bytes: %+q, want %+q", text, size, got, composed)
			}
			if got := rewriteBlocks(text, size, starts, compatible); got != whole {
				t.Fatalf("NFKC of %+q by %d bytes: %+q, want %+q", text, size, got, whole)
			}
		}
	}
}

// TestOrderRun: a long run of marks is sorted as a short one is, equals in place.
func TestOrderRun(t *testing.T) {
	n, err := newNFC()
	if err != nil {
		t.Fatal(err)
	}
	marks := slices.Sorted(maps.Keys(n.class))
	rng := rand.New(rand.NewPCG(2, 9))
	for _, length := range []int{65, 1000} {
		run := make([]rune, length)
		for i := range run {
			run[i] = marks[rng.IntN(len(marks))]
		}
		want := slices.Clone(run)
		slices.SortStableFunc(want, func(a, b rune) int { return int(n.class[a]) - int(n.class[b]) })
		if n.orderMarkRun(run); !slices.Equal(run, want) {
			t.Errorf("%d marks are not in order", length)
		}
	}
}
