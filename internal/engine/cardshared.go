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

// sharedField is one field on which the cards of all workers of a model must agree, under its JSON name.
type sharedField struct {
	name  string
	value string // compact JSON
	unset bool   // the field has its zero value
}

// sharedFields returns the fields on which c must agree with the workers of a model for the role of one of the
// two, in the order in which they are compared and hashed.
//
// For workers which take requests they are the fields that define the model for clients, frontends and
// routers:
//
//   - tokenizer and vocab_size: the same tokens mean the same text. A tokenizer with a digest is identified
//     by the digest wherever its files lie; without one by their directory.
//   - block_size: a router counts, hashes and compares blocks of one size.
//   - context_length, default_max_tokens, defaults, eos: a request gets the same limits and the same sampling
//     on every worker, and a stream that moves to another worker ends where it would have ended.
//   - aliases: every alias reaches the same workers.
//   - tool_parser, reasoning_parser: every answer is parsed in one way.
//   - media, attaches, media_keys, media_decoder, mm_processor_kwargs: the media of a request are accepted,
//     identified, decoded and counted in one way.
//
// Fields in which workers of one model may differ are left out. blocks, ranks, engine, max_num_batched_tokens and
// experts are the worker's size, make and place in the fleet. numerics divides the workers of a model into groups
// that continue each other's streams exactly, which is checked for each stream. guided, preprocess, embeddings,
// passes, features, media_miscounted, kv_events, kv_connector, kv_guessed, no_reuse, exchange and embedding_region
// are abilities: a request that needs one is routed to a worker that has it, as is a request for an adapter. role
// divides the work on one model.
//
// A prefill worker computes blocks for others: numerics must be equal. An encode worker encodes media for
// others: media and mm_processor_kwargs must be, and encoder where both cards know theirs; it is no part of the
// checksum, which earlier builds check. Both are exempt from the rest, since no request is made by
// their cards. Their role is a line of the checksum, so that builds which know no roles refuse these cards
// wherever they meet one.
//
// A field of a later version is appended, and enters the checksum only where it is set: builds that know it
// agree with builds that do not, until a deployment sets it.
func (c *Card) sharedFields(role Role) []sharedField {
	switch role {
	case RolePrefill:
		return []sharedField{
			newSharedField("name", c.Name, c.Name == ""),
			newSharedField("numerics", c.Numerics, c.Numerics == ""),
		}
	case RoleEncode:
		return []sharedField{
			newSharedField("name", c.Name, c.Name == ""),
			newSharedField("media", sortedSet(c.Media), len(c.Media) == 0),
			newSharedField("mm_processor_kwargs", c.ProcessorArgs, c.ProcessorArgs == ""),
		}
	}
	tokenizer := c.Tokenizer
	if tokenizer.Digest != "" {
		tokenizer.Dir = ""
	}
	// These are sets: the order in which a worker lists them does not matter.
	aliases, eos := sortedSet(c.Aliases), sortedSet(c.EOS)
	return []sharedField{
		newSharedField("name", c.Name, c.Name == ""),
		newSharedField("tokenizer", tokenizer, tokenizer == TokenizerRef{}),
		newSharedField("vocab_size", c.VocabSize, c.VocabSize == 0),
		newSharedField("block_size", c.BlockSize, c.BlockSize == 0),
		newSharedField("context_length", c.ContextLength, c.ContextLength == 0),
		newSharedField("eos", eos, len(eos) == 0),
		newSharedField("default_max_tokens", c.DefaultMaxTokens, c.DefaultMaxTokens == 0),
		newSharedField("defaults", c.Defaults, false),
		newSharedField("aliases", aliases, len(aliases) == 0),
		newSharedField("tool_parser", c.ToolParser, c.ToolParser == ""),
		newSharedField("reasoning_parser", c.ReasoningParser, c.ReasoningParser == ""),
		newSharedField("media", sortedSet(c.Media), len(c.Media) == 0),
		newSharedField("attaches", c.AcceptsObjects, !c.AcceptsObjects),
		newSharedField("media_keys", c.MediaKeys, c.MediaKeys == ""),
		newSharedField("media_decoder", c.MediaDecoder, c.MediaDecoder == nil),
		newSharedField("mm_processor_kwargs", c.ProcessorArgs, c.ProcessorArgs == ""),
	}
}

func newSharedField[T any](name string, v T, unset bool) sharedField {
	b, err := json.Marshal(v)
	if err != nil { // an invalid number, which no valid card has
		b = fmt.Appendf(nil, "%q", err.Error())
	}
	return sharedField{name, string(b), unset}
}

// sortedSet returns the distinct elements of s, ascending. It is never nil, so that a nil and an empty slice
// have the same JSON.
func sortedSet[T kv.Token | string](s []T) []T {
	set := append([]T{}, s...)
	slices.Sort(set)
	return slices.Compact(set)
}

// Checksum returns the SHA-256, in hex, of the fields on which the cards of all workers of one name must
// agree: for each field that is set a line of its JSON name, a space and its compact JSON. Cards that do not
// differ have equal checksums, if both take requests or have the same role.
func (c *Card) Checksum() string {
	h := sha256.New()
	if !c.Role.TakesRequests() {
		fmt.Fprintf(h, "role %q\n", c.Role)
	}
	for _, f := range c.sharedFields(c.Role) {
		if !f.unset {
			fmt.Fprintf(h, "%s %s\n", f.name, f.value)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// FirstDifference returns the first shared field in which c and other differ, with the value of each,
// shortened for a message. The role of c says which fields are shared, or that of other if c takes requests.
func (c *Card) FirstDifference(other *Card) (field, mine, theirs string, differ bool) {
	role := c.Role
	if role.TakesRequests() {
		role = other.Role
	}
	theirFields := other.sharedFields(role)
	for i, f := range c.sharedFields(role) {
		if f.value != theirFields[i].value {
			return f.name, shortenValue(f.value), shortenValue(theirFields[i].value), true
		}
	}
	if role == RoleEncode && c.Encoder != "" && other.Encoder != "" && c.Encoder != other.Encoder {
		return "encoder", shortenValue(c.Encoder), shortenValue(other.Encoder), true
	}
	return "", "", "", false
}

// DescribeDifference describes the first field in which c differs from served, the card by which the model is
// served; "" if they agree.
func (c *Card) DescribeDifference(served *Card) string {
	field, mine, theirs, differ := c.FirstDifference(served)
	if !differ {
		return ""
	}
	return fmt.Sprintf("its model card differs from the one served as %s: %s is %s here and %s there", served.Name, field, mine, theirs)
}

// shortenValue bounds a value that a message repeats.
func shortenValue(s string) string {
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
