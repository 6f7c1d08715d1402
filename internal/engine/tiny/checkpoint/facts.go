package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"penstock/core/kv"
)

// Facts are what a server needs to know of a model which another program computes. They
// come from config.json; what the file does not say is zero.
type Facts struct {
	VocabSize    int        // vocab_size, in entries
	MaxPositions int        // max_position_embeddings or another of its names, in tokens
	EOS          []kv.Token // eos_token_id, which may be one id or a list
}

// ReadFacts reads the facts and the recommendations in dir, whatever else its files say
// of the model. A file that is missing says nothing. A value of a form that is not
// known is left out, except in what the error is about: a file that cannot be read, or
// is no JSON object.
func ReadFacts(dir string) (Facts, Generation, error) {
	obj, err := readLoose(dir, configFile)
	if err != nil {
		return Facts{}, Generation{}, err
	}
	facts, _ := obj.facts()
	if obj, err = readLoose(dir, generationFile); err != nil {
		return Facts{}, Generation{}, err
	}
	generation, _ := obj.generation()
	return facts, generation, nil
}

// readLoose reads a file as Python's json module does; nil if it is not there.
func readLoose(dir, name string) (object, error) {
	data, err := readSmall(dir, name, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	obj, err := parseLoose(data)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w; fetch the file again", name, err)
	}
	return obj, nil
}

// parseLoose parses an object in which keys may occur twice, the last of which counts,
// and in which numbers may be NaN and Infinity, which become null.
func parseLoose(data []byte) (object, error) {
	var obj object
	if err := json.Unmarshal(finite(data), &obj); err != nil {
		return nil, fmt.Errorf("%.200s", err) // it echoes numbers, of any length
	}
	if obj == nil {
		return nil, errors.New("got null, want an object")
	}
	return obj, nil
}

// finite returns data with null in place of the numbers which Python writes and JSON does not have.
func finite(data []byte) []byte {
	var out []byte
	last, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == 'N' || c == 'I' || c == '-'):
			for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
				if bytes.HasPrefix(data[i:], []byte(word)) {
					out = append(append(out, data[last:i]...), "null"...)
					i += len(word) - 1
					last = i + 1
					break
				}
			}
		}
	}
	if last == 0 {
		return data
	}
	return append(out, data[last:]...)
}

// textParts are the names of the part of a configuration which describes the decoder of text, in models of several parts.
var textParts = []string{"text_config", "llm_config", "language_config", "thinker_config"}

// maxParts bounds how deep parts of a configuration are inside of each other: a thinker_config has a text_config.
const maxParts = 3

// parts returns the objects which may have the facts of a decoder, the innermost first.
func (o object) parts() []object {
	all := []object{o}
	for len(all) <= maxParts {
		inner := o.inner()
		if inner == nil {
			break
		}
		o, all = inner, append([]object{inner}, all...)
	}
	return all
}

// inner returns the part of o that describes the decoder, nil if o itself does.
func (o object) inner() object {
	for _, name := range textParts {
		if !o.has(name) {
			continue
		}
		var part object
		if json.Unmarshal(o[name], &part) == nil {
			return part
		}
	}
	return nil
}

// facts reads the facts of a configuration. The error is about the first value that was left out.
func (o object) facts() (f Facts, first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	parts := o.parts()
	for _, part := range parts {
		size, err := part.count("vocab_size")
		note(err)
		if f.VocabSize == 0 {
			f.VocabSize = size
		}
		length, err := part.positions()
		note(err)
		if f.MaxPositions == 0 {
			f.MaxPositions = length
		}
	}
	// The ends of answers beside the parts go before those inside, as where transformers makes a generation_config.json of a config.json.
	for i := len(parts) - 1; i >= 0; i-- {
		eos, err := decodeTokens(parts[i], "eos_token_id")
		note(err)
		if len(f.EOS) == 0 {
			f.EOS = eos
		}
	}
	return f, first
}

// positions returns the context length, by the first of its names that is there; 0 if none is.
func (o object) positions() (n int, first error) {
	for _, key := range []string{
		"max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length", "max_seq_length", "seq_len",
	} {
		length, err := o.count(key)
		if first == nil {
			first = err
		}
		if n == 0 {
			n = length
		}
	}
	return n, first
}

// count returns a positive whole number, 0 if there is none. It may be written with a fraction of nothing.
func (o object) count(key string) (int, error) {
	var x float64
	if err := o.get(key, &x); err != nil {
		return 0, err
	}
	if !o.has(key) || x == 0 {
		return 0, nil
	}
	if x < 0 || x > math.MaxInt32 || x != math.Trunc(x) {
		return 0, fmt.Errorf("%s: %v is not a whole number in range", key, x)
	}
	return int(x), nil
}

// decodeTokens reads a field that is one token id or a list of them. The error is about the first value that was left out.
func decodeTokens(o object, key string) ([]kv.Token, error) {
	if !o.has(key) {
		return nil, nil
	}
	var list []kv.Token
	var first error
	for _, raw := range o.values(key) {
		var t kv.Token
		if err := json.Unmarshal(raw, &t); err != nil || string(raw) == "null" {
			if first == nil {
				first = fmt.Errorf("%s: %.100s is no token", key, raw)
			}
			continue
		}
		list = append(list, t)
	}
	return list, first
}

// values returns the elements of a list, and what is none as one.
func (o object) values(key string) []json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(o[key], &list) != nil {
		return []json.RawMessage{o[key]}
	}
	return list
}
