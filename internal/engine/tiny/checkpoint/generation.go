package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"

	"penstock/core/kv"
)

const generationFile = "generation_config.json"

// Generation holds what generation_config.json recommends. A nil pointer means
// that the file does not say, which is not the same as the format's own default.
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
	var g Generation
	err = obj.fields(map[string]any{
		"do_sample":          &g.DoSample,
		"temperature":        &g.Temperature,
		"top_k":              &g.TopK,
		"top_p":              &g.TopP,
		"min_p":              &g.MinP,
		"repetition_penalty": &g.RepetitionPenalty,
	})
	if err != nil {
		return Generation{}, err
	}
	g.EOS, err = decodeTokens(obj, "eos_token_id")
	return g, err
}
