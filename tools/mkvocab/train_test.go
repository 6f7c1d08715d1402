package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
)

const corpus = `# A title
The router knows the worker; the worker knows the blocks. The workers and the routers know.
The router – a box – routes.

	code(worker) {}
`

func TestTrain(t *testing.T) {
	v, err := trainMerges([]string{corpus}, 400)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" worker", " the", " know"} {
		if !slices.Contains(v.entries, want) {
			t.Errorf("%q is not an entry of %q", want, v.entries[256:])
		}
	}
	for i, m := range v.merges {
		if v.entries[256+i] != v.joinedText(m) || m.left >= 256+i || m.right >= 256+i {
			t.Errorf("merge %d of %v does not make %q", i, m, v.entries[256+i])
		}
	}
	if small, _ := trainMerges([]string{corpus}, 260); !slices.Equal(small.entries, v.entries[:260]) {
		t.Error("a smaller vocabulary is not the beginning of a larger one")
	}
}

// TestFileIsDeterministic: also the order of the documents does not matter.
func TestFileIsDeterministic(t *testing.T) {
	file := func(texts ...string) []byte {
		v, err := trainMerges(texts, 2048)
		if err != nil {
			t.Fatal(err)
		}
		return v.appendJSON(nil)
	}
	want := file(corpus, "Another one.")
	for range 20 {
		if !bytes.Equal(file("Another one.", corpus), want) {
			t.Fatal("two runs differ")
		}
	}
}

// TestTrainedTokenizer reads the file back, and the merges take words to what
// training made of them.
func TestTrainedTokenizer(t *testing.T) {
	v, err := trainMerges([]string{corpus}, 2048)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := token.Parse(v.appendJSON(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != v.totalSize() {
		t.Errorf("VocabSize = %d, want %d", tok.VocabSize(), v.totalSize())
	}
	words, err := countWords([]string{corpus})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		var text strings.Builder
		for _, e := range w.entries {
			text.WriteString(v.entries[e])
		}
		for i, m := range v.merges {
			w.mergePair(m, 256+i)
		}
		var got []int
		for _, id := range tok.Encode(nil, text.String(), prep.EncodeOptions{}) {
			got = append(got, int(id))
		}
		if !slices.Equal(got, w.entries) {
			t.Errorf("%q: %v, trained to %v", text.String(), got, w.entries)
		}
	}
}

func TestUnwrap(t *testing.T) {
	const text = "# Title\n\nOne\ntwo.\n* three\n    four"
	const want = "# Title\n One two.\n* three\n    four"
	if got := joinLines(text); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLikeness(t *testing.T) {
	for entry, want := range map[string]int{" word": 2, "word": 1, " ": 0, "": 0, "  a": 0, "a1": 0, "é": 1, "\xc3": 0, "--": 0} {
		if got := wordLikeness(entry); got != want {
			t.Errorf("likeness(%q) = %d, want %d", entry, got, want)
		}
	}
}
