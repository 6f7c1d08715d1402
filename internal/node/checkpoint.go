package node

import (
	"fmt"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/checkpoint"
)

// modelFacts are a checkpoint's facts from its small files, for a model whose weights are loaded elsewhere.
type modelFacts struct {
	vocabulary int // entries
	context    int // tokens; 0 if unknown
	eos        []kv.Token
	defaults   engine.Sampling
}

// readModelFacts reads the facts of the checkpoint in dir; pipe is of the same directory. A directory with
// only a tokenizer yields little, which suffices for an engine that reports the rest.
func readModelFacts(dir string, pipe *prep.Pipeline) (modelFacts, error) {
	facts, generation, err := checkpoint.ReadFacts(dir)
	if err != nil {
		return modelFacts{}, fmt.Errorf("%s: %w", dir, err)
	}
	// The model's vocabulary may be padded beyond its tokenizer's, or the tokenizer's extended beyond
	// config.json.
	m := modelFacts{vocabulary: max(facts.VocabSize, pipe.Tokenizer.VocabSize()), context: facts.MaxPositions, defaults: generation.Sampling()}
	m.eos = checkpoint.EndOfSequence(&facts, &generation, m.vocabulary)
	if t, ok := pipe.Tokenizer.(*token.Tokenizer); ok && len(m.eos) == 0 {
		if id, ok := t.EOS(); ok {
			m.eos = []kv.Token{id}
		}
	}
	return m, nil
}
