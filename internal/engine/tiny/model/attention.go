package model

import "math"

// attentionTile is a run of tokens of one sequence whose attention is computed together,
// one KV head at a time, so that keys and values are read once for all of them
// and for all query heads that share the KV head.
type attentionTile struct {
	run   int
	first int // row
	count int
	start int // position of the first row
}

// tileQueries is how many queries (tokens times query heads of a KV head) a full tile has. With a longest
// context of 8192 positions their scores take 512 KiB.
const tileQueries = 16

// headGroup is the number of query heads that share a KV head.
func (c *Config) headGroup() int { return c.Heads / c.KVHeads }

// tileTokens is the number of tokens in a full tile.
func tileTokens(c *Config) int { return max(1, tileQueries/c.headGroup()) }

// cutTiles cuts the runs into tiles. The cut affects only speed.
func (s *arena) cutTiles() {
	s.attentionWork = 0
	for _, sp := range s.runs {
		s.attentionWork += 2 * sp.count * (sp.start + sp.count) * s.model.cfg.Heads * s.model.cfg.HeadDim
	}
	size := tileTokens(&s.model.cfg)
	for i, sp := range s.runs {
		for at := 0; at < sp.count; at += size {
			s.tiles = append(s.tiles, attentionTile{run: i, first: sp.first + at, count: min(size, sp.count-at), start: sp.start + at})
		}
	}
}

// attendTile computes softmax(q·kᵀ/√HeadDim)·v of one tile for one KV head and its query heads. Later tiles,
// which are the longer ones of a sequence, come first.
//
// A query's scores are independent products, so computing some beyond its position costs time but changes
// nothing. Its values are summed from position 0 to its own in order: blocks visible to all queries of the
// tile are summed for all, the rest for each token up to its position.
func (s *arena) attendTile(task, worker int) {
	cfg, k := &s.model.cfg, s.model.kernel
	head, t := task%cfg.KVHeads, &s.tiles[len(s.tiles)-1-task/cfg.KVHeads]
	ws, blocks := &s.workers[worker], s.runs[t.run].blocks
	dim, size, group := cfg.HeadDim, s.cache.blockSize, cfg.headGroup()
	queries := t.count * group
	used := (t.start + t.count + size - 1) / size // blocks
	width := roundUp(used*size, lanes)
	keys, values := s.cache.keys[s.layer], s.cache.values[s.layer]

	s.gatherQueries(ws.query, t, head)
	for b := 0; b < used; b += s.runBlocks {
		some := blocks[b:min(b+s.runBlocks, used)]
		run := s.gatherKeys(ws.keys, keys, some, head)
		cols := len(some) * size
		k.multiplyInto(queries, cols, dim, ws.query, dim, run, cols, ws.scores[b*size:], width)
	}
	out := ws.out[:queries*dim]
	clear(out)
	for q := range queries {
		seen := t.start + q/group + 1
		ws.sums[q] = k.softmax(ws.scores[q*width:][:width], seen)
	}
	shared := (t.start + 1) / size // blocks fully visible to the first token
	for b := range shared {
		k.multiplyAdd(queries, dim, size, ws.scores[b*size:], width, s.cache.headOf(values, blocks[b], head), dim, out, dim)
	}
	for i := range t.count {
		seen := t.start + i + 1
		for b := shared; b*size < seen; b++ {
			at := i * group
			k.multiplyAdd(group, dim, min(size, seen-b*size), ws.scores[at*width+b*size:], width, s.cache.headOf(values, blocks[b], head), dim, out[at*dim:], dim)
		}
	}
	s.scatterHeads(out, ws.sums, t, head)
}

// gatherQueries copies the queries of a tile for one KV head into dst,
// [count·group, HeadDim], divided by √HeadDim.
func (s *arena) gatherQueries(dst []float32, t *attentionTile, head int) {
	cfg := &s.model.cfg
	scale := float32(1 / math.Sqrt(float64(cfg.HeadDim)))
	n := cfg.headGroup() * cfg.HeadDim
	for i := range t.count {
		from := rowOf(rowOf(s.qkv, t.first+i, cfg.qkvCols()), head, n)
		for j, v := range from {
			dst[i*n+j] = v * scale
		}
	}
}

