package engine

import (
	"os"
	"strings"
	"testing"

	"penstock/core/kv"
)

// TestChecksumBytes: the canonical form is the one of docs/format/engine.md.
func TestChecksumBytes(t *testing.T) {
	c := Card{Name: "m", BlockSize: 16, Ranks: 1, ContextLength: 100, VocabSize: 32, EOS: []kv.Token{2, 1}, Tokenizer: TokenizerRef{Kind: "builtin"}}
	// printf '%s\n' 'name "m"' 'tokenizer {"kind":"builtin"}' 'vocab_size 32' 'block_size 16' \
	//   'context_length 100' 'eos [1,2]' 'defaults {"temperature":0}' | sha256sum
	const want = "c3060bf8e910d76418d9b241956a2af9c990da30f4318666aee1942b83ac9c25"
	if got := c.Checksum(); got != want {
		t.Errorf("checksum %s, want %s", got, want)
	}
}

// TestDiffers changes one field at a time.
func TestDiffers(t *testing.T) {
	base := goodCard()
	for name, change := range map[string]func(*Card){
		"name":               func(c *Card) { c.Name = "other" },
		"tokenizer":          func(c *Card) { c.Tokenizer.Digest = "ab" },
		"vocab_size":         func(c *Card) { c.VocabSize++ },
		"block_size":         func(c *Card) { c.BlockSize *= 2 },
		"context_length":     func(c *Card) { c.ContextLength-- },
		"eos":                func(c *Card) { c.EOS = []kv.Token{1} },
		"default_max_tokens": func(c *Card) { c.DefaultMaxTokens = 0 },
		"defaults":           func(c *Card) { c.Defaults.TopK = 5 },
		"aliases":            func(c *Card) { c.Aliases = append(c.Aliases[:1:1], strings.Repeat("é", 120)) },
		"tool_parser":        func(c *Card) { c.ToolParser = "hermes" },
		"reasoning_parser":   func(c *Card) { c.ReasoningParser = "qwen3" },
		"media":              func(c *Card) { c.Media = []string{"image"} },
		"attaches":           func(c *Card) { c.AcceptsObjects = !c.AcceptsObjects },
		"media_keys":         func(c *Card) { c.MediaKeys = MediaKeysUUID },
		"media_decoder":      func(c *Card) { c.MediaDecoder = &MediaDecoder{Transfer: "shm"} },
	} {
		c := goodCard()
		change(&c)
		field, mine, theirs, differ := c.FirstDifference(&base)
		if !differ || field != name || mine == theirs || mine == "" || theirs == "" || len(mine) > 170 {
			t.Errorf("%s: differ %v in %s: %s, %s", name, differ, field, mine, theirs)
		}
		if c.Checksum() == base.Checksum() {
			t.Errorf("%s does not change the checksum", name)
		}
		if words := c.DescribeDifference(&base); !strings.Contains(words, name+" is "+mine+" here and "+theirs+" there") {
			t.Errorf("%s: %s", name, words)
		}
	}
	for name, change := range map[string]func(*Card){
		"blocks":   func(c *Card) { c.Blocks++ },
		"ranks":    func(c *Card) { c.Ranks++ },
		"engine":   func(c *Card) { c.Engine = "sim" },
		"numerics": func(c *Card) { c.Numerics = "other" },
		"abilities": func(c *Card) {
			c.StructuredOutput, c.KVEvents, c.Embeddings, c.Preprocess = !c.StructuredOutput, true, true, true
		},
		"eos order":  func(c *Card) { c.EOS = []kv.Token{2, 1, 2} },
		"same alias": func(c *Card) { c.Aliases = append(c.Aliases, c.Aliases...) },
		"directory":  func(c *Card) {},
	} {
		a, b := goodCard(), goodCard()
		a.Tokenizer = TokenizerRef{Kind: "dir", Dir: "/a", Digest: "ab"}
		b.Tokenizer = TokenizerRef{Kind: "dir", Dir: "/b", Digest: "ab"}
		change(&a)
		if words := a.DescribeDifference(&b); words != "" || a.Checksum() != b.Checksum() {
			t.Errorf("%s: %q", name, words)
		}
	}
	a, b := goodCard(), goodCard()
	a.Tokenizer, b.Tokenizer = TokenizerRef{Kind: "dir", Dir: "/a"}, TokenizerRef{Kind: "dir", Dir: "/b"}
	if a.DescribeDifference(&b) == "" {
		t.Error("directories without a digest are taken for the same")
	}
}

// TestCardIsSealed checks that a card whose shared fields were changed in transit is refused, and that a card
// of a build without checksums is accepted.
func TestCardIsSealed(t *testing.T) {
	b, err := EncodeCard(goodCard())
	if err != nil {
		t.Fatal(err)
	}
	sealed := string(b)
	c := goodCard()
	sum := `,"checksum":"` + c.Checksum() + `"`
	if !strings.Contains(sealed, sum) {
		t.Fatalf("no checksum in %s", sealed)
	}
	if _, err := DecodeCard([]byte(strings.Replace(sealed, `"context_length":8192`, `"context_length":4096`, 1))); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("a changed card: %v", err)
	}
	for name, ok := range map[string]string{
		"older build":    strings.Replace(sealed, sum, "", 1),
		"other capacity": strings.Replace(sealed, `"blocks":1024`, `"blocks":7`, 1),
	} {
		if _, err := DecodeCard([]byte(ok)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOlderCards checks that cards of earlier builds can be read, and agree with this build's card of the
// same model.
func TestOlderCards(t *testing.T) {
	for _, name := range []string{"card-before-checksums.json", "card-with-checksum.json"} {
		old, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		card, err := DecodeCard(old)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := card.Checksum(); got != "6a910a6b5e73483c33c56c05aeb6a88bfe868ece476c3dff3ad029a7fe79ad4e" {
			t.Errorf("%s: checksum %s: workers of this build and of that one would refuse each other", name, got)
		}
	}
}
