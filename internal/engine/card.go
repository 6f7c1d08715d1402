package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/core/media/family"
)

// The limits of a model card in discovery.
const (
	MaxCardBytes = 64 << 10
	maxName      = 256
	maxAliases   = 64
	maxNumerics  = 4096
	maxRanks     = 1024
	maxEOS       = 1024
	maxAdapters  = 1024
	maxPasses    = 64
	// MaxProcessorArgs bounds ProcessorArgs, in bytes.
	MaxProcessorArgs = 4096
)

// sealedCard is a card with its checksum, as discovery stores it.
type sealedCard struct {
	Card
	// Checksum lets a reader detect a card that was changed in transit. Older builds wrote none.
	Checksum string `json:"checksum,omitempty"`
}

// EncodeCard returns the JSON of a valid card for discovery.
func EncodeCard(c Card) ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(sealedCard{c, c.Checksum()})
	if err != nil {
		return nil, fmt.Errorf("encode model card: %w", err)
	}
	if len(b) > MaxCardBytes {
		return nil, fmt.Errorf("encode model card: %d bytes, at most %d fit; shorten names and aliases", len(b), MaxCardBytes)
	}
	return b, nil
}

// DecodeCard reads a card from discovery. It ignores fields of later versions. A card that breaks a rule or
// does not match its checksum is an error that names the problem.
func DecodeCard(b []byte) (Card, error) {
	if len(b) > MaxCardBytes {
		return Card{}, fmt.Errorf("decode model card: %d bytes, at most %d are read", len(b), MaxCardBytes)
	}
	var c sealedCard
	if err := json.Unmarshal(b, &c); err != nil {
		return Card{}, fmt.Errorf("decode model card: %w", err)
	}
	if err := c.Validate(); err != nil {
		return Card{}, err
	}
	if sum := c.Card.Checksum(); c.Checksum != "" && c.Checksum != sum {
		return Card{}, fmt.Errorf("decode model card: its checksum is %.64q and its fields make %s: it was changed on its way, or written by a version that knows more fields than this one; run the same version everywhere", c.Checksum, sum)
	}
	return c.Card, nil
}

// HasName reports whether clients may ask for the model as name.
func (c *Card) HasName(name string) bool {
	return name == c.Name || slices.Contains(c.Aliases, name)
}

// ServingSettings returns the engine's settings that add to the files of the model's checkpoint.
func (c *Card) ServingSettings() family.Serving {
	return family.Serving{Loader: family.LoaderForEngine(c.Engine), ProcessorArgs: c.ProcessorArgs}
}

// ServesAdapter reports whether the card lists a LoRA adapter.
func (c *Card) ServesAdapter(adapter string) bool {
	_, found := slices.BinarySearch(c.Adapters, adapter)
	return found
}

