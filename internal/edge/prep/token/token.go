// Package token maps text to the token ids of a model and back, exactly as the checkpoint's tokenizer.json
// says.
//
// The file describes four stages, and so does this package: a normalizer rewrites text, a pre-tokenizer cuts
// it into words, a model turns each word into ids, and a decoder turns ids into text. Implemented are
// byte-level byte-pair encoding, the family of GPT-2, Llama 3 and Qwen, and the models on characters:
// SentencePiece's byte-pair encoding (Llama 2, Mistral, Gemma), Unigram (T5, XLM-R), WordPiece (BERT) and
// whole words. A file which needs anything else is refused when it is read, with the name of the missing
// part: a tokenizer which is nearly right makes a model quietly worse.
//
// Text is valid UTF-8. A broken byte is harmless: it is cut off like a sign and encoded as the token of that
// byte, or as U+FFFD by a normalizer.
package token

import (
	"math"
	"slices"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// Tokenizer is a tokenizer read by [Parse]. It is immutable and safe for concurrent use.
type Tokenizer struct {
	normalizers []normalizer
	stages      []stage // pre-tokenizers; each cuts the words of the previous one
	model       *bpe
	raw         *addedSet // added tokens matched in the original text
	added       *addedSet // added tokens matched in normalized text
	begin       []kv.Token
	end         []kv.Token
	eos         kv.Token
	hasEOS      bool
	entries     entryTable
	words       map[string]kv.Token // model vocabulary by bytes, without special tokens
	names       map[string]kv.Token // added tokens by content
	chunks      *chunkCache         // nil if this tokenizer's texts cannot be cut at seams
	charLevel   *charTokenizer      // nil if the vocabulary is byte-level
	longest     int                 // what MaxTokenBytes returns
}

var _ prep.Tokenizer = (*Tokenizer)(nil)

// entryTable has the bytes of every id, one after the other.
type entryTable struct {
	text    string
	start   []uint32 // of id i: text[start[i]:start[i+1]]
	known   []bool
	special []bool
}

// stage is one pre-tokenizer.
type stage struct {
	prefix bool // prepends a space to text without one
	idle   bool // changes nothing
	next   splitter
	// findFast finds the same as next, faster, or returns 0; nil if it never does.
	findFast func(text string) int
}

// Encode appends the ids of text to dst. With opts.ParseSpecial, special tokens in text become their ids, as
// the reference implementation does by default; otherwise they are plain text. Added tokens which are not
// special (runs of spaces, say) are vocabulary and always found. With opts.Limit the rest of a text with more
// tokens may be left out.
func (t *Tokenizer) Encode(dst []kv.Token, text string, opts prep.EncodeOptions) []kv.Token {
	if opts.AddSpecial {
		dst = append(dst, t.begin...)
	}
	limit := limitAfter(dst, opts.Limit)
	dst = t.appendChunks(growFor(dst, text, opts.Limit), text, opts.ParseSpecial, limit)
	if opts.AddSpecial {
		dst = append(dst, t.end...)
	}
	return dst
}

// noLimit is the limit of a text which is encoded whole.
const noLimit = math.MaxInt

// limitAfter returns the length of dst after which the rest of a text may be left out: limit more tokens, or
// noLimit if it is 0.
func limitAfter(dst []kv.Token, limit int) int {
	if limit <= 0 || limit > noLimit-len(dst) {
		return noLimit
	}
	return len(dst) + limit
}

// growFor makes room for the tokens of text, of which at most a few more than limit are needed; 0 is no limit.
func growFor(dst []kv.Token, text string, limit int) []kv.Token {
	n := len(text) / bytesPerToken
	if limit > 0 {
		n = min(n, limit)
	}
	return slices.Grow(dst, n)
}

// bytesPerToken is the assumed size for reserving room, about that of English.
const bytesPerToken = 4

// appendPlain encodes text without the chunk cache, whole.
func (t *Tokenizer) appendPlain(dst []kv.Token, text string, parseSpecial bool) []kv.Token {
	return t.appendRuns(dst, text, []segmentRun{{len(text), parseSpecial}}, noLimit)
}

// appendRuns encodes text without the chunk cache. There is only one run if special tokens are matched in
// normalized text. It may leave out the rest once dst is longer than limit.
func (t *Tokenizer) appendRuns(dst []kv.Token, text string, runs []segmentRun, limit int) []kv.Token {
	first := true // nothing of text came before
	t.raw.splitPieces(text, runs, func(outer textPiece) bool {
		if outer.token != nil {
			dst = append(dst, outer.token.id)
			first = false
			return len(dst) <= limit
		}
		normalized := t.normalize(outer.text)
		t.added.splitPieces(normalized, []segmentRun{{len(normalized), runs[0].special}}, func(p textPiece) bool {
			switch {
			case p.token != nil:
				dst = append(dst, p.token.id)
			case t.charLevel != nil:
				dst = t.charLevel.appendPiece(dst, p.text, first)
			default:
				dst = t.appendText(dst, p.text, t.stages, limit)
			}
			first = false
			return len(dst) <= limit
		})
		return len(dst) <= limit
	})
	return dst
}

func (t *Tokenizer) normalize(text string) string {
	for _, n := range t.normalizers {
		text = n(text)
	}
	return text
}

// appendText cuts text by the stages and encodes the output of the last, as far as limit.
func (t *Tokenizer) appendText(dst []kv.Token, text string, stages []stage, limit int) []kv.Token {
	if len(text) == 0 {
		return dst
	}
	first, deeper := stages[0], stages[1:]
	if first.prefix && text[0] != ' ' {
		text = " " + text
	}
	for len(text) > 0 && len(dst) <= limit {
		n := 0
		if first.findFast != nil {
			n = first.findFast(text)
		}
		if n == 0 {
			n = first.next(text)
		}
		if len(deeper) == 0 {
			dst = t.model.appendWord(dst, text, n)
		} else {
			dst = t.appendText(dst, text[:n], deeper, limit)
		}
		text = text[n:]
	}
	return dst
}

// AppendBytes appends the bytes of id; a special token appends its literal text. ok is false if id is not in
// the vocabulary.
func (t *Tokenizer) AppendBytes(dst []byte, id kv.Token) (out []byte, ok bool) {
	if !t.isKnown(id) {
		return dst, false
	}
	return append(dst, t.entryBytes(id)...), true
}

// entryBytes returns the bytes of id; "" if it is not in the vocabulary.
func (t *Tokenizer) entryBytes(id kv.Token) string {
	if int(id) >= len(t.entries.known) {
		return ""
	}
	return t.entries.text[t.entries.start[id]:t.entries.start[id+1]]
}

func (t *Tokenizer) isKnown(id kv.Token) bool {
	return int(id) < len(t.entries.known) && t.entries.known[id]
}

// IsSpecial reports whether id is a special token, which decoded text leaves out.
func (t *Tokenizer) IsSpecial(id kv.Token) bool {
	return int(id) < len(t.entries.special) && t.entries.special[id]
}

// ID returns the id of exactly text: the literal text of an added token, or the bytes of a token of the
// model.
func (t *Tokenizer) ID(text string) (id kv.Token, ok bool) {
	if id, ok := t.names[text]; ok {
		return id, true
	}
	id, ok = t.words[text]
	return id, ok
}

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.entries.known) }

// EOS returns the token which ends a text, if the tokenizer's configuration names one.
func (t *Tokenizer) EOS() (id kv.Token, ok bool) { return t.eos, t.hasEOS }
