package main

import (
	_ "embed"
	"os"
	"path/filepath"
	"strconv"

	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
)

// chatTemplate is the template of all dialects, which differ in how the assistant's response starts. Its
// files stand in for a checkpoint's.
//
//go:embed chat.jinja
var chatTemplate string

// openPipeline writes the tokenizer and the chat template of a dialect into dir, as in a checkpoint, and
// opens them from there. The vocabulary is the built-in one, in which the markup of every dialect is plain
// text.
func openPipeline(d *dialect, dir string) (*prep.Pipeline, engine.TokenizerRef, error) {
	tokenizer, config := token.BuiltinFiles()
	// These Go literals are valid in Jinja2.
	template := `{%- set opening = ` + strconv.Quote(d.Opening) + ` %}{% set silent = ` + strconv.Quote(d.Silent) + " %}" + chatTemplate
	for name, contents := range map[string][]byte{
		"tokenizer.json": tokenizer, "tokenizer_config.json": config, "chat_template.jinja": []byte(template),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), contents, 0o600); err != nil {
			return nil, engine.TokenizerRef{}, err
		}
	}
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		return nil, engine.TokenizerRef{}, err
	}
	return pipe, engine.TokenizerRef{Kind: "dir", Dir: dir, Digest: pipe.Digest}, nil
}
