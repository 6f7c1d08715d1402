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
