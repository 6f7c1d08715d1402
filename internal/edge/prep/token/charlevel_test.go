package token

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/fixturetest"
)

// plainNames are the tokenizers of make_plain.py.
var plainNames = []string{"llama", "gemma", "mistral", "partial", "t5", "xlmr", "bert", "cased", "marks", "words"}

// plainFixture is described in tools/fixtures/make_plain.py.
type plainFixture struct {
	Tokenizer json.RawMessage
	Full      [][]kv.Token
	Streams   [][]kv.Token
	Keep      []string
	Skip      []string
}

func readPlain(tb testing.TB, name string) (*Tokenizer, *plainFixture) {
	tb.Helper()
	f := new(plainFixture)
	unmarshalFixture(tb, "plain."+name, f)
	tok, err := Parse(f.Tokenizer, nil)
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return tok, f
}

func plainFragments(tb testing.TB) []string {
	var fragments []string
	unmarshalFixture(tb, "plain.fragments", &fragments)
	return fragments
}

func TestReferencePlain(t *testing.T) {
	fragments := plainFragments(t)
	for _, name := range plainNames {
		t.Run(name, func(t *testing.T) {
			tok, want := readPlain(t, name)
			for i, text := range fragments {
				got := tok.Encode(nil, text, prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
				if !slices.Equal(got, want.Full[i]) {
					t.Errorf("%+q:\n got %v\nwant %v", text, got, want.Full[i])
				}
			}
			for i, ids := range want.Streams {
				if got := decodeAll(tok, ids, true); got != want.Keep[i] {
					t.Errorf("stream %v, special kept:\n got %q\nwant %q", ids, got, want.Keep[i])
				}
				if got := decodeAll(tok, ids, false); got != want.Skip[i] {
					t.Errorf("stream %v:\n got %q\nwant %q", ids, got, want.Skip[i])
				}
			}
		})
	}
}

// unknown returns the unknown token of a fixture.
func (t *Tokenizer) unknown() kv.Token {
	for _, name := range []string{"<unk>", "[UNK]"} {
		if id, ok := t.ID(name); ok {
			return id
		}
	}
	return ^kv.Token(0)
}

// TestDecodePlainBytes: what a stream shows of bytes is whole characters, and
// U+FFFD for each byte from the first that breaks a run.
func TestDecodePlainBytes(t *testing.T) {
	tok, _ := readPlain(t, "llama")
	for spelled, want := range map[string]string{
		"\xe4\xbd\xa0":             "你",
		"\xe4\xbd":                 replacement + replacement,
		"\xe4\xbd\xa0\xff\xc3\xa9": "你" + replacement + replacement + replacement,
		"\xe4\x41":                 replacement + replacement,
		"\xf0\x9f\x98\x80\xc3":     "😀" + replacement,
		" x":                       "x",
	} {
		var ids []kv.Token
		for i := range len(spelled) {
			id, ok := tok.words[spelled[i:i+1]]
			if !ok || !tok.charLevel.isByte(id) {
				id = tok.charLevel.byteID(spelled[i])
			}
			ids = append(ids, id)
		}
		d := tok.NewDecoder(prep.DecodeOptions{})
		for range 2 { // Flush begins anew
			var out []byte
			for _, id := range ids {
				if out = d.Push(out, id); !utf8.Valid(out) {
					t.Errorf("half a character of % x: % x", spelled, out)
				}
			}
			if out = d.Flush(out); string(out) != want {
				t.Errorf("% x decodes to %q, want %q", spelled, out, want)
			}
		}
	}
}

// byteID looks for the entry of a byte.
func (p *charTokenizer) byteID(b byte) kv.Token {
	for id := range p.bytes {
		if p.entryName(kv.Token(id)) == byteEntryName(b) {
			return kv.Token(id)
		}
	}
	return 0
}

// FuzzPlain: no text does harm, none makes a special token, and where every
// character has an entry or bytes the text comes out as it went in.
func FuzzPlain(f *testing.F) {
	fixturetest.AddCorpus(f)
	for _, text := range plainFragments(f) {
		f.Add(text)
	}
	f.Add("\xff\xc3(")
	tokenizers := map[string]*Tokenizer{}
	for _, name := range plainNames {
		tokenizers[name], _ = readPlain(f, name)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range plainNames {
			tok := tokenizers[name]
			ids := tok.Encode(nil, text, prep.EncodeOptions{})
			for _, id := range ids {
				if tok.IsSpecial(id) && id != tok.unknown() {
					t.Fatalf("%s: %q gives the special token %d", name, text, id)
				}
			}
			got := decodeAll(tok, ids, true)
			if !utf8.ValidString(got) && utf8.ValidString(text) {
				t.Fatalf("%s: %q decodes to %q", name, text, got)
			}
			lossless := name == "llama" || name == "gemma"
			if lossless && utf8.ValidString(text) && got != strings.ReplaceAll(text, spaceMark, " ") {
				t.Fatalf("%s: %q decodes to %q", name, text, got)
			}
		}
	})
}
