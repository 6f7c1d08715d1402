package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const root = "../.."

// sharedTypes is how many type names more than two packages declare. The number only goes down; Config, Stats, Options and Metrics
// are not counted.
const sharedTypes = 21

// TestWords holds what STYLE.md says of names and comments.
func TestWords(t *testing.T) {
	m, err := measureTree([]string{root}, false)
	if err != nil {
		t.Fatal(err)
	}
	s := m.summarize()
	if s.Functions < 5000 {
		t.Fatalf("only %d functions were read", s.Functions)
	}
	if s.MeanLength < 10 {
		t.Errorf("names of functions have %.2f letters on average, want 10", s.MeanLength)
	}
	if s.SingleShare > 0.4 {
		t.Errorf("%.0f %% of the functions have a name of one word, want 40 at most", 100*s.SingleShare)
	}
	for _, p := range m.phrases {
		if got := s.Per10000[p.Name]; p.Limit > 0 && got > p.Limit {
			t.Errorf("%s: %.1f in 10,000 words of comments, want %.0f at most (go run ./tools/words -find)", p.Name, got, p.Limit)
		}
	}
	var shared []string
	for name := range s.SharedTypes {
		if !slices.Contains([]string{"Config", "Stats", "Options", "Metrics"}, name) {
			shared = append(shared, name)
		}
	}
	if len(shared) > sharedTypes {
		slices.Sort(shared)
		t.Errorf("%d type names are declared in more than two packages, want %d at most: %s", len(shared), sharedTypes, strings.Join(shared, " "))
	}
}

// TestRefusedWords wants no word which is for persons alone in comments, also of tests, and in documents.
func TestRefusedWords(t *testing.T) {
	var found []string
	var m *measurement
	for _, tests := range []bool{false, true} {
		var err error
		if m, err = measureTree([]string{root}, tests); err != nil {
			t.Fatal(err)
		}
		found = append(found, m.refused...)
	}
	for name, text := range readDocuments(t) {
		line := 0
		for text := range strings.Lines(text) {
			line++
			for _, hit := range m.findRefused(codeSpan.ReplaceAllString(text, "")) {
				found = append(found, fmt.Sprintf("%s/%s:%d: %q", root, name, line, hit))
			}
		}
	}
	slices.Sort(found)
	for _, at := range found {
		t.Errorf("%s: name the thing, such as \"no worker\" or \"the client which\"", strings.TrimPrefix(at, root+"/"))
	}
}

// TestFindRefused: a word is found in any case, and not within another one.
func TestFindRefused(t *testing.T) {
	m := measurement{phrases: forbiddenPhrases()}
	for text, want := range map[string]int{
		"nobody's, Whoever": 2, "somebody\nor anybody": 2, "no body of a request, which anyone sends": 0, "newNobody": 0,
	} {
		if got := m.findRefused(text); len(got) != want {
			t.Errorf("%q: %q, want %d words", text, got, want)
		}
	}
}

// codeSpan is code in a line of a document, such as a word which STYLE.md forbids, or output.
var codeSpan = regexp.MustCompile("`[^`]*`")

// longLines are the lines over 120 characters that documents may have: output of commands as it is.
var longLines = map[string]int{"docs/choosing.md": 55}

// TestLinesOfDocuments holds the width of documents.
func TestLinesOfDocuments(t *testing.T) {
	long := map[string]int{}
	for name, text := range readDocuments(t) {
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 120 {
				long[name]++
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(long)) {
		if long[name] > longLines[name] {
			t.Errorf("%s has %d lines over 120 characters, and may have %d", name, long[name], longLines[name])
		}
	}
}

// readDocuments returns the texts of the Markdown files, by their names below the root.
func readDocuments(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && name != "." && (base == "testdata" || base == "node_modules" || base[0] == '.') {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := fs.ReadFile(os.DirFS(root), name)
		if err != nil {
			return err
		}
		texts[name] = string(text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// TestCountWords: a name has as many words as a reader sees.
func TestCountWords(t *testing.T) {
	for name, want := range map[string]int{"add": 1, "Read": 1, "parseURL": 2, "URLOf": 2, "evictLeastRecentlyUsed": 4, "toJSONText": 3, "x": 1} {
		if got := countWords(name); got != want {
			t.Errorf("%s has %d words, want %d", name, got, want)
		}
	}
}