// gatherKeys returns one head of the keys of some blocks as one matrix
// [HeadDim, len(blocks)·blockSize]: in dst, unless a single block is one already.
func (s *arena) gatherKeys(dst, keys []float32, blocks []int32, head int) []float32 {
	if len(blocks) == 1 {
		return s.cache.headOf(keys, blocks[0], head)
	}
	size := s.cache.blockSize
	width := len(blocks) * size
	for i, b := range blocks {
		from := s.cache.headOf(keys, b, head)
		for d := range s.model.cfg.HeadDim {
			copy(dst[d*width+i*size:][:size], from[d*size:])
		}
	}
	return dst
}

// scatterHeads divides each query's output by the sum of its weights and stores it where the output
// projection expects it.
func (s *arena) scatterHeads(out, sums []float32, t *attentionTile, head int) {
	cfg := &s.model.cfg
	n := cfg.headGroup() * cfg.HeadDim
	for i := range t.count {
		to := rowOf(rowOf(s.heads, t.first+i, cfg.Heads*cfg.HeadDim), head, n)
		for j := range to {
			to[j] = out[i*n+j] / sums[i*cfg.headGroup()+j/cfg.HeadDim]
		}
	}
}

// rotaryFrequencies returns, for each pair of a head's elements, the angle in radians by which one position
// rotates it: theta^(-2i/HeadDim), then scaled. They are rounded to float32, as are the angles later, because
// models were trained with that.
func (c *Config) rotaryFrequencies() []float32 {
	freqs := make([]float32, c.HeadDim/2)
	for i := range freqs {
		f := math.Pow(c.RopeTheta, -float64(2*i)/float64(c.HeadDim))
		freqs[i] = float32(c.RopeScaling.scaleFrequency(f))
	}
	return freqs
}

// scaleFrequency applies the scaling to one frequency. For llama3: rotations with a wavelength below
// OriginalMaxPositions/HighFreqFactor positions are kept, those above OriginalMaxPositions/LowFreqFactor are
// divided by Factor, and between the two the result is interpolated linearly (in the number of turns within
// the original context). Source: the Llama 3.1 reference code.
func (s *RopeScaling) scaleFrequency(freq float64) float64 {
	switch s.Type {
	case "linear":
		return freq / s.Factor
	case "llama3":
		turns := float64(s.OriginalMaxPositions) * freq / (2 * math.Pi)
		switch {
		case turns > s.HighFreqFactor:
			return freq
		case turns < s.LowFreqFactor:
			return freq / s.Factor
		}
		keep := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
		return float64(keep*freq) + float64((1-keep)*(freq/s.Factor))
	}
	return freq
}

// fillAngles writes the cosine and sine of each frequency at a position.
func fillAngles(cos, sin []float32, freqs []float32, position int) {
	for i, f := range freqs {
		s, c := math.Sincos(float64(float32(position) * f))
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// fillTokenAngles writes the cosine and sine of each pair of a head at the positions of a token.
func (m *Model) fillTokenAngles(cos, sin []float32, turns [3]int32) {
	if turns[0] == turns[1] && turns[1] == turns[2] || m.cfg.MRope == [3]int{} {
		fillAngles(cos, sin, m.freqs, int(turns[0]))
		return
	}
	first := 0
	for i, n := range m.cfg.MRope {
		fillAngles(cos[first:first+n], sin[first:first+n], m.freqs[first:first+n], int(turns[i]))
		first += n
	}
}

// rotateHead rotates each pair (x[i], x[i+half]) of one head by its angle.
func rotateHead(x, cos, sin []float32) {
	half := len(x) / 2
	low, high := x[:half], x[half:]
	cos, sin = cos[:half], sin[:half]
	for i, a := range low {
		b := high[i]
		low[i] = float32(a*cos[i]) - float32(b*sin[i])
		high[i] = float32(b*cos[i]) + float32(a*sin[i])
	}
}
