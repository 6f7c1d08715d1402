package kv

import (
	"encoding/binary"
	"slices"
	"testing"
)

// FuzzChain: for any tokens, media and cut, the chain of a prefix is the prefix of the chain, if no media
// start in the part which is cut off.
func FuzzChain(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"), 4, 5, uint64(42), 1, 3, uint64(7), -3, 99)
	f.Add([]byte{}, 2, 0, uint64(0), 0, 0, uint64(0), -1<<63, 1<<63-1)
	f.Add([]byte("01234567"), 2, 1, uint64(1), 1<<63-1, -1<<63, uint64(1), -2, -1)
	f.Fuzz(func(t *testing.T, raw []byte, size, cut int, h1 uint64, s1, e1 int, h2 uint64, s2, e2 int) {
		h, err := NewHasher(size, Salt{})
		if err != nil {
			return
		}
		tokens := make([]Token, len(raw)/4)
		for i := range tokens {
			tokens[i] = Token(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		media := []Media{{Hash: h1, Start: s1, End: e1}, {Hash: h2, Start: s2, End: e2}}
		chain := h.AppendSeqHashes(nil, tokens, media)
		blocks := h.AppendBlockHashes(nil, tokens, media)
		if len(chain) != len(tokens)/size || len(blocks) != len(chain) {
			t.Fatalf("%d tokens in blocks of %d give %d and %d hashes", len(tokens), size, len(blocks), len(chain))
		}
		if again := AppendChain(nil, blocks); !slices.Equal(again, chain) {
			t.Fatalf("blocks give %x, tokens %x", again, chain)
		}
		var parent SeqHash
		for i, b := range blocks {
			if parent = ExtendSeq(parent, uint32(i), b); parent != chain[i] {
				t.Fatalf("block %d: incremental %x, chain %x", i, parent, chain[i])
			}
		}
		if cut < 0 || cut > len(tokens) {
			return
		}
		if prefix := h.AppendSeqHashes(nil, tokens[:cut], media); !slices.Equal(prefix, chain[:len(prefix)]) {
			t.Fatalf("the first %d tokens give %x, all give %x", cut, prefix, chain)
		}
		slices.Reverse(media)
		if !slices.Equal(h.AppendBlockHashes(nil, tokens, media), blocks) {
			t.Fatal("the order of media matters")
		}
	})
}

// FuzzMediaHash: any text except the empty one has a hash.
func FuzzMediaHash(f *testing.F) {
	f.Add("")
	f.Add("my-image-42")
	f.Add("c705ea9eafcdcde9000000000000000000000000000000000000000000000000")
	f.Add("C705EA9EAFCDCDE9000000000000000000000000000000000000000000000000")
	f.Add("+705ea9eafcdcde9000000000000000000000000000000000000000000000000")
	f.Fuzz(func(t *testing.T, id string) {
		hash, ok := MediaHash(id)
		if ok != (id != "") {
			t.Fatalf("%q has a hash: %v", id, ok)
		}
		if pad := PadToken(hash); pad < 1_000_000 || pad >= 1_000_000+1<<30 {
			t.Fatalf("placeholder %d of %x is out of range", pad, hash)
		}
	})
}
