package replay

import (
	"math"
	"math/bits"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Vocabulary is the range of ids [Low, High) that made-up prompts consist of. The
// zero value is [256, 1280): in most vocabularies those are plain words, past the
// special tokens and the bytes. Another Seed gives other prompts of the same shape, which
// share nothing with those that a server may still have in its cache.
type Vocabulary struct {
	Low, High kv.Token
	Seed      uint64
}

const (
	defaultLow  kv.Token = 256
	defaultHigh kv.Token = 1280
)

// What a piece of a prompt is made from. Pieces of different kinds share nothing.
const (
	pieceBlock uint64 = iota + 1
	pieceUnique
	pieceMedia
	pieceText
)

// bytesPerToken is what a token of English is counted as where no tokenizer is at
// hand.
const bytesPerToken = 4

// TextTokens is how many tokens a text of so many bytes counts as where no tokenizer
// is at hand: one for each four bytes begun.
func TextTokens(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// PromptTokens is how many tokens [AppendTokens] makes of r.
func PromptTokens(r *Request) int {
	switch {
	case len(r.Tokens) > 0:
		return len(r.Tokens)
	case len(r.Messages) > 0:
		return TextTokens(len(r.Tools)) + TextTokens(len(r.Messages))
	case r.Text != "":
		return TextTokens(len(r.Text))
	case len(r.Payload) > 0:
		return TextTokens(len(r.Payload))
	}
	return max(r.Input, 0)
}

// AppendTokens appends the prompt of r as token ids. It is the one place that says
// which tokens a workload stands for, so that a simulated worker and a server see
// the same prefixes:
//
//   - Tokens are taken as they are.
//   - Of Blocks, each is BlockTokens ids that are a function of its name and v; the
//     prompt is cut to Input, and what the blocks do not reach is made up from Index.
//   - Messages (after Tools), Text and Payload are one token for each four bytes begun, a
//     function of those four bytes, so that texts with an equal beginning have equal
//     first tokens.
//   - Otherwise the prompt is Input ids: first those of Media, a function of their ids, then
//     some that are a function of Index and share nothing with other requests.
//
// What is made up is another thing under another Model or Salt, as a cache keeps
// those apart.
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
		return appendBytes(appendBytes(dst, r.Tools, v), r.Messages, v)
	case r.Text != "":
		return appendBytes(dst, r.Text, v)
	case len(r.Payload) > 0:
		return appendBytes(dst, r.Payload, v)
	}
	begin, end := len(dst), len(dst)+max(r.Input, 0)
	dst = grow(dst, end)
	at := begin
	if len(r.Blocks) > 0 {
		for _, name := range r.Blocks {
			if at == end {
				break
			}
			n := min(r.BlockTokens, end-at)
			v.fill(dst[at:at+n], pieceBlock, uint64(name))
			at += n
		}
	} else {
		for i := range r.Media {
			n := min(max(r.Media[i].Tokens, 0), end-at)
			v.fill(dst[at:at+n], pieceMedia, hashText(r.Media[i].ID))
			at += n
		}
	}
	v.fill(dst[at:end], pieceUnique, uint64(r.Index))
	return dst
}

// grow returns dst with length n, its new elements undefined.
func grow(dst []kv.Token, n int) []kv.Token {
	if n <= cap(dst) {
		return dst[:n]
	}
	bigger := make([]kv.Token, n)
	copy(bigger, dst)
	return bigger
}

// fill makes all of dst up from a name: the i-th id depends on the name, on i and
// on nothing else, so that a piece that is cut short is a prefix of the whole.
func (v *Vocabulary) fill(dst []kv.Token, piece, name uint64) {
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

// appendBytes appends a token for every four bytes of text, the last of which may
// be fewer.
func appendBytes[T string | ~[]byte](dst []kv.Token, text T, v Vocabulary) []kv.Token {
	width, key := uint64(v.High-v.Low), splitmix.Mix(v.Seed*splitmix.Step+pieceText)
	for i := 0; i < len(text); i += bytesPerToken {
		word := uint64(min(len(text)-i, bytesPerToken)) // "a" is not "a\x00"
		for j := i; j < min(len(text), i+bytesPerToken); j++ {
			word = word<<8 | uint64(text[j])
		}
		high, _ := bits.Mul64(splitmix.Mix(word^key), width)
		dst = append(dst, v.Low+kv.Token(high))
	}
	return dst
}

// hashText names a text by 64 bits (FNV-1a, mixed).
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return splitmix.Mix(h)
}
