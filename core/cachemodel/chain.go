package cachemodel

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// tokenChain is a growing sequence of tokens, with the hashes of its full blocks.
type tokenChain struct {
	hasher kv.Hasher
	salt   kv.Salt
	tokens []kv.Token
	media  []kv.Media
	blocks []kv.BlockHash
	seqs   []kv.SeqHash
}

// reset makes c the empty sequence under a salt, and keeps its memory.
func (c *tokenChain) reset(h kv.Hasher, salt kv.Salt) {
	c.hasher, c.salt = h, salt
	c.tokens, c.media = c.tokens[:0], c.media[:0]
	c.blocks, c.seqs = c.blocks[:0], c.seqs[:0]
}

// truncate keeps the first n tokens. It keeps media which start before n: their remaining tokens still
// belong to them.
func (c *tokenChain) truncate(n int) {
	c.tokens = c.tokens[:min(n, len(c.tokens))]
	full := len(c.tokens) / c.hasher.BlockSize()
	c.blocks, c.seqs = c.blocks[:min(full, len(c.blocks))], c.seqs[:min(full, len(c.seqs))]
	c.media = slices.DeleteFunc(c.media, func(m kv.Media) bool { return m.Start >= len(c.tokens) })
}

// appendTokens appends tokens and hashes the blocks which they fill.
func (c *tokenChain) appendTokens(tokens []kv.Token) {
	c.tokens = append(c.tokens, tokens...)
	size := c.hasher.BlockSize()
	for len(c.blocks) < len(c.tokens)/size {
		n := len(c.blocks)
		block := c.hasher.HashBlock(c.tokens[n*size:(n+1)*size], n*size, c.media)
		var parent kv.SeqHash
		if n > 0 {
			parent = c.seqs[n-1]
		}
		c.blocks = append(c.blocks, block)
		c.seqs = append(c.seqs, kv.ExtendSeq(parent, uint32(n), block))
	}
}

// commonPrefix returns the number of leading tokens which r and c have in common.
func (c *tokenChain) commonPrefix(r *EngineRequest) int {
	if c.salt != r.Salt {
		return 0
	}
	n := commonTokens(c.tokens, r.Tokens)
	// Equal placeholder tokens differ if different objects fill them.
	for i := range max(len(c.media), len(r.Media)) {
		if i < len(c.media) && i < len(r.Media) && c.media[i] == r.Media[i] {
			continue
		}
		if i < len(c.media) {
			n = min(n, max(c.media[i].Start, 0))
		}
		if i < len(r.Media) {
			n = min(n, max(r.Media[i].Start, 0))
		}
	}
	return n
}

// hasOtherSalt reports whether c has tokens which a request under salt must not reuse.
func (c *tokenChain) hasOtherSalt(salt kv.Salt) bool { return len(c.tokens) > 0 && c.salt != salt }

func (c *tokenChain) checkBlocks() error {
	if full := len(c.tokens) / c.hasher.BlockSize(); len(c.blocks) != full || len(c.seqs) != full {
		return fmt.Errorf("%d tokens have %d blocks and %d prefixes", len(c.tokens), len(c.blocks), len(c.seqs))
	}
	return nil
}

// commonTokens returns the length of the longest common prefix.
func commonTokens(a, b []kv.Token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// commonSeqs returns the length of the longest common prefix. Prefix hashes are equal up to some index and
// never after it.
func commonSeqs(a, b []kv.SeqHash) int {
	n := min(len(a), len(b))
	for n > 0 && a[n-1] != b[n-1] {
		n--
	}
	return n
}
