package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
	"penstock/internal/media/pixel"
)

// openTiny makes engines which compute a model on the CPU, and encoders for workers of role encode. They share the
// model's weights.
func openTiny(ctx context.Context, cfg *config.Loaded, pipe *prep.Pipeline, ref engine.TokenizerRef, sources MediaSources) ([]Local, []*tiny.RowEncoder, error) {
	tc := tinyConfig(cfg)
	tc.Tokenizer, tc.Text, tc.MemoryLimit = ref, tokenText(pipe.Tokenizer), MemoryLimit()
	tc.Region, tc.Shared = sources.Region, sources.Shared
	tc.Files, tc.Fetch, tc.Remote, tc.Tiers, tc.MediaLimits = sources.Files, sources.Fetch, sources.Remote, sources.Tiers, MediaLimits(cfg)
	tc.Encode.Tracer = sources.Tracer
	if len(cfg.Engine.ServedModelName) > 0 {
		tc.Aliases = cfg.Engine.ServedModelName[1:]
	}
	if cfg.Engine.ModelPath == "" {
		var err error
		if tc.Vocabulary, err = builtinVocabulary(); err != nil {
			return nil, nil, err
		}
	}
	serving, encoding := countRoles(cfg)
	engines, encoders, err := tiny.Open(ctx, tc, serving, encoding)
	if err != nil {
		return nil, nil, explainMemory(err)
	}
	all := make([]Local, len(engines))
	for i, e := range engines {
		all[i] = e
	}
	m := LocalModel{Engines: all, Encoders: encoders, Pipe: pipe}
	if need, have := pipe.Tokenizer.VocabSize(), m.Card().VocabSize; need > have {
		return nil, nil, fmt.Errorf("model %s: its tokenizer has ids up to %d and the network %d embeddings; the files are not of one checkpoint", tc.Name, need-1, have)
	}
	return all, encoders, nil
}

// countRoles returns how many workers of this process have engines, and how many have encoders: role encode.
func countRoles(cfg *config.Loaded) (serving, encoding int) {
	for _, role := range cfg.WorkerRoles() {
		if role == engine.RoleEncode {
			encoding++
		} else {
			serving++
		}
	}
	return serving, encoding
}

// tinyConfig is the part of a tiny engine's configuration which comes from the settings.
func tinyConfig(cfg *config.Loaded) tiny.Config {
	return tiny.Config{
		Name:        cfg.ModelName(),
		ModelPath:   cfg.Engine.ModelPath,
		BlockSize:   cfg.Engine.BlockSize,
		Blocks:      cfg.CacheBlocks(),
		MaxSeqs:     cfg.Engine.MaxNumSeqs,
		TokenBudget: cfg.TokenBudget(),
		MaxWaiting:  cfg.Engine.MaxWaiting,

		EmbeddingCache: new(cfg.EmbeddingCacheBytes()),
		URLTTL:         time.Duration(cfg.Media.URLTTL),
		Encode:         encodeConfig(cfg),
	}
}

// encodeConfig is the configuration of the encoders. Budgets which are not set follow from the machine's memory.
func encodeConfig(cfg *config.Loaded) tiny.EncodeConfig {
	e := &cfg.Encode
	c := tiny.EncodeConfig{
		MaxJobs: e.MaxJobs, Threads: e.Threads, Batch: e.Batch, BatchWait: max(1, time.Duration(e.BatchWait)), Timeout: time.Duration(e.Timeout),
	}
	if cfg.IsSet("encode-cpu-budget") {
		c.CPUBudget = int64(e.CPUBudget)
	}
	if cfg.IsSet("encode-staging-budget") {
		c.StagingBudget = int64(e.StagingBudget)
	}
	return c
}

func builtinVocabulary() (tiny.Vocabulary, error) {
	t, err := token.Builtin()
	if err != nil {
		return tiny.Vocabulary{}, err
	}
	v := tiny.Vocabulary{Size: t.VocabSize(), Mask: t.MaskedIDs(), Names: t}
	if eos, ok := t.EOS(); ok {
		v.EOS = []kv.Token{eos}
	}
	return v, nil
}

// tokenText returns the bytes which each token adds to decoded text, which the engine needs to constrain its
// answers to a schema: none for special tokens, which decoded text omits. It returns nil if they depend on
// the preceding token, as with WordPiece. A space at the beginning of a text is the only exception, and JSON
// does not start with one.
func tokenText(t prep.Tokenizer) func(dst []byte, id kv.Token) ([]byte, bool) {
	text := func(dst []byte, id kv.Token) ([]byte, bool) {
		if t.IsSpecial(id) {
			return dst, false
		}
		return t.AppendBytes(dst, id)
	}
	decoder := t.NewDecoder(prep.DecodeOptions{})
	var alone, after []byte
	for id := range kv.Token(t.VocabSize()) {
		var ok bool
		if after, ok = text(after[:0], id); !ok || !utf8.Valid(after) || bytes.HasPrefix(after, []byte(" ")) {
			continue
		}
		if alone = decoder.Flush(decoder.Push(alone[:0], id)); !bytes.Equal(alone, after) {
			return nil
		}
	}
	return text
}

// explainMemory adds a remedy to a memory error.
func explainMemory(err error) error {
	var over *tiny.MemoryError
	if !errors.As(err, &over) {
		return err
	}
	return fmt.Errorf("%w; lower --kv-cache-blocks, --workers or --embedding-cache-capacity-gb", err)
}

// EstimateMemory returns what the engines of the built-in model would reserve, as the error of a machine with
// almost no memory. It reserves nothing.
func EstimateMemory(ctx context.Context, cfg *config.Loaded) error {
	vocabulary, err := builtinVocabulary()
	if err != nil {
		return err
	}
	tc := tinyConfig(cfg)
	tc.Vocabulary, tc.MemoryLimit = vocabulary, 1
	serving, encoding := countRoles(cfg)
	_, _, err = tiny.Open(ctx, tc, serving, encoding)
	return err
}

// MediaLimits are the limits of one decoded object.
func MediaLimits(cfg *config.Loaded) pixel.Limits {
	return pixel.Limits{Bytes: int(cfg.Media.MaxBytes), Pixels: int(cfg.Media.MaxPixels)}
}
