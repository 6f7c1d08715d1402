package model

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// fill gives every element of a cache a value of its own, which says whose it is.
func fill(c *Cache, from float32) {
	for l := range c.keys {
		for i := range c.keys[l] {
			c.keys[l][i], c.values[l][i] = from, from+0.5
			from++
		}
	}
}

// TestReadBlock: the bytes are where docs/format/kv-block.md says.
func TestReadBlock(t *testing.T) {
	m := randomModel(t, shapes["grouped"], portableKernel{})
	c := newTestCache(m, 3, 16, arenaRows, 1)
	fill(c, 1)
	cfg := &m.cfg
	b := make([]byte, cfg.BlockBytes(16))
	c.ReadBlock(b, 2)
	at := func(element int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b[4*element:])) }
	L, H, D, size := cfg.Layers, cfg.KVHeads, cfg.HeadDim, 16
	for l := range L {
		for h := range H {
			for d := range D {
				for tok := range size {
					key := c.headOf(c.keys[l], 2, h)[d*size+tok]
					value := c.headOf(c.values[l], 2, h)[tok*D+d]
					if k, v := at(l*2*H*D*size+h*D*size+d*size+tok), at(l*2*H*D*size+(H+h)*D*size+tok*D+d); k != key || v != value {
						t.Fatalf("layer %d, head %d, dimension %d, token %d: %v and %v, want %v and %v", l, h, d, tok, k, v, key, value)
					}
				}
			}
		}
	}
}

// tokenOf returns the keys and values of a position, in order of layer, head and dimension.
func tokenOf(c *Cache, blocks []int32, p int) (all []float32) {
	b, slot, dim := blocks[p/c.blockSize], p%c.blockSize, c.model.cfg.HeadDim
	for l := range c.keys {
		for h := range c.model.cfg.KVHeads {
			for d := range dim {
				all = append(all, c.headOf(c.keys[l], b, h)[d*c.blockSize+slot], c.headOf(c.values[l], b, h)[slot*dim+d])
			}
		}
	}
	return all
}

// TestWriteTokens: whatever the sizes of blocks, the tokens of a range are those of the other cache afterwards, and no other
// token has changed.
func TestWriteTokens(t *testing.T) {
	m := randomModel(t, shapes["grouped"], portableKernel{})
	rng := rand.New(rand.NewPCG(1, 9))
	for _, from := range []int{16, 64, 128, 24} {
		for _, to := range []int{16, 64, 128, 40} {
			src, dst := newTestCache(m, 640/from+1, from, arenaRows, 1), newTestCache(m, 640/to+1, to, arenaRows, 1)
			fill(src, 1)
			for range 6 {
				fill(dst, -1e6)
				start := rng.IntN(500)
				end := start + rng.IntN(500-start)
				if rng.IntN(2) == 0 {
					start, end = start/to*to, end/to*to
					start = min(start, end)
				}
				first := rng.IntN(start/from + 1)
				last := (end + from - 1) / from
				blocks, own := shuffled(rng, 640/from+1), shuffled(rng, 640/to+1)
				bytes := &BlockBytes{Size: from, First: first * from}
				for _, b := range blocks[first:max(first, last)] {
					one := make([]byte, m.cfg.BlockBytes(from))
					src.ReadBlock(one, b)
					bytes.Data = append(bytes.Data, one...)
				}
				var before [][]float32
				for p := range 600 {
					before = append(before, tokenOf(dst, own, p))
				}
				if err := dst.WriteTokens(own, start, end, bytes); err != nil {
					t.Fatal(err)
				}
				for p := range 600 {
					want := before[p]
					if start <= p && p < end {
						want = tokenOf(src, blocks, p)
					}
					if err := sameBits(tokenOf(dst, own, p), want); err != nil {
						t.Fatalf("blocks of %d to blocks of %d, tokens %d to %d: position %d: %v", from, to, start, end, p, err)
					}
				}
			}
		}
	}
}

func shuffled(rng *rand.Rand, n int) (all []int32) {
	for i := range n {
		all = append(all, int32(i))
	}
	rng.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// TestWriteTokensRefuses what it would have to read or write elsewhere.
func TestWriteTokensRefuses(t *testing.T) {
	m := randomModel(t, shapes["grouped"], portableKernel{})
	c := newTestCache(m, 4, 16, arenaRows, 1)
	size := m.cfg.BlockBytes(16)
	for _, test := range []struct {
		start, end int
		blocks     []int32
		src        BlockBytes
		want       string
	}{
		{0, 32, []int32{0, 1}, BlockBytes{16, 0, make([]byte, size)}, "are not in the 1 blocks"},
		{0, 16, []int32{0, 1}, BlockBytes{16, 16, make([]byte, size)}, "are not in the 1 blocks of 16 tokens from 16"},
		{16, 8, []int32{0, 1}, BlockBytes{16, 0, make([]byte, 2*size)}, "are not in"},
		{0, 32, []int32{0}, BlockBytes{16, 0, make([]byte, 2*size)}, "have no room for 32"},
		{0, 16, []int32{0}, BlockBytes{16, 0, make([]byte, size+4)}, "are no blocks of 16"},
		{0, 16, []int32{0}, BlockBytes{0, 0, nil}, "are no blocks of 0"},
	} {
		if err := c.WriteTokens(test.blocks, test.start, test.end, &test.src); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("tokens %d to %d: %v, want %q", test.start, test.end, err, test.want)
		}
	}
}
