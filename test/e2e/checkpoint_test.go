package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"penstock/internal/edge/prep/token"
)

// checkpoint returns a directory with a small checkpoint, made with the
// transformers library, and the built-in tokenizer's files beside it.
func checkpoint(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../internal/engine/tiny/model/testdata/llama3")); err != nil {
		t.Fatal(err)
	}
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	write(t, filepath.Join(dir, "tokenizer.json"), tokenizer)
	write(t, filepath.Join(dir, "tokenizer_config.json"), tokenizerConfig)
	return dir
}

// brokenCheckpoint is one whose weights end early.
func brokenCheckpoint(t *testing.T) string {
	t.Helper()
	dir := checkpoint(t)
	path := filepath.Join(dir, "model.safetensors")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()/2); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
