package node

import (
	"errors"
	"io/fs"

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
	small, err := checkpoint.ReadConfig(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return modelFacts{}, err
	}
	generation, err := checkpoint.ReadGeneration(dir)
	if err != nil {
		return modelFacts{}, err
	}
	// Models of several parts say elsewhere how large their vocabulary is.
	m := modelFacts{vocabulary: max(small.VocabSize, pipe.Tokenizer.VocabSize()), context: small.MaxPositions, defaults: generation.Sampling()}
	m.eos = checkpoint.EndOfSequence(&small, &generation, m.vocabulary)
	if t, ok := pipe.Tokenizer.(*token.Tokenizer); ok && len(m.eos) == 0 {
		if id, ok := t.EOS(); ok {
			m.eos = []kv.Token{id}
		}
	}
	return m, nil
}
