package kv

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/zeebo/xxh3"
)

// The vectors in this file are also in docs/format/hash.md. They were computed with the reference
// implementation and must never change: workers of different versions, and other routers, identify blocks by
// them.

func TestGoldenKnownVector(t *testing.T) {
	if got := xxh3.HashSeed([]byte("test data"), Seed); got != 13226331709069118873 {
		t.Fatalf("XXH3 of %q is %d: the hash function is not the one expected", "test data", got)
	}
}

func TestGoldenBlocks(t *testing.T) {
	tokens := []Token{0, 1, 2, 3, 4, 5, 6, 7}
	for _, c := range []struct {
		name   string
		salt   Salt
		tokens []Token
		media  []Media
		blocks []BlockHash
		chain  []SeqHash
	}{
		{
			name:   "text",
			tokens: tokens,
			blocks: []BlockHash{9143094415614847814, 12124091508212882195},
			chain:  []SeqHash{9143094415614847814, 9510318385840434533},
		},
		{
			name:   "media",
			tokens: tokens[:4],
			media:  []Media{{Hash: 42, Start: 1, End: 3}},
			blocks: []BlockHash{18280081842874931122},
			chain:  []SeqHash{18280081842874931122},
		},
		{
			name:   "adapter",
			salt:   Salt{LoRA: "adapter-a"},
			tokens: tokens[:4],
			blocks: []BlockHash{6665157333201000639},
			chain:  []SeqHash{6665157333201000639},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := hasher(t, 4, c.salt)
			if got := h.AppendBlockHashes(nil, c.tokens, c.media); !slices.Equal(got, c.blocks) {
				t.Errorf("blocks are %d, want %d", got, c.blocks)
			}
			if got := h.AppendSeqHashes(nil, c.tokens, c.media); !slices.Equal(got, c.chain) {
				t.Errorf("chain is %d, want %d", got, c.chain)
			}
		})
	}
	if got := (Salt{LoRA: "adapter-a"}).Seed(); got != 8842669519798868182 {
		t.Errorf("the adapter's seed is %d, want 8842669519798868182", got)
	}
	if got := (Salt{}).Seed(); got != 1337 {
		t.Errorf("the plain seed is %d, want 1337", got)
	}
}

// golden is testdata/media_golden.json.
type golden struct {
	Known struct {
		Input string `json:"input"`
		Seed  uint64 `json:"seed"`
		Value uint64 `json:"value"`
	} `json:"known"`
	Opaque map[string]string `json:"opaque_identifier"`
	URL    []struct {
		Input string `json:"input"`
		Hex16 string `json:"hex16"`
		UUID  string `json:"uuid64"`
		Pad   Token  `json:"pad"`
	} `json:"url"`
	Routing []struct {
		BlockSize int      `json:"block_size"`
		MediaHash string   `json:"mm_hash_hex16"`
		Pad       Token    `json:"pad_value"`
		Tokens    []Token  `json:"routing_tokens_padded"`
		Blocks    []string `json:"block_hash"`
		Chain     []string `json:"sequence_hash_seed1337"`
	} `json:"routing"`
}

func TestGoldenMedia(t *testing.T) {
	raw, err := os.ReadFile("testdata/media_golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Opaque) == 0 || len(g.URL) == 0 || len(g.Routing) == 0 {
		t.Fatal("the file has lost its vectors")
	}
	if got := xxh3.HashStringSeed(g.Known.Input, g.Known.Seed); got != g.Known.Value {
		t.Errorf("XXH3 of %q with seed %d is %d, want %d", g.Known.Input, g.Known.Seed, got, g.Known.Value)
	}
	for id, want := range g.Opaque {
		if got, ok := MediaHash(id); !ok || got != hex(t, want) {
			t.Errorf("hash of %q is %x, want %s", id, got, want)
		}
	}
	for _, u := range g.URL {
		want := hex(t, u.Hex16)
		if got, ok := MediaHash(u.Input); ok != (u.Input != "") || ok && got != want {
			t.Errorf("hash of %q is %x (%v), want %s", u.Input, got, ok, u.Hex16)
		}
		if got, ok := MediaHash(u.UUID); !ok || got != want {
			t.Errorf("hash of digest %s is %x, want %s", u.UUID, got, u.Hex16)
		}
		if got := PadToken(want); got != u.Pad {
			t.Errorf("placeholder of %s is %d, want %d", u.Hex16, got, u.Pad)
		}
	}
	for _, r := range g.Routing {
		if got := PadToken(hex(t, r.MediaHash)); got != r.Pad {
			t.Errorf("placeholder of %s is %d, want %d", r.MediaHash, got, r.Pad)
		}
		h := hasher(t, r.BlockSize, Salt{})
		var blocks []BlockHash
		var chain []SeqHash
		for i := range r.Blocks {
			blocks = append(blocks, BlockHash(hex(t, r.Blocks[i])))
			chain = append(chain, SeqHash(hex(t, r.Chain[i])))
		}
		if got := h.AppendBlockHashes(nil, r.Tokens, nil)[:len(blocks)]; !slices.Equal(got, blocks) {
			t.Errorf("blocks of %v are %x, want %x", r.Tokens, got, blocks)
		}
		if got := h.AppendSeqHashes(nil, r.Tokens, nil)[:len(chain)]; !slices.Equal(got, chain) {
			t.Errorf("chain of %v is %x, want %x", r.Tokens, got, chain)
		}
	}
}

func hex(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func hasher(t testing.TB, size int, salt Salt) Hasher {
	t.Helper()
	h, err := NewHasher(size, salt)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
