package node

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// locateTokenizer returns the directory of the tokenizer of an engine's model. root is what the engine was
// started with: a directory, if it also exists here, or a Hugging Face hub name whose files are in the local
// cache. It fetches and writes nothing. It returns "" if the tokenizer is not here; tried says where it
// looked.
func locateTokenizer(root, hub string) (dir string, tried []string) {
	if root == "" {
		return "", nil
	}
	if filepath.IsAbs(root) { // relative paths depend on where the engine was started
		if hasTokenizer(root) {
			return root, nil
		}
		return "", []string{root}
	}
	if hub == "" || !isHubName(root) {
		return "", nil
	}
	model := filepath.Join(hub, "models--"+strings.ReplaceAll(root, "/", "--"))
	for _, revision := range listRevisions(model) {
		if dir := filepath.Join(model, "snapshots", revision); hasTokenizer(dir) {
			return dir, nil
		}
	}
	return "", []string{model}
}

// hubNames matches hub names: organisation/model, or a model alone.
const hubNames = `^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?$`

// isHubName reports whether text is a hub name which cannot lead out of the cache.
func isHubName(text string) bool {
	ok, err := regexp.MatchString(hubNames, text)
	return ok && err == nil && len(text) < 256 && !strings.Contains(text, "..") && !strings.Contains(text, "--")
}

// listRevisions lists the revisions of a cached model to try: main, which engines load unless told otherwise,
// or the only one present.
func listRevisions(model string) []string {
	const maxRevision = 256
	if data, err := os.ReadFile(filepath.Join(model, "refs", "main")); err == nil && len(data) <= maxRevision {
		if name := strings.TrimSpace(string(data)); name != "" && name == filepath.Base(name) && !strings.HasPrefix(name, ".") {
			return []string{name}
		}
	}
	entries, err := os.ReadDir(filepath.Join(model, "snapshots"))
	if err != nil || len(entries) != 1 {
		return nil // with several, it is unknown which one the engine uses
	}
	return []string{entries[0].Name()}
}

func hasTokenizer(dir string) bool {
	st, err := os.Stat(filepath.Join(dir, "tokenizer.json"))
	return err == nil && st.Mode().IsRegular()
}
