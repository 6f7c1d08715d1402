package token

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// The fixtures say what the reference implementation makes of the same texts;
// tools/fixtures/make_tokenizers.py made them.

// fixtureNames are the tokenizers among the fixtures.
var fixtureNames = []string{"gpt2", "smollm", "llama3", "qwen2", "flags", "builtin"}

func readFixture(tb testing.TB, name string) []byte {
	tb.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".json.gz"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	contents, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	return contents
}

func unmarshalFixture(tb testing.TB, name string, into any) {
	tb.Helper()
	if err := json.Unmarshal(readFixture(tb, name), into); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
}

func fixtureTokenizer(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	t, err := Builtin()
	if name != "builtin" {
		t, err = Parse(readFixture(tb, name+".tokenizer"), nil)
	}
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return t
}

func fixtureTexts(tb testing.TB) []string {
	var file struct{ Texts []string }
	unmarshalFixture(tb, "texts", &file)
	return file.Texts
}

// fixtureResults is described in make_tokenizers.py.
type fixtureResults struct {
	Default [][]kv.Token
	Plain   map[int][]kv.Token
	Streams [][]kv.Token
	Keep    []string
	Skip    map[int]string
	Decoded map[int]string
}

func orElse[T any](m map[int]T, i int, otherwise T) T {
	if v, ok := m[i]; ok {
		return v
	}
	return otherwise
}

func TestReferenceEncode(t *testing.T) {
	texts := fixtureTexts(t)
	if len(texts) < 1000 {
		t.Fatalf("%d texts", len(texts))
	}
	for _, name := range fixtureNames {
		t.Run(name, func(t *testing.T) {
			tok := fixtureTokenizer(t, name)
			var want fixtureResults
			unmarshalFixture(t, name+".results", &want)
			for i, text := range texts {
				got := tok.Encode(nil, text, prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
				if !slices.Equal(got, want.Default[i]) {
					t.Errorf("text %d %q:\n got %v\nwant %v", i, text, got, want.Default[i])
				}
				plain := tok.Encode(nil, text, prep.EncodeOptions{})
				if wantPlain := orElse(want.Plain, i, want.Default[i]); !slices.Equal(plain, wantPlain) {
					t.Errorf("plain text %d %q:\n got %v\nwant %v", i, text, plain, wantPlain)
				}
				if d, wantText := decodeAll(tok, plain, true), orElse(want.Decoded, i, text); d != wantText {
					t.Errorf("text %d decodes to %q, want %q", i, d, wantText)
				}
			}
		})
	}
}

func TestReferenceDecode(t *testing.T) {
	for _, name := range fixtureNames {
		t.Run(name, func(t *testing.T) {
			tok := fixtureTokenizer(t, name)
			var want fixtureResults
			unmarshalFixture(t, name+".results", &want)
			for i, ids := range want.Streams {
				if got := decodeAll(tok, ids, true); got != want.Keep[i] {
					t.Errorf("stream %d %v, special kept:\n got %q\nwant %q", i, ids, got, want.Keep[i])
				}
				if got := decodeAll(tok, ids, false); got != orElse(want.Skip, i, want.Keep[i]) {
					t.Errorf("stream %d %v:\n got %q\nwant %q", i, ids, got, want.Skip[i])
				}
			}
		})
	}
}

func decodeAll(tok *Tokenizer, ids []kv.Token, keep bool) string {
	d := tok.NewDecoder(prep.DecodeOptions{KeepSpecial: keep})
	var text []byte
	for _, id := range ids {
		text = d.Push(text, id)
	}
	return string(d.Flush(text))
}

func TestReferenceSplits(t *testing.T) {
	var want map[string][][]int
	unmarshalFixture(t, "splits", &want)
	c := newClasses()
	for name, next := range map[string]splitter{
		"gpt2": c.nextGPT2, "llama3": c.nextLlama3, "qwen2": c.nextQwen2, "digit": c.nextDigit, "number": c.nextNumber,
	} {
		for i, text := range fixtureTexts(t) {
			var got []int
			for rest := text; rest != ""; {
				n := next(rest)
				got = append(got, utf8.RuneCountInString(rest[:n]))
				rest = rest[n:]
			}
			if !slices.Equal(got, want[name][i]) {
				t.Errorf("%s: text %d %q: words of %v, want %v", name, i, text, got, want[name][i])
			}
		}
	}
}

func TestReferenceClasses(t *testing.T) {
	var runs map[string][][2]rune
	unmarshalFixture(t, "classes", &runs)
	c := newClasses()
	compareClass(t, runs["letter"], func(s string) bool { k, _ := c.classAt(s); return k&letter != 0 })
	compareClass(t, runs["number"], func(s string) bool { k, _ := c.classAt(s); return k&number != 0 })
	compareClass(t, runs["space"], func(s string) bool { k, _ := c.classAt(s); return k&space != 0 })
	digits := digitsStage(&componentConfig{IndividualDigits: true})
	compareClass(t, runs["digits"], func(s string) bool { return digits.next("a"+s) == 1 })
}

func compareClass(t *testing.T, runs [][2]rune, has func(string) bool) {
	t.Helper()
	wrong := 0
	for r := rune(0); r <= 0x10FFFF; r++ {
		if 0xD800 <= r && r < 0xE000 {
			continue
		}
		for len(runs) > 0 && runs[0][1] < r {
			runs = runs[1:]
		}
		want := len(runs) > 0 && runs[0][0] <= r
		if has(string(r)) != want {
			wrong++
			if wrong < 10 {
				t.Errorf("%U: got %t, want %t", r, !want, want)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d code points differ", wrong)
	}
}
