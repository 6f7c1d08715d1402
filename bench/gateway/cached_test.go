package main

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestTokenCount(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m","x":true,"prompt":[1,22,333],"stop":[1,2,3,4]}`: 3,
		`{"prompt":[1]}`: 1,
	} {
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(body), "bytes": iotest.OneByteReader(strings.NewReader(body))} {
			var c tokenCounter
			if _, err := io.Copy(&c, r); err != nil || c.countTokens() != want {
				t.Errorf("%s %s: %d tokens, %v", name, body, c.countTokens(), err)
			}
		}
	}
}

func TestPrefixes(t *testing.T) {
	var p prefixCache
	for _, c := range []struct {
		peek         string
		tokens, want int
	}{{"a", 100, 0}, {"b", 50, 0}, {"a", 200, 96}, {"a", 192, 176}, {"b", 50, 48}, {"b", 40, 32}} {
		if got := p.lookupAndAdd([]byte(c.peek), c.tokens); got != c.want {
			t.Errorf("%s with %d tokens: %d cached, want %d", c.peek, c.tokens, got, c.want)
		}
	}
}
