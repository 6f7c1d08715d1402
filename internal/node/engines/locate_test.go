package engines

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLocate(t *testing.T) {
	hub, local := t.TempDir(), t.TempDir()
	put := func(parts ...string) {
		t.Helper()
		path := filepath.Join(parts[:len(parts)-1]...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(parts[len(parts)-1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(local, "tokenizer.json", "{}")
	put(hub, "models--org--main", "refs", "main", "bbb\n")
	put(hub, "models--org--main", "snapshots", "aaa", "tokenizer.json", "{}")
	put(hub, "models--org--main", "snapshots", "bbb", "tokenizer.json", "{}")
	put(hub, "models--gpt2", "snapshots", "ccc", "tokenizer.json", "{}")
	put(hub, "models--org--two", "snapshots", "aaa", "tokenizer.json", "{}")
	put(hub, "models--org--two", "snapshots", "bbb", "tokenizer.json", "{}")
	put(hub, "models--org--weights", "snapshots", "aaa", "config.json", "{}")
	put(hub, "models--org--out", "refs", "main", "../../models--gpt2/snapshots/ccc")
	for _, c := range []struct {
		root, want string
		tried      int
	}{
		{local, local, 0},
		{filepath.Join(local, "none"), "", 1},
		{"org/main", filepath.Join(hub, "models--org--main", "snapshots", "bbb"), 0},
		{"gpt2", filepath.Join(hub, "models--gpt2", "snapshots", "ccc"), 0},
		{"org/two", "", 1},     // ambiguous
		{"org/weights", "", 1}, // it has no tokenizer
		{"org/none", "", 1},
		{"org/out", "", 1},
		{"../hub/gpt2", "", 0},
		{"org/../gpt2", "", 0},
		{"./models", "", 0},
		{"a/b/c", "", 0},
		{"", "", 0},
	} {
		got, tried := locateTokenizer(c.root, hub)
		if got != c.want || len(tried) != c.tried {
			t.Errorf("%s: %q, tried %q; want %q", c.root, got, tried, c.want)
		}
	}
	if got, _ := locateTokenizer("gpt2", ""); got != "" {
		t.Errorf("without a cache: %q", got)
	}
}
