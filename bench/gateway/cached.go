package main

import (
	"bytes"
	"hash/maphash"
	"sync"
)

// peeked is how many bytes of a request tell its prompt from others: the texts of the measurements
// differ from their first line on.
const peeked = 4 << 10

// longestProbe is less than the bytes of any request that is measured.
const longestProbe = 512

// prefixes knows what an engine with room for everything has cached, at next to no cost:
// conversations grow at their end, so that of a prompt which begins as an earlier one did the
// engine has all that it had then.
type prefixes struct {
	mu   sync.Mutex
	seed maphash.Seed
	had  map[uint64]int // tokens, by the hash of what was peeked of a request
}

// maxPrefixes bounds them. Beyond it the engine forgets.
const maxPrefixes = 1 << 16

// cached returns how many tokens of a prompt of so many the engine has in whole blocks, and
// enters the prompt. The last token is always computed, and with it its block.
func (p *prefixes) cached(peek []byte, tokens int) int {
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

// tokenCount counts the ids of a body that is written to it: the first array of it. Of a chat, whose
// first array is its messages, it counts something else, which nobody looks at.
type tokenCount struct {
	commas        int
	begun, closed bool
}

func (c *tokenCount) Write(b []byte) (int, error) {
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

// tokens returns how many there were.
func (c *tokenCount) tokens() int { return c.commas + 1 }
