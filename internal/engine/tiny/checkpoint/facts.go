package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"penstock/core/kv"
)

// Facts are what a server needs to know of a model which another program computes. They come from
// config.json; what the file does not contain is zero.
type Facts struct {
	VocabSize    int        // vocab_size, in entries
	MaxPositions int        // max_position_embeddings or an alternative name, in tokens
	EOS          []kv.Token // eos_token_id, which may be one id or a list
}

// ReadFacts reads the facts and the recommendations in dir, regardless of the other contents of its files. A
// missing file yields zero values. A value in an unknown form is skipped. The error is about a file that
// cannot be read, or is not a JSON object.
func ReadFacts(dir string) (Facts, Generation, error) {
	obj, err := readLoose(dir, configFile)
	if err != nil {
		return Facts{}, Generation{}, err
	}
	facts, _ := obj.readFacts()
	if obj, err = readLoose(dir, generationFile); err != nil {
		return Facts{}, Generation{}, err
	}
	generation, _ := obj.readGeneration()
	return facts, generation, nil
}

// readLoose reads a file as Python's json module does; nil if it does not exist.
func readLoose(dir, name string) (jsonObject, error) {
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

// parseLoose parses an object in which keys may occur twice, the last of which counts, and in which numbers
// may be NaN and Infinity, which become null.
func parseLoose(data []byte) (jsonObject, error) {
	var obj jsonObject
	if err := json.Unmarshal(replaceNonFinite(data), &obj); err != nil {
		return nil, fmt.Errorf("%.200s", err) // the error echoes numbers of any length
	}
	if obj == nil {
		return nil, errors.New("got null, want an object")
	}
	return obj, nil
}

// replaceNonFinite returns data with null in place of the numbers which Python writes and JSON does not have.
func replaceNonFinite(data []byte) []byte {
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

// textParts are the keys of the text decoder's configuration in models of several parts.
var textParts = []string{"text_config", "llm_config", "language_config", "thinker_config"}

// maxParts bounds how deeply parts of a configuration are nested: a thinker_config has a text_config.
const maxParts = 3

// nestedParts returns the objects which may have the facts of a decoder, the innermost first.
func (o jsonObject) nestedParts() []jsonObject {
	all := []jsonObject{o}
	for len(all) <= maxParts {
		inner := o.innerPart()
		if inner == nil {
			break
		}
		o, all = inner, append([]jsonObject{inner}, all...)
	}
	return all
}

// innerPart returns the part of o that describes the decoder, nil if o itself does.
func (o jsonObject) innerPart() jsonObject {
	for _, name := range textParts {
		if !o.has(name) {
			continue
		}
		var part jsonObject
		if json.Unmarshal(o[name], &part) == nil {
			return part
		}
	}
	return nil
}

// readFacts reads the facts of a configuration. The error is about the first skipped value.
func (o jsonObject) readFacts() (f Facts, first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	parts := o.nestedParts()
	for _, part := range parts {
		size, err := part.positiveInt("vocab_size")
		note(err)
		f.VocabSize = cmp.Or(f.VocabSize, size)
		length, err := part.contextLength()
		note(err)
		f.MaxPositions = cmp.Or(f.MaxPositions, length)
	}
	// The outer objects' eos_token_id takes precedence, as in transformers, which makes a
	// generation_config.json of a config.json.
	for i := len(parts) - 1; i >= 0; i-- {
		eos, err := decodeTokens(parts[i], "eos_token_id")
		note(err)
		if len(f.EOS) == 0 {
			f.EOS = eos
		}
	}
	return f, first
}

// contextLength returns the context length under the first of its names that is present; 0 if none is.
func (o jsonObject) contextLength() (n int, first error) {
	for _, key := range []string{
		"max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length", "max_seq_length", "seq_len",
	} {
		length, err := o.positiveInt(key)
		if first == nil {
			first = err
		}
		n = cmp.Or(n, length)
	}
	return n, first
}

// positiveInt returns a positive whole number, 0 if there is none. It may be written as a float without a
// fraction.
func (o jsonObject) positiveInt(key string) (int, error) {
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

// decodeTokens reads a field that is one token id or a list of them. The error is about the first skipped
// value.
func decodeTokens(o jsonObject, key string) ([]kv.Token, error) {
	if !o.has(key) {
		return nil, nil
	}
	var list []kv.Token
	var first error
	for _, raw := range o.listValues(key) {
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

// listValues returns the elements of a list, and any other value as a list of one.
func (o jsonObject) listValues(key string) []json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(o[key], &list) != nil {
		return []json.RawMessage{o[key]}
	}
	return list
}
