// Package token maps text to the token ids of a model and back, exactly as the
// checkpoint's tokenizer.json says.
//
// The file describes four stages, and so does this package: a normalizer
// rewrites text, a pre-tokenizer cuts it into words, a model turns each word
// into ids, and a decoder turns ids into text. What is implemented is byte-level
// byte-pair encoding, the family of GPT-2, Llama 3 and Qwen, and what works on
// characters: SentencePiece's byte-pair encoding (Llama 2, Mistral, Gemma),
// Unigram (T5, XLM-R), WordPiece (BERT) and whole words. A file that asks for anything else
// is refused when it is read, by the name of what is missing: a tokenizer that
// is nearly right makes a model quietly worse.
//
// Text is valid UTF-8. A broken byte does no harm: it is cut off as a sign would
// be and encoded as the token of that byte, or as U+FFFD by a normalizer.
package token

import (
	"slices"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// Tokenizer is a tokenizer read by [Parse]. What it answers does not change, and
// it is safe for concurrent use.
type Tokenizer struct {
	normalizers []normalizer
	stages      []stage // pre-tokenizers; each cuts the words of the one before
	model       *bpe
	raw         *addedSet // added tokens looked for in the text as it came
	added       *addedSet // those looked for in normalized text
	begin       []kv.Token
	end         []kv.Token
	eos         kv.Token
	hasEOS      bool
	entries     entries
	words       map[string]kv.Token // model vocabulary by bytes, special tokens left out
	names       map[string]kv.Token // added tokens by content
	chunks      *chunks             // nil if this tokenizer's texts cannot be cut at seams
	plain       *plain              // nil if the vocabulary is byte-level
}

var _ prep.Tokenizer = (*Tokenizer)(nil)

// entries are the bytes of every id, one after the other.
type entries struct {
	text    string
	start   []uint32 // of id i: text[start[i]:start[i+1]]
	known   []bool
	special []bool
}

// stage is one pre-tokenizer.
type stage struct {
	prefix bool // text that does not start with a space gets one
	idle   bool // changes nothing
	next   splitter
	// plain finds what next finds, sooner, or 0; nil if it never finds anything.
	plain func(text string) int
}

// Encode appends the ids of text to dst. With opts.ParseSpecial, special tokens
// in text become their ids, as the reference implementation does by default;
// without, they are text like any other. Added tokens that are not special (runs
// of spaces, say) are vocabulary and always found.
func (t *Tokenizer) Encode(dst []kv.Token, text string, opts prep.EncodeOptions) []kv.Token {
	if opts.AddSpecial {
		dst = append(dst, t.begin...)
	}
	dst = t.appendChunks(slices.Grow(dst, len(text)/bytesPerToken), text, opts.ParseSpecial)
	if opts.AddSpecial {
		dst = append(dst, t.end...)
	}
	return dst
}

// bytesPerToken is what room is made for; it is about that of English.
const bytesPerToken = 4

// appendPlain encodes text by itself.
func (t *Tokenizer) appendPlain(dst []kv.Token, text string, parseSpecial bool) []kv.Token {
	return t.appendRuns(dst, text, []run{{len(text), parseSpecial}})
}

// appendRuns encodes text by itself. There is one run only if special tokens are
// looked for in normalized text.
func (t *Tokenizer) appendRuns(dst []kv.Token, text string, runs []run) []kv.Token {
	first := true // nothing of text was before
	t.raw.pieces(text, runs, func(outer piece) bool {
		if outer.token != nil {
			dst = append(dst, outer.token.id)
			first = false
			return true
		}
		normalized := t.normalize(outer.text)
		t.added.pieces(normalized, []run{{len(normalized), runs[0].special}}, func(p piece) bool {
			switch {
			case p.token != nil:
				dst = append(dst, p.token.id)
			case t.plain != nil:
				dst = t.plain.append(dst, p.text, first)
			default:
				dst = t.appendText(dst, p.text, t.stages)
			}
			first = false
			return true
		})
		return true
	})
	return dst
}

func (t *Tokenizer) normalize(text string) string {
	for _, n := range t.normalizers {
		text = n(text)
	}
	return text
}

// appendText cuts text by the stages and encodes what comes out of the last.
func (t *Tokenizer) appendText(dst []kv.Token, text string, stages []stage) []kv.Token {
	if len(text) == 0 {
		return dst
	}
	first, deeper := stages[0], stages[1:]
	if first.prefix && text[0] != ' ' {
		text = " " + text
	}
	for len(text) > 0 {
		n := 0
		if first.plain != nil {
			n = first.plain(text)
		}
		if n == 0 {
			n = first.next(text)
		}
		if len(deeper) == 0 {
			dst = t.model.appendWord(dst, text, n)
		} else {
			dst = t.appendText(dst, text[:n], deeper)
		}
		text = text[n:]
	}
	return dst
}

// AppendBytes appends the bytes that id stands for; a special token appends its
// literal text. ok is false if id is not in the vocabulary.
func (t *Tokenizer) AppendBytes(dst []byte, id kv.Token) (out []byte, ok bool) {
	if !t.known(id) {
		return dst, false
	}
	return append(dst, t.bytes(id)...), true
}

// bytes returns what id stands for; "" if it is not in the vocabulary.
func (t *Tokenizer) bytes(id kv.Token) string {
	if int(id) >= len(t.entries.known) {
		return ""
	}
	return t.entries.text[t.entries.start[id]:t.entries.start[id+1]]
}

func (t *Tokenizer) known(id kv.Token) bool {
	return int(id) < len(t.entries.known) && t.entries.known[id]
}

// Special reports whether id is a special token, which decoded text leaves out.
func (t *Tokenizer) Special(id kv.Token) bool {
	return int(id) < len(t.entries.special) && t.entries.special[id]
}

// ID returns the id that stands for exactly text: the literal text of an added
// token, or the bytes of a token of the model.
func (t *Tokenizer) ID(text string) (id kv.Token, ok bool) {
	if id, ok := t.names[text]; ok {
		return id, true
	}
	id, ok = t.words[text]
	return id, ok
}

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.entries.known) }

// EOS returns the token that ends a text, if the tokenizer's configuration names
// one.
func (t *Tokenizer) EOS() (id kv.Token, ok bool) { return t.eos, t.hasEOS }