// Validate checks the rules on which frontends and routers rely and reports all that are broken.
func (c *Card) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("model card: "+format, args...))
		}
	}
	check(isPrintableName(c.Name), "name must be 1 to %d printable bytes", maxName)
	check(len(c.Aliases) <= maxAliases, "%d aliases, at most %d are allowed", len(c.Aliases), maxAliases)
	for _, a := range c.Aliases[:min(len(c.Aliases), maxAliases)] { // do not report more problems than a card may have aliases
		check(isPrintableName(a), "every alias must be 1 to %d printable bytes", maxName)
	}
	check(c.Role.isKnown(), "role must be absent, prefill, decode or encode, not %.100q", string(c.Role))
	check(!c.Router || c.Role == RoleAggregated, "a router process has no role")
	check(c.BlockSize >= 2 && c.BlockSize <= 65536, "block_size must be between 2 and 65536 tokens, not %d", c.BlockSize)
	check(c.Blocks >= 0, "blocks must not be negative, but is %d", c.Blocks)
	check(c.Ranks >= 1 && c.Ranks <= maxRanks, "ranks must be between 1 and %d, not %d", maxRanks, c.Ranks)
	check(c.ContextLength >= 2, "context_length must be at least 2 tokens, not %d", c.ContextLength)
	check(c.VocabSize >= 1 && c.VocabSize <= 1<<31-1, "vocab_size must be positive, not %d", c.VocabSize)
	check(c.DefaultMaxTokens >= 0, "default_max_tokens must not be negative, but is %d", c.DefaultMaxTokens)
	check(len(c.EOS) <= maxEOS, "%d eos tokens, at most %d are allowed", len(c.EOS), maxEOS)
	check(c.ToolParser == "" || isPrintableName(c.ToolParser), "tool_parser must be at most %d printable bytes", maxName)
	check(c.EmbeddingRegion == "" || isPrintableName(c.EmbeddingRegion), "embedding_region must be at most %d printable bytes", maxName)
	check(c.MediaKeys == "" || isPrintableName(c.MediaKeys), "media_keys must be at most %d printable bytes", maxName)
	check(c.KVConnector == "" || isPrintableName(string(c.KVConnector)), "kv_connector must be at most %d printable bytes", maxName)
	check(c.ReasoningParser == "" || isPrintableName(c.ReasoningParser), "reasoning_parser must be at most %d printable bytes", maxName)
	check(len(c.ProcessorArgs) <= MaxProcessorArgs && (c.ProcessorArgs == "" || json.Valid([]byte(c.ProcessorArgs))), "mm_processor_kwargs must be JSON of at most %d bytes", MaxProcessorArgs)
	check(len(c.Adapters) <= maxAdapters, "%d adapters, at most %d are allowed", len(c.Adapters), maxAdapters)
	check(len(c.PassthroughPaths) <= maxPasses, "%d passes, at most %d are allowed", len(c.PassthroughPaths), maxPasses)
	for _, list := range [...]struct {
		name string
		of   []string
	}{{"adapters", c.Adapters}, {"passes", c.PassthroughPaths}, {"media_miscounted", c.MiscountedMedia}} {
		for i, s := range list.of[:min(len(list.of), maxAdapters)] {
			check(isPrintableName(s), "every one of %s must be 1 to %d printable bytes", list.name, maxName)
			check(i == 0 || list.of[i-1] < s, "%s must be ascending, but %.100q comes after %.100q", list.name, s, list.of[max(i, 1)-1])
		}
	}
	check(len(c.Numerics) <= maxNumerics, "numerics must be at most %d bytes, not %d", maxNumerics, len(c.Numerics))
	check(len(c.Encoder) <= maxEncoder, "encoder must be at most %d bytes, not %d", maxEncoder, len(c.Encoder))
	for _, t := range c.EOS[:min(len(c.EOS), maxEOS)] {
		check(int64(t) < int64(c.VocabSize), "eos token %d is not below vocab_size %d", t, c.VocabSize)
	}
	check(c.Pool == nil || isPrintableName(c.Pool.Generation), "pool: generation must be 1 to %d printable bytes", maxName)
	check(c.MaxBatchedTokens >= 0, "max_num_batched_tokens must not be negative, but is %d", c.MaxBatchedTokens)
	errs = append(errs, checkExperts(c.Experts), c.checkExchange())
	if err := c.Defaults.validate(); err != nil {
		check(false, "defaults: %v", err)
	}
	return errors.Join(errs...)
}

// BlockNumerics names what must be equal for two engines to compute the same bits of KV blocks: Numerics, and Encoder if
// there is one, because the blocks of media depend on it.
func (c *Card) BlockNumerics() string {
	if c.Encoder == "" {
		return c.Numerics
	}
	return c.Numerics + "+" + c.Encoder
}

// checkExchange checks how the worker exchanges KV blocks.
func (c *Card) checkExchange() error {
	x := c.Exchange
	if x == nil {
		return nil
	}
	if c.Role != RolePrefill && c.Role != RoleDecode {
		return fmt.Errorf("model card: exchange: a worker of role %s exchanges no KV blocks", c.Role)
	}
	if err := x.Validate(); err != nil {
		return fmt.Errorf("model card: exchange: %w", err)
	}
	if x.Numerics != c.BlockNumerics() {
		return errors.New("model card: exchange: its numerics differ from the numerics and the encoder of the card")
	}
	return nil
}

