package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"penstock/core/kv"
)

// agreedField is one field in which the cards of all workers of a model agree,
// under its name in JSON.
type agreedField struct {
	name  string
	value string // compact JSON
	unset bool   // it has the zero value
}

// agreed returns the fields of c that make up the model as its clients, frontends
// and routers know it, in the order in which they are compared and hashed:
//
//   - tokenizer and vocab_size: the same tokens mean the same text. Files are
//     known by their digest wherever they lie; without one by their directory.
//   - block_size: a router counts, hashes and compares blocks of one size.
//   - context_length, default_max_tokens, defaults, eos: a request gets the same
//     limits and the same sampling wherever it goes, and a stream that moves to
//     another worker ends where it would have ended.
//   - aliases: who asks by another name reaches the same workers.
//   - tool_parser, reasoning_parser: an answer is taken apart in one way.
//   - media, attaches, media_keys, media_decoder: what a request shows is taken, named and decoded
//     in one way.
//
// What one worker may have and another not is no part of it: blocks, ranks,
// engine, max_num_batched_tokens and experts are its size, make and place in the fleet; numerics divides the workers of one model into
// those that continue each other's streams exactly, which is checked for each
// stream; guided, preprocess, embeddings, passes, features, kv_events, kv_guessed and no_reuse are abilities, and
// requests that need one go where it is, as do those for one of the adapters.
//
// A field of a later version is added at the end, and stands in the checksum only
// where it is set: so builds that know it agree with builds that do not, until
// someone uses it.
func (c *Card) agreed() []agreedField {
	tokenizer := c.Tokenizer
	if tokenizer.Digest != "" {
		tokenizer.Dir = ""
	}
	// Sets, whatever the order in which a worker lists them.
	aliases, eos := sortedSet(c.Aliases), sortedSet(c.EOS)
	return []agreedField{
		field("name", c.Name, c.Name == ""),
		field("tokenizer", tokenizer, tokenizer == TokenizerRef{}),
		field("vocab_size", c.VocabSize, c.VocabSize == 0),
		field("block_size", c.BlockSize, c.BlockSize == 0),
		field("context_length", c.ContextLength, c.ContextLength == 0),
		field("eos", eos, len(eos) == 0),
		field("default_max_tokens", c.DefaultMaxTokens, c.DefaultMaxTokens == 0),
		field("defaults", c.Defaults, false),
		field("aliases", aliases, len(aliases) == 0),
		field("tool_parser", c.ToolParser, c.ToolParser == ""),
		field("reasoning_parser", c.ReasoningParser, c.ReasoningParser == ""),
		field("media", sortedSet(c.Media), len(c.Media) == 0),
		field("attaches", c.Attaches, !c.Attaches),
		field("media_keys", c.MediaKeys, c.MediaKeys == ""),
		field("media_decoder", c.MediaDecoder, c.MediaDecoder == nil),
	}
}

func field[T any](name string, v T, unset bool) agreedField {
	b, err := json.Marshal(v)
	if err != nil { // a number that is none, which no valid card has
		b = fmt.Appendf(nil, "%q", err.Error())
	}
	return agreedField{name, string(b), unset}
}

// sortedSet returns what is in s, each once, ascending; never nil, so that none
// is written like none.
func sortedSet[T kv.Token | string](s []T) []T {
	set := append([]T{}, s...)
	slices.Sort(set)
	return slices.Compact(set)
}

// Checksum returns the SHA-256, in hex, of the fields that the cards of all
// workers of one name must agree on: for each that is set a line of its JSON
// name, a space and its compact JSON. Cards that do not differ have equal ones.
func (c *Card) Checksum() string {
	h := sha256.New()
	for _, f := range c.agreed() {
		if !f.unset {
			fmt.Fprintf(h, "%s %s\n", f.name, f.value)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Differs returns the first field in which c and other differ and must not, with
// the value of each, shortened for a message.
func (c *Card) Differs(other *Card) (field, mine, theirs string, differ bool) {
	theirFields := other.agreed()
	for i, f := range c.agreed() {
		if f.value != theirFields[i].value {
			return f.name, shorten(f.value), shorten(theirFields[i].value), true
		}
	}
	return "", "", "", false
}

// DiffersFrom says in words in what c differs from the card of the model as it is
// served; "" if in nothing that matters.
func (c *Card) DiffersFrom(served *Card) string {
	field, mine, theirs, differ := c.Differs(served)
	if !differ {
		return ""
	}
	return fmt.Sprintf("its model card differs from the one served as %s: %s is %s here and %s there", served.Name, field, mine, theirs)
}

// shorten bounds a value where a message repeats it.
func shorten(s string) string {
	const limit = 160
	if len(s) <= limit {
		return s
	}
	cut := limit
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strings.Clone(s[:cut]) + "…"
}
