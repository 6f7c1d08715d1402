package paged

import (
	"errors"
	"fmt"
	"math"
)

// Switch turns a part of the scheduler off. The zero value is on.
type Switch uint8

// The positions of a Switch.
const (
	On Switch = iota
	Off
)

// Config configures a Scheduler. It has no defaults, because only the engine knows its memory and its
// model.
type Config struct {
	// Blocks is the capacity of the cache; physical blocks are 0..Blocks-1.
	Blocks int
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// MaxSeqs bounds the sequences that run at once.
	MaxSeqs int
	// TokenBudget bounds the tokens computed in one step. It is at least MaxSeqs,
	// so that every decoding sequence gets its token in every step.
	TokenBudget int
	// MaxContext bounds prompt plus output tokens of one sequence. A pool of
	// fewer tokens lowers it; see [Scheduler.MaxTokens].
	MaxContext int
	// MaxWaiting bounds the queue; AddSequence beyond it is Overloaded. Preempted
	// sequences go back to the queue without counting.
	MaxWaiting int
	// Reuse off keeps no block after its last sequence and emits no events.
	Reuse Switch
	// Chunking off computes the known tokens of a sequence in one step. The budget must then hold the
	// longest sequence.
	Chunking Switch
	// Remote, if not nil, holds blocks which can be fetched instead of computed.
	Remote BlockSource
	// Observer, if not nil, is told of each block which is registered.
	Observer BlockObserver
}

// Validate reports every problem of c at once, nil if there is none.
func (c Config) Validate() error {
	var all []error
	refuse := func(format string, args ...any) { all = append(all, fmt.Errorf("paged: "+format, args...)) }

	if c.BlockSize < 2 || c.BlockSize > 65536 {
		refuse("block size is %d tokens: must be between 2 and 65536", c.BlockSize)
	}
	if c.Blocks < 1 || c.Blocks > math.MaxInt32 {
		refuse("cache has %d blocks: must be between 1 and %d", c.Blocks, math.MaxInt32)
	}
	if c.MaxSeqs < 1 || c.MaxSeqs > math.MaxInt32 {
		refuse("running sequences are limited to %d: must be at least 1", c.MaxSeqs)
	}
	if c.TokenBudget < c.MaxSeqs {
		refuse("token budget of a step is %d: must be at least the %d sequences that may run", c.TokenBudget, c.MaxSeqs)
	}
	if c.MaxContext < 2 {
		refuse("context is %d tokens: must be at least 2", c.MaxContext)
	}
	if c.MaxWaiting < 1 {
		refuse("waiting sequences are limited to %d: must be at least 1", c.MaxWaiting)
	}
	if c.Reuse > Off || c.Chunking > Off {
		refuse("a switch is neither on nor off")
	}
	if len(all) == 0 && c.Chunking == Off && c.TokenBudget < c.maxTokens() {
		refuse("token budget of a step is %d: without chunking it must hold the longest sequence, %d tokens", c.TokenBudget, c.maxTokens())
	}
	return errors.Join(all...)
}

// maxTokens is the largest length of a sequence: the context, or the tokens of the whole pool if that is
// less.
func (c Config) maxTokens() int { return min(c.MaxContext, c.Blocks*c.BlockSize) }

// blocksFor returns the number of blocks that hold n tokens.
func (c Config) blocksFor(n int) int { return (n + c.BlockSize - 1) / c.BlockSize }

// reservedBlocks is the number of blocks which admission leaves free while other sequences can grow: one in a
// hundred, so that a full cache does not preempt a new sequence as soon as an older one grows. (vLLM's
// watermark is 0.01 too.)
func (c Config) reservedBlocks() int { return c.Blocks / 100 }
