package model

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"penstock/core/kv"
)

// reference is one case of a fixture's expected.json: see
// tools/fixtures/make_checkpoints.py.
type reference struct {
	Prompt []kv.Token `json:"prompt"`
	Greedy []kv.Token `json:"greedy"`
	// The logits that gave the first and the last token of Greedy.
	First []float32 `json:"first_logits"`
	Last  []float32 `json:"last_logits"`
}

func references(t *testing.T, dir string) []reference {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []reference
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatalf("%s has no cases", dir)
	}
	return cases
}

var fixtures = []string{"llama3", "llama-bf16", "qwen2-sharded", "qwen3-f16"}

// TestReference compares with the transformers library: logits to 1e-4, greedy
// tokens exactly.
func TestReference(t *testing.T) {
	for _, name := range fixtures {
		for _, k := range kernels() {
			t.Run(name+"/"+k.kernelName(), func(t *testing.T) {
				dir := filepath.Join("testdata", name)
				m, _, err := loadWithKernel(t.Context(), dir, k)
				if err != nil {
					t.Fatal(err)
				}
				for _, ref := range references(t, dir) {
					checkReference(t, m, ref)
				}
			})
		}
	}
}

func checkReference(t *testing.T, m *Model, ref reference) {
	t.Helper()
	total := len(ref.Prompt) + len(ref.Greedy)
	c := m.NewCache((total+15)/16, 16)
	work := Work{Tokens: ref.Prompt, Blocks: table(0, total, 16), Logits: make([]float32, m.Config().VocabSize)}
	for i, want := range ref.Greedy {
		if err := m.Forward(c, []Work{work}); err != nil {
			t.Fatal(err)
		}
		switch i {
		case 0:
			compareLogits(t, "first", work.Logits, ref.First)
		case len(ref.Greedy) - 1:
			compareLogits(t, "last", work.Logits, ref.Last)
		}
		if got := highest(work.Logits); got != want {
			t.Fatalf("prompt of %d: token %d is %d, want %d", len(ref.Prompt), i, got, want)
		}
		work.Start += len(work.Tokens)
		work.Tokens = []kv.Token{want}
	}
}

func compareLogits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d logits, want %d", what, len(got), len(want))
	}
	for i := range got {
		if diff := math.Abs(float64(got[i]) - float64(want[i])); !(diff <= 1e-4) {
			t.Fatalf("%s: logit %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func highest(logits []float32) kv.Token {
	return kv.Token(slices.Index(logits, slices.Max(logits)))
}
