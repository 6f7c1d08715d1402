package kv

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

// naiveChain hashes as docs/format/hash.md specifies, one byte at a time.
func naiveChain(size int, salt Salt, tokens []Token, media []Media) (blocks []BlockHash, chain []SeqHash) {
	seed := Seed
	if salt.LoRA != "" {
		seed += xxh3.HashStringSeed(salt.LoRA, 0)
	}
	if salt.Namespace != "" {
		seed += xxh3.HashStringSeed(salt.Namespace, 1)
	}
	for start := 0; start+size <= len(tokens); start += size {
		var b []byte
		for _, t := range tokens[start : start+size] {
			b = append(b, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
		}
		shown := map[uint64]bool{}
		for _, m := range media {
			for p := start; p < start+size; p++ {
				if m.Start <= p && p < m.End {
					shown[m.Hash] = true
				}
			}
		}
		var hashes []uint64
		for h := range shown {
			hashes = append(hashes, h)
		}
		slices.Sort(hashes)
		for _, h := range hashes {
			b = binary.LittleEndian.AppendUint64(b, h)
		}
		block := BlockHash(xxh3.HashSeed(b, seed))
		blocks = append(blocks, block)
		if start == 0 {
			chain = append(chain, SeqHash(block))
			continue
		}
		b = binary.LittleEndian.AppendUint64(nil, uint64(chain[len(chain)-1]))
		b = binary.LittleEndian.AppendUint64(b, uint64(block))
		chain = append(chain, SeqHash(xxh3.HashSeed(b, 1337)))
	}
	return blocks, chain
}

func TestHasherAgreesWithNaive(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		size := 2 + rng.IntN(40)
		if seed%50 == 0 {
			size = 700 // longer than the buffer for media
		}
		salt := Salt{LoRA: []string{"", "a", "b"}[rng.IntN(3)], Namespace: []string{"", "a", "b"}[rng.IntN(3)]}
		tokens := randomTokens(rng, rng.IntN(5*size))
		var media []Media
		for range rng.IntN(24) {
			start := rng.IntN(len(tokens)+20) - 10
			media = append(media, Media{Hash: uint64(rng.IntN(16)), Start: start, End: start + rng.IntN(2*size) - 2})
		}
		h := hasher(t, size, salt)
		blocks, chain := naiveChain(size, salt, tokens, media)
		if got := h.AppendBlockHashes(nil, tokens, media); !slices.Equal(got, blocks) {
			t.Fatalf("seed %d: blocks are %x, want %x", seed, got, blocks)
		}
		if got := h.AppendSeqHashes(nil, tokens, media); !slices.Equal(got, chain) {
			t.Fatalf("seed %d: chain is %x, want %x", seed, got, chain)
		}
		// Hashing block by block gives the same.
		var parent SeqHash
		for i := range blocks {
			start := i * size
			block := h.HashBlock(tokens[start:start+size], start, media)
			parent = ExtendSeq(parent, uint32(i), block)
			if block != blocks[i] || parent != chain[i] {
				t.Fatalf("seed %d: block %d is %x in %x, want %x in %x", seed, i, block, parent, blocks[i], chain[i])
			}
		}
	}
}

func TestHasherAppends(t *testing.T) {
	h := hasher(t, 4, Salt{})
	tokens := []Token{1, 2, 3, 4, 5, 6, 7, 8}
	if got := h.AppendBlockHashes([]BlockHash{7}, tokens, nil); len(got) != 3 || got[0] != 7 {
		t.Errorf("Blocks gives %x, want 7 and two more", got)
	}
	if got := h.AppendSeqHashes([]SeqHash{7}, tokens, nil); len(got) != 3 || got[0] != 7 || got[1] != h.AppendSeqHashes(nil, tokens, nil)[0] {
		t.Errorf("Chain gives %x, want 7 and two more that do not depend on it", got)
	}
}

// TestBigEndian: a big-endian machine computes the same hashes.
func TestBigEndian(t *testing.T) {
	tokens := randomTokens(rand.New(rand.NewPCG(1, 2)), 64)
	media := []Media{{Hash: 5, Start: 3, End: 9}}
	want := hasher(t, 16, Salt{}).AppendSeqHashes(nil, tokens, media)
	defer func(was bool) { isLittleEndian = was }(isLittleEndian)
	isLittleEndian = false
	if got := hasher(t, 16, Salt{}).AppendSeqHashes(nil, tokens, media); !slices.Equal(got, want) {
		t.Errorf("copied token bytes hash to %x, want %x", got, want)
	}
}

func TestSaltsSeparate(t *testing.T) {
	tokens := []Token{1, 2, 3, 4, 5, 6, 7, 8}
	seen := map[SeqHash]Salt{}
	for _, salt := range []Salt{
		{},
		{LoRA: "a"},
		{LoRA: "b"},
		{Namespace: "a"},
		{Namespace: "b"},
		{LoRA: "a", Namespace: "a"},
		{LoRA: "a", Namespace: "b"},
		{LoRA: "b", Namespace: "a"},
	} {
		for _, seq := range hasher(t, 4, salt).AppendSeqHashes(nil, tokens, nil) {
			if other, ok := seen[seq]; ok {
				t.Errorf("%+v and %+v share %x", salt, other, seq)
			}
			seen[seq] = salt
		}
	}
}

