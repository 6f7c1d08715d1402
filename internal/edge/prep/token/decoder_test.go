package token

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// naiveReplace replaces every maximal part of a broken character by U+FFFD: the
// definition of the Unicode standard (chapter 3.9), by trying all lengths.
func naiveReplace(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			out.WriteRune(r)
			b = b[n:]
			continue
		}
		part := 1
		for n := 2; n <= len(b) && n < utf8.UTFMax; n++ {
			if !utf8.FullRune(b[:n]) {
				part = n
			}
		}
		out.WriteString(replacement)
		b = b[part:]
	}
	return out.String()
}

func TestDecodeAgainstDefinition(t *testing.T) {
	tok := fixtureTokenizer(t, "builtin")
	rng := rand.New(rand.NewPCG(5, 6))
	leads := []byte{0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF}
	for range 20_000 {
		var raw []byte
		var ids []kv.Token
		for range 1 + rng.IntN(8) {
			b := leads[rng.IntN(len(leads))]
			raw = append(raw, b)
			ids = append(ids, tok.model.byteTokens[b])
		}
		if got, want := decodeAll(tok, ids, false), naiveReplace(raw); got != want {
			t.Fatalf("% x decodes to %q, want %q", raw, got, want)
		}
	}
}

// TestDecodeIncrementally checks after every token that what came out is valid,
// is all that can be known by then, and is never taken back.
func TestDecodeIncrementally(t *testing.T) {
	for _, name := range fixtureNames {
		tok := fixtureTokenizer(t, name)
		for _, text := range fixtureTexts(t) {
			ids := tok.Encode(nil, text, prep.EncodeOptions{})
			d := tok.NewDecoder(prep.DecodeOptions{KeepSpecial: true})
			var raw, out []byte
			for _, id := range ids {
				raw, _ = tok.AppendBytes(raw, id)
				out = d.Push(out, id)
				if want := knowable(raw); string(out) != want {
					t.Fatalf("%s: after % x: %q, want %q", name, raw, out, want)
				}
			}
			if got, want := string(d.Flush(out)), naiveReplace(raw); got != want {
				t.Fatalf("%s: %q, want %q", name, got, want)
			}
		}
	}
}

// knowable is naiveReplace without a last character that may yet be completed.
func knowable(raw []byte) string {
	for n := 1; n < utf8.UTFMax && n <= len(raw); n++ {
		if tail := raw[len(raw)-n:]; utf8.RuneStart(tail[0]) && !utf8.FullRune(tail) {
			return naiveReplace(raw[:len(raw)-n])
		}
	}
	return naiveReplace(raw)
}

func TestDecodeSpecial(t *testing.T) {
	tok := fixtureTokenizer(t, "builtin")
	end, _ := tok.ID("<|end|>")
	// A special token between the bytes of a character does not break it up.
	ids := []kv.Token{tok.model.byteTokens[0xC3], end, tok.model.byteTokens[0xA9]}
	if got := decodeAll(tok, ids, false); got != "é" {
		t.Errorf("left out: %q", got)
	}
	if got := decodeAll(tok, ids, true); got != "\uFFFD<|end|>\uFFFD" {
		t.Errorf("kept: %q", got)
	}
}

func TestDecodeUnknownID(t *testing.T) {
	tok := fixtureTokenizer(t, "builtin")
	for _, id := range []kv.Token{kv.Token(tok.VocabSize()), 1 << 31, ^kv.Token(0)} {
		if out, ok := tok.AppendBytes([]byte("x"), id); ok || string(out) != "x" {
			t.Errorf("AppendBytes(%d) = %q, %t", id, out, ok)
		}
		if tok.IsSpecial(id) {
			t.Errorf("%d is special", id)
		}
		if got := decodeAll(tok, []kv.Token{id}, true); got != "" {
			t.Errorf("%d decodes to %q", id, got)
		}
	}
}

func TestFlushStartsAfresh(t *testing.T) {
	tok := fixtureTokenizer(t, "builtin")
	d := tok.NewDecoder(prep.DecodeOptions{})
	out := d.Push(nil, tok.model.byteTokens[0xE2])
	out = d.Flush(d.Flush(out))
	out = d.Push(out, tok.model.byteTokens['a'])
	if string(out) != "\uFFFDa" {
		t.Errorf("%q", out)
	}
}

func TestPushDoesNotAllocate(t *testing.T) {
	tok := fixtureTokenizer(t, "builtin")
	ids := tok.Encode(nil, "The router 你好 👩‍👩‍👧‍👦", prep.EncodeOptions{})
	d := tok.NewDecoder(prep.DecodeOptions{})
	out := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		out = out[:0]
		for _, id := range ids {
			out = d.Push(out, id)
		}
		out = d.Flush(out)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
