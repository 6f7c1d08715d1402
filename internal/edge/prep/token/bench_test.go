package token

import (
	"os"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// english and code are texts of the repository that the vocabularies were partly
// learnt from, cut to the size of a prompt.
func english(tb testing.TB) string { return document(tb, "../../../../docs/product.md") }

func code(tb testing.TB) string { return document(tb, "lexicon.go", "vocabulary.go", "split.go") }

func document(tb testing.TB, names ...string) string {
	tb.Helper()
	var b strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func BenchmarkEncode(b *testing.B) {
	texts := map[string]string{"english": english(b), "code": code(b), "word": strings.Repeat("ab", 15_000)}
	for _, name := range []string{"builtin", "gpt2", "qwen2"} {
		tok := fixtureTokenizer(b, name)
		for _, kind := range []string{"english", "code", "word"} {
			text := texts[kind]
			b.Run(name+"/"+kind, func(b *testing.B) {
				var ids []kv.Token
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					ids = tok.Encode(ids[:0], text, prep.EncodeOptions{})
				}
				b.ReportMetric(float64(len(text))/float64(len(ids)), "bytes/token")
			})
		}
	}
}

// BenchmarkEncodeCold encodes words that the cache does not have.
func BenchmarkEncodeCold(b *testing.B) {
	text := english(b)
	for _, name := range []string{"builtin", "gpt2"} {
		b.Run(name, func(b *testing.B) {
			tok := fixtureTokenizer(b, name)
			var ids []kv.Token
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				*tok.model.cache = wordCache{}
				ids = tok.Encode(ids[:0], text, prep.EncodeOptions{})
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := fixtureTokenizer(b, "builtin")
	text := english(b)
	ids := tok.Encode(nil, text, prep.EncodeOptions{})
	var out []byte
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		out = out[:0]
		d := tok.NewDecoder(prep.DecodeOptions{})
		for _, id := range ids {
			out = d.Push(out, id)
		}
		out = d.Flush(out)
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Builtin(); err != nil {
			b.Fatal(err)
		}
	}
}
