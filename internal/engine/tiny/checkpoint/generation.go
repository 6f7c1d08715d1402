package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"penstock/core/kv"
	"penstock/internal/engine"
)

const generationFile = "generation_config.json"

// Generation holds the recommendations of generation_config.json. A nil pointer means that the file does not
// contain the field, which differs from the format's own default.
type Generation struct {
	EOS               []kv.Token // eos_token_id, which may be one id or a list
	DoSample          *bool      // false asks for greedy decoding
	Temperature       *float64
	TopK              *int
	TopP              *float64
	MinP              *float64
	RepetitionPenalty *float64
}

// ReadGeneration reads generation_config.json in dir. Without such a file the
// zero Generation is returned.
func ReadGeneration(dir string) (Generation, error) {
	data, err := readSmall(dir, generationFile, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return Generation{}, nil
	}
	if err != nil {
		return Generation{}, err
	}
	gen, err := decodeGeneration(data)
	if err != nil {
		return Generation{}, fmt.Errorf("checkpoint %s: %w", generationFile, err)
	}
	return gen, nil
}

func decodeGeneration(data []byte) (Generation, error) {
	obj, err := parseObject(data)
	if err != nil {
		return Generation{}, err
	}
	g, err := obj.readGeneration()
	if err != nil {
		return Generation{}, err
	}
	return g, nil
}

// readGeneration reads the recommendations. The error is about the first skipped value.
func (o jsonObject) readGeneration() (Generation, error) {
	var g Generation
	var topK *float64
	errs := []error{
		getOptional(o, "do_sample", &g.DoSample), getOptional(o, "temperature", &g.Temperature), getOptional(o, "top_k", &topK), getOptional(o, "top_p", &g.TopP),
		getOptional(o, "min_p", &g.MinP), getOptional(o, "repetition_penalty", &g.RepetitionPenalty),
	}
	if topK != nil {
		if k := *topK; k == math.Trunc(k) && math.Abs(k) <= math.MaxInt32 {
			g.TopK = new(int(k))
		} else {
			errs = append(errs, fmt.Errorf("top_k: %v is not a whole number in range", k))
		}
	}
	var err error
	g.EOS, err = decodeTokens(o, "eos_token_id")
	return g, cmp.Or(append(errs, err)...)
}

// getOptional decodes the value of a key, if there is one, and leaves *dst nil if it cannot.
func getOptional[T any](o jsonObject, key string, dst **T) error {
	if !o.has(key) {
		return nil
	}
	v := new(T)
	if err := o.get(key, v); err != nil {
		return err
	}
	*dst = v
	return nil
}

// EndOfSequence returns the tokens that end an answer, from generation_config.json, which includes the end of
// a turn, else from config.json. It omits ids outside the vocabulary, which has the given number of entries.
func EndOfSequence(f *Facts, g *Generation, vocabulary int) []kv.Token {
	eos := g.EOS
	if len(eos) == 0 {
		eos = f.EOS
	}
	return slices.DeleteFunc(slices.Clone(eos), func(t kv.Token) bool { return int(t) >= vocabulary })
}

// Sampling returns the sampling parameters that a checkpoint recommends. By default temperature is 1 and
// filters are off; do_sample false is greedy regardless of the other fields.
func (g *Generation) Sampling() engine.Sampling {
	if g.DoSample != nil && !*g.DoSample {
		return engine.Sampling{RepetitionPenalty: valueOr(g.RepetitionPenalty, 0)}
	}
	return engine.Sampling{
		Temperature:       valueOr(g.Temperature, 1),
		TopK:              max(0, valueOr(g.TopK, 0)), // some files encode off as -1
		TopP:              valueOr(g.TopP, 0),
		MinP:              valueOr(g.MinP, 0),
		RepetitionPenalty: valueOr(g.RepetitionPenalty, 0),
	}
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