func TestMediaInBlocks(t *testing.T) {
	tokens := []Token{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}
	h := hasher(t, 4, Salt{})
	hash := func(media ...Media) []BlockHash { return h.AppendBlockHashes(nil, tokens, media) }
	plain := hash()
	one := hash(Media{Hash: 1, Start: 2, End: 6})

	if one[0] == plain[0] || one[1] == plain[1] || one[2] != plain[2] {
		t.Errorf("media in blocks 0 and 1 change %x to %x", plain, one)
	}
	if two := hash(Media{Hash: 2, Start: 2, End: 6}); two[0] == one[0] || two[1] == one[1] {
		t.Errorf("other media hash the same: %x", two)
	}
	for name, same := range map[string][]BlockHash{
		"elsewhere in the same blocks": hash(Media{Hash: 1, Start: 0, End: 8}),
		"given twice":                  hash(Media{Hash: 1, Start: 2, End: 6}, Media{Hash: 1, Start: 3, End: 7}),
		"beside empty ranges":          hash(Media{Hash: 3, Start: 6, End: 6}, Media{Hash: 1, Start: 2, End: 6}, Media{Hash: 3, Start: 7, End: 5}),
		"beside ranges outside":        hash(Media{Hash: 1, Start: 2, End: 6}, Media{Hash: 3, Start: -4, End: 0}, Media{Hash: 3, Start: 12, End: 20}),
	} {
		if !slices.Equal(same, one) {
			t.Errorf("media %s hash to %x, want %x", name, same, one)
		}
	}
	ab := hash(Media{Hash: 1, Start: 0, End: 2}, Media{Hash: 2, Start: 2, End: 4})
	ba := hash(Media{Hash: 2, Start: 0, End: 2}, Media{Hash: 1, Start: 2, End: 4})
	if ab[0] != ba[0] {
		t.Errorf("the order of media matters: %x and %x", ab[0], ba[0])
	}
}

func TestBlockSizeLimits(t *testing.T) {
	for _, size := range []int{-1, 0, 1, 65537} {
		if _, err := NewHasher(size, Salt{}); !errors.Is(err, ErrBlockSize) {
			t.Errorf("block size %d: error is %v", size, err)
		}
	}
	for _, size := range []int{2, 65536} {
		h := hasher(t, size, Salt{})
		if h.BlockSize() != size {
			t.Errorf("block size is %d, want %d", h.BlockSize(), size)
		}
		tokens := make([]Token, 2*size-1)
		if n := len(h.AppendBlockHashes(nil, tokens, nil)); n != 1 {
			t.Errorf("%d tokens have %d full blocks of %d, want 1", len(tokens), n, size)
		}
		if n := len(h.AppendSeqHashes(nil, tokens[:size-1], nil)); n != 0 {
			t.Errorf("a tail shorter than a block has %d hashes", n)
		}
	}
}

// TestFullBlocksOnly: a tail which fills no block has no hash, for any block size.
func TestFullBlocksOnly(t *testing.T) {
	for _, size := range []int{11, 32, 64} {
		h := hasher(t, size, Salt{})
		for tokens, want := range map[int]int{0: 0, size - 1: 0, size: 1, size + 1: 1, 2*size - 1: 1, 2 * size: 2, 2*size + 1: 2} {
			blocks, chain := h.AppendBlockHashes(nil, make([]Token, tokens), nil), h.AppendSeqHashes(nil, make([]Token, tokens), nil)
			if len(blocks) != want || len(chain) != want {
				t.Errorf("%d tokens have %d blocks of %d and %d prefixes, want %d", tokens, len(blocks), size, len(chain), want)
			}
		}
	}
}

func TestHasherAllocatesNothing(t *testing.T) {
	few := []Media{{Hash: 1, Start: 3, End: 40}, {Hash: 2, Start: 45, End: 50}, {Hash: 3, Start: 50, End: 60}, {Hash: 4, Start: 60, End: 600}, {Hash: 3, Start: 610, End: 620}}
	for _, size := range []int{16, 64, 512} {
		tokens := make([]Token, 4*size)
		blocks, chain := make([]BlockHash, 0, 4), make([]SeqHash, 0, 4)
		for name, media := range map[string][]Media{"text": nil, "media": few} {
			h := hasher(t, size, Salt{LoRA: "a"})
			if n := testing.AllocsPerRun(100, func() {
				h.AppendBlockHashes(blocks, tokens, media)
				h.AppendSeqHashes(chain, tokens, media)
			}); n != 0 {
				t.Errorf("%s in blocks of %d: %v allocations", name, size, n)
			}
		}
	}
}

func randomTokens(rng *rand.Rand, n int) []Token {
	tokens := make([]Token, n)
	for i := range tokens {
		tokens[i] = Token(rng.Uint32())
	}
	return tokens
}
