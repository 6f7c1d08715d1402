package token

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// boundedNames are the fixtures of which every token stands for a bounded text, with the bound.
var boundedNames = map[string]int{
	"gpt2": 16, "smollm": 16, "llama3": 17, "qwen2": 64, "builtin": 16, "cl100k": 13, "deepseek": 29, "gpt4o": 13,
	"qwen35": 13, "tekken": 11, "gemma": 19, "llama": 19,
}

// TestMaxTokenBytes: no text has fewer tokens than MaxTokenBytes says, and the result with a limit begins as the
// whole one does and has more tokens than the limit if that has.
func TestMaxTokenBytes(t *testing.T) {
	got := map[string]int{}
	for _, name := range caseNames {
		tok, texts, _ := readCases(t, name)
		if n := tok.MaxTokenBytes(); n > 0 {
			got[name] = n
		}
		shrinking := []string{strings.Repeat("\u212a", 999), strings.Repeat("\u1fbe\u0308\u0341", 999), strings.Repeat("\u1112\u1161\u11ab", 999), strings.Repeat(" ", 999), strings.Repeat("\ufffd\U00020000", 999), "\xff\xfe" + strings.Repeat("\x80", 99)}
		var whole, cut []kv.Token
		for i, text := range slices.Concat(texts[:2000], shrinking) {
			special := i%2 == 0
			whole = tok.Encode(whole[:0], text, prep.EncodeOptions{ParseSpecial: special})
			if n := tok.MaxTokenBytes(); n > 0 && len(whole) < len(text)/n {
				t.Fatalf("%s: %d tokens for %q, at most %d bytes each", name, len(whole), text, n)
			}
			limit := 1 + i%7
			cut = tok.Encode(cut[:0], text, prep.EncodeOptions{ParseSpecial: special, Limit: limit})
			if len(cut) > len(whole) || !slices.Equal(cut, whole[:len(cut)]) || len(cut) < len(whole) && len(cut) <= limit {
				t.Fatalf("%s: %q with limit %d is %v, want the first of %v", name, text, limit, cut, whole)
			}
			segments := []prep.Segment{{Text: text[:len(text)/2], Special: special}, {Text: text[len(text)/2:], Special: !special}}
			whole, cut = tok.EncodeSegments(whole[:0], segments, 0), tok.EncodeSegments(cut[:0], segments, limit)
			if len(cut) > len(whole) || !slices.Equal(cut, whole[:len(cut)]) || len(cut) < len(whole) && len(cut) <= limit {
				t.Fatalf("%s: %+v with limit %d is %v, want the first of %v", name, segments, limit, cut, whole)
			}
		}
	}
	if !maps.Equal(got, boundedNames) {
		t.Errorf("the longest tokens have %v bytes, want %v", got, boundedNames)
	}
}

// TestLimitSavesWork: of a text far longer than the limit little is encoded, with and without seams to cut it at,
// and what the cache keeps of it is whole.
func TestLimitSavesWork(t *testing.T) {
	const limit = 1000
	for name, text := range map[string]string{"words": strings.Repeat("so many words ", 1<<17), "signs": strings.Repeat("a1+", 1<<18)} {
		tok := fixtureTokenizer(t, "llama3")
		for i, ids := range [][]kv.Token{
			tok.Encode(nil, text, prep.EncodeOptions{Limit: limit}),
			tok.EncodeSegments(nil, []prep.Segment{{Text: text}}, limit),
			tok.EncodeSegments(nil, []prep.Segment{{Text: "<|eot_id|>", Special: true}, {Text: text + "<|eot_id|>"}}, limit),
		} {
			if len(ids) <= limit || len(ids) > limit+chunkSize {
				t.Errorf("%s: call %d encoded %d tokens, want little more than %d", name, i, len(ids), limit)
			}
		}
		whole := fixtureTokenizer(t, "llama3").appendPlain(nil, text[:64<<10], false)
		if got := tok.Encode(nil, text[:64<<10], prep.EncodeOptions{}); !slices.Equal(got, whole) {
			t.Errorf("%s: the cache of chunks is wrong after a limit", name)
		}
	}
}

// TestLimitSavesWorkOnSpecials: nor is more encoded of many special tokens, or of many segments if each is encoded by itself.
func TestLimitSavesWorkOnSpecials(t *testing.T) {
	const limit, many = 100, 1 << 14
	specials := strings.Repeat("<|eot_id|>", many)
	var segments []prep.Segment
	for range many {
		segments = append(segments, prep.Segment{Text: "<|end|>", Special: true}, prep.Segment{Text: "a<|end|>"})
	}
	// Its special tokens are matched in normalized text.
	matchesLater, err := Parse(changed(t, func(o object) {
		for _, a := range o["added_tokens"].([]any) {
			a.(object)["normalized"] = true
		}
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, id := range matchesLater.EncodeSegments(nil, segments, 0) {
		if matchesLater.IsSpecial(id) {
			found++
		}
	}
	if found != many {
		t.Errorf("%d special tokens are found, want those of %d special segments", found, many)
	}
	for name, ids := range map[string][]kv.Token{
		"special tokens": fixtureTokenizer(t, "llama3").Encode(nil, specials, prep.EncodeOptions{ParseSpecial: true, Limit: limit}),
		"segments":       matchesLater.EncodeSegments(nil, segments, limit),
	} {
		if len(ids) <= limit || len(ids) > limit+chunkSize {
			t.Errorf("%s: %d tokens are encoded, want little more than %d", name, len(ids), limit)
		}
	}
}

// TestMaxShrinkNFC computes how many bytes of text form C can have one byte for: each code point of a decomposition
// may have been any code point which decomposes to it.
func TestMaxShrinkNFC(t *testing.T) {
	n, err := newNFC()
	if err != nil {
		t.Fatal(err)
	}
	decompositions := map[rune][]rune{}
	for r := range n.parts {
		decompositions[r] = n.decomposeRune(nil, r)
	}
	for r := rune(hangulS); r < hangulS+hangulLs*hangulVs*hangulTs; r++ {
		decompositions[r] = n.decomposeRune(nil, r)
	}
	source := map[rune]int{} // the longest text of one code point for a decomposed one
	for r, parts := range decompositions {
		for _, p := range parts {
			source[p] = max(source[p], utf8.RuneLen(p))
		}
		if len(parts) == 1 {
			source[parts[0]] = max(source[parts[0]], utf8.RuneLen(r))
		}
	}
	most := 0.0
	for r, parts := range decompositions {
		size := 0
		for _, p := range parts {
			size += source[p]
			most = max(most, float64(source[p])/float64(utf8.RuneLen(p)))
		}
		if size < utf8.RuneLen(r) {
			t.Errorf("%U has more bytes than what it decomposes to: its sources are not counted", r)
		}
		most = max(most, float64(size)/float64(utf8.RuneLen(r)))
	}
	if most != 3.5 || most > maxShrinkNFC {
		t.Errorf("form C shrinks text by %v, want 3.5, and at most %d", most, maxShrinkNFC)
	}
}
