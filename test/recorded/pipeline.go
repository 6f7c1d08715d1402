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

// chatTemplate is that of all dialects, which differ in what they let the assistant
// begin with. Its files stand in for those of a checkpoint.
//
//go:embed chat.jinja
var chatTemplate string

// openPipeline writes the tokenizer and the chat template of a dialect into dir,
// as a checkpoint has them, and opens them from there. The vocabulary is the
// built-in one: in it the markup of every dialect is plain text.
func openPipeline(d *dialect, dir string) (*prep.Pipeline, engine.TokenizerRef, error) {
	tokenizer, config := token.BuiltinFiles()
	// A literal of Go is one of Jinja2, as far as these go.
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