// checkExperts checks that layers and their experts are strictly ascending and that every share is in [0, 1].
func checkExperts(layers []HostedExperts) error {
	for i, l := range layers {
		if i > 0 && layers[i-1].Layer >= l.Layer {
			return fmt.Errorf("model card: experts: layer_id must be ascending, but %d comes after %d", l.Layer, layers[i-1].Layer)
		}
		if l.Shares != nil && len(l.Shares) != len(l.Experts) {
			return fmt.Errorf("model card: experts of layer %d: %d shares for %d experts", l.Layer, len(l.Shares), len(l.Experts))
		}
		for j, id := range l.Experts {
			if j > 0 && l.Experts[j-1] >= id {
				return fmt.Errorf("model card: experts of layer %d: expert_ids must be ascending, but %d comes after %d", l.Layer, id, l.Experts[j-1])
			}
		}
		for _, share := range l.Shares {
			if !(share >= 0 && share <= 1) {
				return fmt.Errorf("model card: experts of layer %d: a share must be between 0 and 1, not %g", l.Layer, share)
			}
		}
	}
	return nil
}

func isPrintableName(s string) bool {
	return s != "" && len(s) <= maxName && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// maxHosted bounds the pairs of layer and expert that one worker may name.
const maxHosted = 1 << 16

// ParseExperts parses the setting that names the experts which a worker hosts: LAYERS:EXPERTS or
// LAYERS:EXPERTS@SHARE, separated by commas, where LAYERS and EXPERTS are a number or a range
// (0-60:0-31,0-60:64@0.5). It returns nil for "".
func ParseExperts(s string) ([]HostedExperts, error) {
	if s == "" {
		return nil, nil
	}
	shares, n := map[uint32]map[uint32]float64{}, 0
	for part := range strings.SplitSeq(s, ",") {
		layers, rest, ok := strings.Cut(part, ":")
		experts, text, shared := strings.Cut(rest, "@")
		share := 1.0
		if shared {
			v, err := strconv.ParseFloat(text, 64)
			ok, share = ok && err == nil && v >= 0 && v <= 1, v
		}
		l, okLayers := parseIDRange(layers)
		e, okExperts := parseIDRange(experts)
		if !ok || !okLayers || !okExperts {
			return nil, fmt.Errorf("%.100q is not LAYERS:EXPERTS or LAYERS:EXPERTS@SHARE, such as 0-60:0-31@0.5", part)
		}
		if n += l.count() * e.count(); n > maxHosted {
			return nil, fmt.Errorf("names more than %d experts of all layers together", maxHosted)
		}
		for layer := range l.count() {
			of := shares[l.first+uint32(layer)]
			if of == nil {
				of = map[uint32]float64{}
				shares[l.first+uint32(layer)] = of
			}
			for expert := range e.count() {
				of[e.first+uint32(expert)] = share
			}
		}
	}
	var out []HostedExperts
	for _, layer := range slices.Sorted(maps.Keys(shares)) {
		h := HostedExperts{Layer: layer, Experts: slices.Sorted(maps.Keys(shares[layer]))}
		for _, expert := range h.Experts {
			h.Shares = append(h.Shares, shares[layer][expert])
		}
		if !slices.ContainsFunc(h.Shares, func(share float64) bool { return share != 1 }) {
			h.Shares = nil
		}
		out = append(out, h)
	}
	return out, nil
}

// idRange is the ids from first to last, inclusive.
type idRange struct{ first, last uint32 }

func (s idRange) count() int { return int(s.last-s.first) + 1 }

func parseIDRange(s string) (idRange, bool) {
	first, last, two := strings.Cut(s, "-")
	if !two {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	return idRange{uint32(a), uint32(b)}, errA == nil && errB == nil && a <= b
}
