package replay

import (
	"math"
	"math/bits"
	"strings"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Vocabulary is the range of ids [Low, High) of generated prompts. The zero value is [256, 1280): in most
// vocabularies those are plain words, past the special tokens and the bytes. Another Seed gives other prompts
// of the same shape, which share nothing with what a server may still have cached.
type Vocabulary struct {
	Low, High kv.Token
	Seed      uint64
}

const (
	defaultLow  kv.Token = 256
	defaultHigh kv.Token = 1280
)

// The kinds of prompt content. Content of different kinds shares nothing.
const (
	pieceBlock uint64 = iota + 1
	pieceUnique
	pieceMedia
	pieceText
)

// bytesPerToken is the assumed length of an English token where no tokenizer is available.
const bytesPerToken = 4

// CountTextTokens estimates the tokens of a text of this many bytes without a tokenizer: one for every four
// bytes, rounded up.
func CountTextTokens(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// CountPromptTokens returns how many tokens [AppendTokens] makes of r.
func CountPromptTokens(r *Request) int {
	switch {
	case len(r.Tokens) > 0:
		return len(r.Tokens)
	case len(r.Messages) > 0:
		return CountTextTokens(len(r.Tools)) + CountTextTokens(len(r.Messages))
	case r.Text != "":
		return CountTextTokens(len(r.Text))
	case len(r.Payload) > 0:
		return CountTextTokens(len(r.Payload))
	}
	return max(r.Input, 0)
}

// AppendTokens appends the prompt of r as token ids. Only this function decides which tokens a workload
// stands for, so that a simulated worker and a server see the same prefixes:
//
//   - Tokens are copied.
//
//   - Each of Blocks is BlockTokens ids, a function of its name and v. The prompt is cut to Input;
//     what the blocks do not cover derives from Index.
//
//   - Messages (after Tools), Text and Payload are one token for every four bytes, rounded up, a
//     function of those four bytes, so that texts with a common beginning have common first tokens.
//
//   - Otherwise the prompt is Input ids: first the ids of Media, a function of their ids, then ids
//     which are a function of Index and share nothing with other requests.
//
// Generated tokens differ between Models and Salts, as a cache keeps those apart.
func AppendTokens(dst []kv.Token, r *Request, v Vocabulary) []kv.Token {
	if v.High <= v.Low {
		v.Low, v.High = defaultLow, defaultHigh
	}
	if r.Model != "" {
		v.Seed = splitmix.Mix(v.Seed + hashText(r.Model))
	}
	if r.Salt != "" {
		v.Seed = splitmix.Mix(v.Seed ^ hashText(r.Salt))
	}
	switch {
	case len(r.Tokens) > 0:
		return append(dst, r.Tokens...)
	case len(r.Messages) > 0:
		return appendTextTokens(appendTextTokens(dst, r.Tools, v), r.Messages, v)
	case r.Text != "":
		return appendTextTokens(dst, r.Text, v)
	case len(r.Payload) > 0:
		return appendTextTokens(dst, r.Payload, v)
	}
	begin, end := len(dst), len(dst)+max(r.Input, 0)
	dst = growTokens(dst, end)
	at := begin
	if len(r.Blocks) > 0 {
		for _, name := range r.Blocks {
			if at == end {
				break
			}
			n := min(r.BlockTokens, end-at)
			v.fillTokens(dst[at:at+n], pieceBlock, uint64(name))
			at += n
		}
	} else {
		for i := range r.Media {
			n := min(max(r.Media[i].Tokens, 0), end-at)
			v.fillTokens(dst[at:at+n], pieceMedia, hashText(r.Media[i].ID))
			at += n
		}
	}
	v.fillTokens(dst[at:end], pieceUnique, uint64(r.Index))
	return dst
}

// growTokens returns dst with length n; its new elements are undefined.
func growTokens(dst []kv.Token, n int) []kv.Token {
	if n <= cap(dst) {
		return dst[:n]
	}
	bigger := make([]kv.Token, n)
	copy(bigger, dst)
	return bigger
}

// fillTokens fills dst from a name: the i-th id depends on the name and i only, so that a shorter fill is a
// prefix of a longer one.
func (v *Vocabulary) fillTokens(dst []kv.Token, piece, name uint64) {
	width, low := uint64(v.High-v.Low), v.Low
	state := splitmix.Mix(splitmix.Mix(name) ^ splitmix.Mix(v.Seed*splitmix.Step+piece))
	pairs := dst[:len(dst)&^1]
	for i := 0; i+1 < len(pairs); i += 2 {
		state += splitmix.Step
		x := splitmix.Mix(state)
		pairs[i] = low + kv.Token(x>>32*width>>32)
		pairs[i+1] = low + kv.Token(x&math.MaxUint32*width>>32)
	}
	if len(pairs) < len(dst) {
		dst[len(pairs)] = low + kv.Token(splitmix.Mix(state+splitmix.Step)>>32*width>>32)
	}
}

// appendTextTokens appends a token for every four bytes of text; the last may have fewer.
func appendTextTokens[T string | ~[]byte](dst []kv.Token, text T, v Vocabulary) []kv.Token {
	width, key := uint64(v.High-v.Low), splitmix.Mix(v.Seed*splitmix.Step+pieceText)
	for i := 0; i < len(text); i += bytesPerToken {
		word := uint64(min(len(text)-i, bytesPerToken)) // distinguishes "a" from "a\x00"
		for j := i; j < min(len(text), i+bytesPerToken); j++ {
			word = word<<8 | uint64(text[j])
		}
		high, _ := bits.Mul64(splitmix.Mix(word^key), width)
		dst = append(dst, v.Low+kv.Token(high))
	}
	return dst
}

// hashText hashes a text to 64 bits (FNV-1a, mixed).
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return splitmix.Mix(h)
}

// commonWords returns the vocabulary of generated text: 256 short English words. Each is one token in common
// vocabularies together with the space before it.
func commonWords() []string {
	return strings.Fields(`
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many before must through back years where much your way well down
should because each just those people too how little state good very make world still see own work long here
get both between life being under never day same another know year while last might us great old go come since
against right came take used himself few house use place during high without again home around small however
found part school thought went say once general upon war left every got does fact end set night head four late
almost hand nothing far white second side put took find better look city room power book family point child
money story month lot study eye job word business issue kind service friend father hour game line member law
car community name president team minute idea body information ago lead social whether watch together follow
parent stop face anything create public already speak others read level allow add office spend door health
person art sure history party within grow
`)
}

// AppendText appends the prompt of r as text, for servers without token ids. Text is copied. Any other prompt
// becomes a word with a space before it for each token of [AppendTokens], about a token each, so that prompts
// share text exactly where they share tokens. Another seed gives other text.
func AppendText(dst []byte, r *Request, seed uint64) []byte {
	if r.Text != "" {
		return append(dst, r.Text...)
	}
	list := commonWords()
	tokens := AppendTokens(nil, r, Vocabulary{High: kv.Token(len(list)), Seed: seed})
	for _, t := range tokens {
		dst = append(dst, ' ')
		dst = append(dst, list[int(t)%len(list)]...) // Tokens of a file may be any
	}
	return dst
}
