package model

import (
	"fmt"
	"runtime"

	"penstock/core/kv"
)

// arenaRows is how many tokens go through the layers together. Forward splits a larger batch, so that the
// memory for intermediate results is fixed.
const arenaRows = 256

// Cache holds the keys and values of a pool of blocks, for every layer, and the
// scratch memory to compute with. It is used by one Forward at a time.
type Cache struct {
	model     *Model
	blocks    int
	blockSize int
	// keys and values have one slice for each layer. A block holds, for each KV
	// head, keys as [HeadDim, blockSize] and values as [blockSize, HeadDim]: the
	// layouts in which both products of attention run over rows.
	keys, values [][]float32
	arena        *arena
}

// NewCache returns a cache of blocks blocks of blockSize tokens, all undefined.
// Its memory is fixed: Config.BlockBytes for each block; the intermediate results
// of 256 tokens; and, for each processor, the attention scores of some 16 queries
// over the longest sequence. It panics if there is no block or token.
func (m *Model) NewCache(blocks, blockSize int) *Cache {
	return m.newCache(blocks, blockSize, arenaRows, runtime.GOMAXPROCS(0))
}

func (m *Model) newCache(blocks, blockSize, rows, workers int) *Cache {
	if blocks < 1 || blockSize < 1 {
		panic(fmt.Sprintf("model: a cache of %d blocks of %d tokens", blocks, blockSize))
	}
	c := &Cache{model: m, blocks: blocks, blockSize: blockSize}
	size := blocks * m.cfg.KVHeads * m.cfg.HeadDim * blockSize
	for range m.cfg.Layers {
		c.keys = append(c.keys, make([]float32, size))
		c.values = append(c.values, make([]float32, size))
	}
	c.arena = newArena(c, rows, workers)
	return c
}

// Model returns the model whose keys and values it holds.
func (c *Cache) Model() *Model { return c.model }

// BlockCount returns the number of blocks.
func (c *Cache) BlockCount() int { return c.blocks }

// BlockSize returns the number of tokens in a block.
func (c *Cache) BlockSize() int { return c.blockSize }

// headOf returns one head of one block from the keys or values of a layer.
func (c *Cache) headOf(layer []float32, block int32, head int) []float32 {
	size := c.model.cfg.HeadDim * c.blockSize
	return layer[(int(block)*c.model.cfg.KVHeads+head)*size:][:size]
}

// storeToken stores the keys and values of one token, [KVHeads, HeadDim] each, for every head of one layer at
// an offset in a block.
func (c *Cache) storeToken(layer int, block int32, slot int, keys, values []float32) {
	dim := c.model.cfg.HeadDim
	for h := range c.model.cfg.KVHeads {
		stored := c.headOf(c.keys[layer], block, h)
		for d, v := range keys[h*dim:][:dim] {
			stored[d*c.blockSize+slot] = v
		}
		copy(c.headOf(c.values[layer], block, h)[slot*dim:][:dim], values[h*dim:][:dim])
	}
}

// Work is what Forward computes for one sequence.
type Work struct {
	// Tokens are at the positions Start, Start+1, … of the sequence; at least one.
	Tokens []kv.Token
	// Start is how many tokens of the sequence already have their keys and values in Blocks, from earlier
	// calls for any sequence.
	Start int
	// Blocks is the block table: position p is in Blocks[p/blockSize], at offset p%blockSize. It covers
	// Start+len(Tokens) positions. Forward writes the blocks into which the tokens fall, and no other work of
	// the batch may name them.
	Blocks []int32
	// Media holds the sequence's media objects, at the positions of Tokens or others; nil if it is text only.
	// Forward ignores the tokens at the objects' positions.
	Media *PlacedMedia
	// Logits receives the last token's, before any softmax: VocabSize values, or nil if they are not wanted.
	Logits []float32
	// Sum, if not nil, has HiddenSize elements, to which the last hidden state of each token is added, in
	// order of position: the head's input, after the final norm. The sum over a sequence has the same bits
	// however it is split into works, if each of its tokens is computed once.
	Sum []float64
}

// checkWork finds mistakes that would read or write memory of other sequences.
func (c *Cache) checkWork(w *Work) error {
	cfg := &c.model.cfg
	end := w.Start + len(w.Tokens)
	switch {
	case len(w.Tokens) == 0:
		return fmt.Errorf("no tokens")
	case w.Start < 0 || end > cfg.MaxPositions:
		return fmt.Errorf("positions %d to %d are outside of the model's %d", w.Start, end, cfg.MaxPositions)
	case len(w.Blocks) < (end+c.blockSize-1)/c.blockSize:
		return fmt.Errorf("%d blocks of %d tokens do not hold %d positions", len(w.Blocks), c.blockSize, end)
	case w.Logits != nil && len(w.Logits) != cfg.VocabSize:
		return fmt.Errorf("room for %d logits, the vocabulary has %d", len(w.Logits), cfg.VocabSize)
	case w.Sum != nil && len(w.Sum) != cfg.HiddenSize:
		return fmt.Errorf("room for the sum of %d elements of hidden states, they have %d", len(w.Sum), cfg.HiddenSize)
	}
	for _, b := range w.Blocks {
		if b < 0 || int(b) >= c.blocks {
			return fmt.Errorf("block %d is outside of the cache's %d", b, c.blocks)
		}
	}
	for i, t := range w.Tokens {
		if uint64(t) >= uint64(cfg.VocabSize) {
			return fmt.Errorf("the token at position %d is outside of the vocabulary of %d", w.Start+i, cfg.VocabSize)
		}
	}
	return nil
}
