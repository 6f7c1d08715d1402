package remote

import (
	"net/url"
	"testing"

	"penstock/internal/engine"
)

// TestWithoutTokens checks that for an engine without tokens the card's tokenizer is the engine's, so that no
// frontend makes tokens for it.
func TestWithoutTokens(t *testing.T) {
	here := engine.TokenizerRef{Kind: "dir", Dir: "/m", Digest: "d"}
	card := engine.Card{Name: "m", BlockSize: 16, Ranks: 1, ContextLength: 100, VocabSize: 100, Tokenizer: here}
	client := NewClient(&Spec{URL: &url.URL{Scheme: "http", Host: "h:1"}})
	defer client.Close()
	for _, c := range []struct {
		dialect Dialect
		want    engine.TokenizerRef
	}{{nil, engine.TokenizerRef{Kind: engine.TokenizerOfEngine}}, {plain{}, here}} {
		b, err := New(Config{Card: card, Client: client, Dialect: c.dialect})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Card().Tokenizer; got != c.want {
			t.Errorf("with dialect %v the tokenizer is %+v", c.dialect, got)
		}
	}
}
