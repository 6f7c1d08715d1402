package token

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
	"unicode/utf8"

	"penstock/core/kv"
)

// TestBuiltinIsFrozen: the built-in model's weights are drawn for these ids. A
// new vocabulary is a new model, with another name.
func TestBuiltinIsFrozen(t *testing.T) {
	file, _ := BuiltinFiles()
	sum := sha256.Sum256(file)
	const want = "2a04011ed4273ca80d2aca4ce952e0329f7ca91af4ae4f48577e619c9faaaadf"
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

func TestBuiltin(t *testing.T) {
	tok, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != 1730 {
		t.Errorf("VocabSize = %d", tok.VocabSize())
	}
	for _, name := range []string{"<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"} {
		if id, ok := tok.ID(name); !ok || !tok.IsSpecial(id) {
			t.Errorf("%s: %d, %t", name, id, ok)
		}
	}
	eos, ok := tok.EOS()
	if end, _ := tok.ID("<|end|>"); !ok || eos != end {
		t.Errorf("EOS = %d, %t", eos, ok)
	}
}

func TestMaskedIDs(t *testing.T) {
	tok := fixtureTokenizer(t, "builtin")
	masked := tok.MaskedIDs()
	if !slices.IsSorted(masked) {
		t.Error("not ascending")
	}
	for id := range kv.Token(tok.VocabSize()) {
		text := appendOf(tok, id)
		clean := utf8.Valid(text) && !tok.IsSpecial(id) && !slices.ContainsFunc(text, func(b byte) bool {
			return b < ' ' && b != '\n' && b != '\t' || b == 0x7F
		})
		if slices.Contains(masked, id) == clean {
			t.Errorf("%d %q: masked is %t", id, text, !clean)
		}
	}
	// Not enough left over would make a dull model.
	if left := tok.VocabSize() - len(masked); left < 1500 {
		t.Errorf("%d ids left", left)
	}
}

func TestMaskedIDsWithHolesAndTextEOS(t *testing.T) {
	file := changed(t, func(o object) { model(o)["vocab"].(object)["far"] = 3000 })
	tok, err := Parse(file, []byte(`{"eos_token": "far"}`))
	if err != nil {
		t.Fatal(err)
	}
	masked := tok.MaskedIDs()
	for _, id := range []kv.Token{2000, 2999, 3000} {
		if !slices.Contains(masked, id) {
			t.Errorf("%d is not masked", id)
		}
	}
}
