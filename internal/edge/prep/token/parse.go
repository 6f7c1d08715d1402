package token

import (
	"encoding/json"
	"errors"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Parse reads a tokenizer from the contents of a checkpoint's tokenizer.json and, if there is one, its
// tokenizer_config.json (else nil), which names the end-of-text token and may list further added tokens. It
// returns a *fault.Error: Unimplemented names what this package does not support, Invalid says what is wrong
// with a file. It keeps no reference to its arguments.
func Parse(tokenizer, config []byte) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(tokenizer, &f); err != nil {
		return nil, parseError("tokenizer.json", err)
	}
	var c fileConfig
	if config != nil {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, parseError("tokenizer_config.json", err)
		}
	}
	t := new(Tokenizer)
	if err := t.buildByteLevel(&f, &c); err != nil {
		return nil, parseError("tokenizer.json", err)
	}
	var err error
	if t.longest, err = t.findMaxTokenBytes(&f); err != nil {
		return nil, parseError("tokenizer.json", err)
	}
	if err := t.setEOS(c.EOS.content); err != nil {
		return nil, parseError("tokenizer_config.json", err)
	}
	return t, nil
}

// parseError adds the file to err; an unclassified error is the file's fault.
func parseError(name string, err error) error {
	if classified, ok := errors.AsType[*fault.Error](err); ok {
		return fault.New(classified.Code, "parse %s: %w", name, err)
	}
	return fault.New(fault.Invalid, "parse %s: %.200v", name, err) // the decoder echoes numbers of any length
}

// unsupported is the error for a part of a tokenizer which is not implemented.
func unsupported(format string, args ...any) error {
	return fault.New(fault.Unimplemented, format, clipArgs(args)...)
}

// malformed is the error for a tokenizer which contradicts itself.
func malformed(format string, args ...any) error {
	return fault.New(fault.Invalid, format, clipArgs(args)...)
}

// clipArgs shortens the texts of a file in an error: they may be of any length.
func clipArgs(args []any) []any {
	const most = 100
	for i, a := range args {
		if s, ok := a.(string); ok && len(s) > most {
			args[i] = strings.ToValidUTF8(s[:most], "") + "…"
		}
	}
	return args
}

func (t *Tokenizer) buildByteLevel(f *tokenizerFile, c *fileConfig) error {
	if is, err := f.isByteLevel(); err != nil {
		return err
	} else if !is {
		return t.buildCharLevel(f, c)
	}
	if err := f.Model.checkByteLevel(); err != nil {
		return err
	}
	var vocab map[string]kv.Token
	if err := json.Unmarshal(f.Model.Vocab, &vocab); err != nil {
		return err
	}
	tokens, err := addedTokens(f.AddedTokens, c.Added)
	if err != nil {
		return err
	}
	if t.normalizers, err = newNormalizers(f.Normalizer); err != nil {
		return err
	}
	if err := t.setVocabulary(vocab, tokens); err != nil {
		return err
	}
	if err := t.setAdded(tokens); err != nil {
		return err
	}
	if t.model, err = t.newByteLevelModel(&f.Model, vocab); err != nil {
		return err
	}
	if err := t.setStages(f); err != nil {
		return err
	}
	if c := newClasses(); t.hasSeams(f, c) {
		t.chunks = newChunkCache(c, chunkBudget)
	}
	return nil
}

func (t *Tokenizer) setStages(f *tokenizerFile) error {
	var err error
	if t.stages, err = newStages(f.PreTokenizer); err != nil {
		return err
	}
	if err := checkDecoder(f.Decoder); err != nil {
		return err
	}
	return t.setPostProcessor(f.PostProcessor)
}

func (t *Tokenizer) setEOS(content string) error {
	if content == "" {
		return nil
	}
	id, ok := t.ID(content)
	if !ok {
		return malformed("eos_token is not in the vocabulary of tokenizer.json")
	}
	t.eos, t.hasEOS = id, true
	return nil
}
