package node

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// locate returns the directory of the tokenizer of a model that an engine names by what it
// was started with: a directory, if this machine has it too, or a name of the Hugging Face
// hub whose files are in the cache here. Nothing is fetched, and nothing written. "" is that
// it is not here; tried says where it was looked for.
func locate(root, hub string) (dir string, tried []string) {
	if root == "" {
		return "", nil
	}
	if filepath.IsAbs(root) { // others depend on where the engine was started
		if hasTokenizer(root) {
			return root, nil
		}
		return "", []string{root}
	}
	if hub == "" || !hubName(root) {
		return "", nil
	}
	model := filepath.Join(hub, "models--"+strings.ReplaceAll(root, "/", "--"))
	for _, revision := range revisions(model) {
		if dir := filepath.Join(model, "snapshots", revision); hasTokenizer(dir) {
			return dir, nil
		}
	}
	return "", []string{model}
}

// hubNames are names of the hub: an organisation and a model, or a model alone.
const hubNames = `^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?$`

// hubName reports whether text is a name of the hub: not one that leads out of its cache.
func hubName(text string) bool {
	ok, err := regexp.MatchString(hubNames, text)
	return ok && err == nil && len(text) < 256 && !strings.Contains(text, "..") && !strings.Contains(text, "--")
}

// revisions lists the revisions of a cached model to look at: the one that is main, which
// is what engines load unless told otherwise, or the only one that there is.
func revisions(model string) []string {
	const maxRevision = 256
	if data, err := os.ReadFile(filepath.Join(model, "refs", "main")); err == nil && len(data) <= maxRevision {
		if name := strings.TrimSpace(string(data)); name != "" && name == filepath.Base(name) && !strings.HasPrefix(name, ".") {
			return []string{name}
		}
	}
	entries, err := os.ReadDir(filepath.Join(model, "snapshots"))
	if err != nil || len(entries) != 1 {
		return nil // of several nobody knows which one the engine has
	}
	return []string{entries[0].Name()}
}

func hasTokenizer(dir string) bool {
	st, err := os.Stat(filepath.Join(dir, "tokenizer.json"))
	return err == nil && st.Mode().IsRegular()
}
