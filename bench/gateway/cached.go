package main

import (
	"bytes"
	"hash/maphash"
	"sync"
)

// peekBytes is how many bytes of a request identify its prompt: the texts of the measurements differ from
// their first line on.
const peekBytes = 4 << 10

// maxProbeBytes is less than the size of any measured request.
const maxProbeBytes = 512

// prefixCache models the cache of an engine with unlimited room, at next to no cost: conversations grow at
// their end, so for a prompt which starts like an earlier one the engine has all of the earlier one.
type prefixCache struct {
	mu   sync.Mutex
	seed maphash.Seed
	had  map[uint64]int // tokens, by the hash of a request's first bytes
}

// maxPrefixes bounds the prefixes. Beyond it the cache is cleared.
const maxPrefixes = 1 << 16

// lookupAndAdd returns how many tokens of a prompt of this length are cached in whole blocks, and adds the
// prompt. The last token is always computed, and with it its block.
func (p *prefixCache) lookupAndAdd(peek []byte, tokens int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.had) >= maxPrefixes || p.had == nil {
		p.seed, p.had = maphash.MakeSeed(), map[uint64]int{}
	}
	key := maphash.Bytes(p.seed, peek)
	before := p.had[key]
	p.had[key] = tokens
	return min(before, max(tokens-1, 0)) / blockSize * blockSize
}

// tokenCounter counts the ids of a body which is written to it: the elements of its first array. For a chat,
// whose first array is its messages, the count is meaningless and not used.
type tokenCounter struct {
	commas        int
	begun, closed bool
}

func (c *tokenCounter) Write(b []byte) (int, error) {
	n := len(b)
	if !c.begun {
		i := bytes.IndexByte(b, '[')
		if i < 0 {
			return n, nil
		}
		c.begun, b = true, b[i+1:]
	}
	if c.closed {
		return n, nil
	}
	if i := bytes.IndexByte(b, ']'); i >= 0 {
		c.closed, b = true, b[:i]
	}
	c.commas += bytes.Count(b, []byte(","))
	return n, nil
}

// countTokens returns their number.
func (c *tokenCounter) countTokens() int { return c.commas + 1 }
