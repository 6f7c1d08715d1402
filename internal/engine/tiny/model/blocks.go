package model

import (
	"encoding/binary"
	"fmt"
	"math"
)

// BlockOrder names the order of the elements in the bytes of a block, as docs/format/kv-block.md describes it: for each
// layer the keys of all KV heads as [HeadDim, block size], then the values of all KV heads as [block size, HeadDim].
const BlockOrder = "layer-k.head.dim.token-v.head.token.dim"

// ReadBlock writes the bytes of a block to dst, which has Config.BlockBytes: float32, little-endian, in BlockOrder. It may
// run beside Forward, if that does not write to the block.
func (c *Cache) ReadBlock(dst []byte, block int32) {
	cfg := &c.model.cfg
	if len(dst) != cfg.BlockBytes(c.blockSize) {
		panic(fmt.Sprintf("model: %d bytes for a block of %d", len(dst), cfg.BlockBytes(c.blockSize)))
	}
	for layer := range cfg.Layers {
		for _, part := range [...][]float32{c.keys[layer], c.values[layer]} {
			for head := range cfg.KVHeads {
				for _, v := range c.headOf(part, block, head) {
					binary.LittleEndian.PutUint32(dst, math.Float32bits(v))
					dst = dst[4:]
				}
			}
		}
	}
}

// BlockBytes are the bytes of blocks of a sequence, of another cache of the model, one after another.
type BlockBytes struct {
	// Size is the number of tokens of a block, First the position of the first token of the first block.
	Size, First int
	Data        []byte
}

// WriteTokens sets the keys and values of the tokens from start to end of a sequence in its blocks: position p is in
// blocks[p/blockSize]. src has blocks with all of them, of any size. It may run beside Forward, if that does not
// use the blocks.
func (c *Cache) WriteTokens(blocks []int32, start, end int, src *BlockBytes) error {
	size := c.model.cfg.BlockBytes(max(src.Size, 1))
	switch {
	case src.Size < 1 || len(src.Data)%size != 0:
		return fmt.Errorf("%d bytes are no blocks of %d tokens", len(src.Data), src.Size)
	case start < src.First || end > src.First+len(src.Data)/size*src.Size || start > end:
		return fmt.Errorf("the tokens %d to %d are not in the %d blocks of %d tokens from %d", start, end, len(src.Data)/size, src.Size, src.First)
	case end > len(blocks)*c.blockSize:
		return fmt.Errorf("%d blocks of %d tokens have no room for %d", len(blocks), c.blockSize, end)
	}
	for p := start; p < end; { // up to the end of a block on either side
		from, slot := (p-src.First)/src.Size, (p-src.First)%src.Size
		n := min(end-p, src.Size-slot, c.blockSize-p%c.blockSize)
		c.writeRun(blocks[p/c.blockSize], p%c.blockSize, src.Data[from*size:][:size], src.Size, slot, n)
		p += n
	}
	return nil
}

// writeRun sets n tokens of a block from slot to on from the bytes of a block of size tokens, from its slot from on.
func (c *Cache) writeRun(block int32, to int, src []byte, size, from, n int) {
	cfg := &c.model.cfg
	for layer := range cfg.Layers {
		for head := range cfg.KVHeads {
			keys := c.headOf(c.keys[layer], block, head)
			for d := range cfg.HeadDim {
				readFloats(keys[d*c.blockSize+to:][:n], src[4*(d*size+from):])
			}
			src = src[4*cfg.HeadDim*size:]
		}
		for head := range cfg.KVHeads {
			readFloats(c.headOf(c.values[layer], block, head)[to*cfg.HeadDim:][:n*cfg.HeadDim], src[4*from*cfg.HeadDim:])
			src = src[4*cfg.HeadDim*size:]
		}
	}
}

// readFloats reads little-endian elements.
func readFloats(dst []float32, src []byte) {
	src = src[:4*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}
