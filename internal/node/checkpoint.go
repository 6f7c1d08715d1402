package node

import (
	"fmt"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/checkpoint"
)

// modelFacts are what the small files of a checkpoint say of a model whose weights are
// somebody else's affair.
type modelFacts struct {
	vocabulary int // entries
	context    int // tokens; 0 if it is not said
	eos        []kv.Token
	defaults   engine.Sampling
}

// readModel reads them; pipe is of the same directory. One that has the tokenizer alone says little,
// which is enough in front of an engine that says the rest.
func readModel(dir string, pipe *prep.Pipeline) (modelFacts, error) {
	facts, generation, err := checkpoint.ReadFacts(dir)
	if err != nil {
		return modelFacts{}, fmt.Errorf("%s: %w", dir, err)
	}
	// A vocabulary is padded beyond its tokenizer's, or extended beyond what the configuration says.
	m := modelFacts{vocabulary: max(facts.VocabSize, pipe.Tokenizer.VocabSize()), context: facts.MaxPositions, defaults: generation.Sampling()}
	m.eos = checkpoint.EndOfSequence(&facts, &generation, m.vocabulary)
	if t, ok := pipe.Tokenizer.(*token.Tokenizer); ok && len(m.eos) == 0 {
		if id, ok := t.EOS(); ok {
			m.eos = []kv.Token{id}
		}
	}
	return m, nil
}
