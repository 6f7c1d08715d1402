package model

import (
	"context"
	"fmt"
	"math"
	"runtime"
)

// EncodeImage computes the rows that replace a picture's or video's placeholders in a prompt: [product of
// grid / Merge², HiddenSize]. grid is the number of patches in time, height and width; height and width are
// multiples of Merge. patches are their elements, [product, PatchElements], frame by frame and within a frame
// by squares of Merge × Merge patches, row by row. The rows depend only on patches and grid. It may be called
// concurrently, and ends early, with ctx's error, when ctx does.
func (m *Model) Encode(ctx context.Context, patches []float32, grid [3]int) ([]float32, error) {
	return m.encode(ctx, patches, grid, newCrew(runtime.GOMAXPROCS(0)))
}

func (m *Model) encode(ctx context.Context, patches []float32, grid [3]int, c *crew) ([]float32, error) {
	v := &m.cfg.Vision
	if m.vision == nil {
		return nil, fmt.Errorf("model encode: the model has no encoder of pictures")
	}
	n := 1
	for _, side := range grid {
		if side < 1 || side > maxDim {
			return nil, fmt.Errorf("model encode: a grid of %v patches", grid)
		}
		n *= side // within 63 bits
	}
	switch {
	case grid[1]%v.Merge != 0 || grid[2]%v.Merge != 0:
		return nil, fmt.Errorf("model encode: a grid of %v patches cannot be merged by %d", grid, v.Merge)
	case len(patches)/v.PatchElements() != n || len(patches)%v.PatchElements() != 0:
		return nil, fmt.Errorf("model encode: %d elements for a grid of %v patches", len(patches), grid)
	}
	e := newEncoding(m, c, n, grid)
	e.through(linear{w: m.vision.embed}, patches, e.x, n)
	for i := range m.vision.blocks {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("model encode: stopped before block %d of %d: %w", i, v.Depth, err)
		}
		e.block(&m.vision.blocks[i])
	}
	return e.merge(), nil
}

// encodeState is the state of one picture or video in the encoder, with its memory.
type encoding struct {
	m     *Model
	crew  *crew
	n     int // patches
	frame int // patches of one frame, which attend to each other

	x, normed []float32 // [n, Dim]
	qkv       []float32 // [n, 3·Dim]
	heads     []float32 // [n, Dim], the output of attention
	delta     []float32 // [n, Dim], what a step adds to x
	up        []float32 // [n, Intermediate]
	cos, sin  []float32 // [frame, half a head]
	// keys are [frames, Heads, head, frame] and values [frames, Heads, frame, head]: the
	// layouts in which both products of attention run over rows.
	keys, values []float32
	workers      []encodeSpace
}

// encodeSpace is the scratch memory of one worker.
type encodeSpace struct {
	query, out []float32 // [encodeTile, head]
	scores     []float32 // [encodeTile, frame rounded up]
}

// encodeTile is how many queries are computed together.
const encodeTile = 32

func newEncoding(m *Model, c *crew, n int, grid [3]int) *encoding {
	v := &m.cfg.Vision
	e := &encoding{
		m: m, crew: c, n: n, frame: grid[1] * grid[2],
		x: make([]float32, n*v.Dim), normed: make([]float32, n*v.Dim), heads: make([]float32, n*v.Dim), delta: make([]float32, n*v.Dim),
		qkv: make([]float32, n*3*v.Dim), up: make([]float32, n*v.Intermediate),
		keys: make([]float32, n*v.Dim), values: make([]float32, n*v.Dim),
		workers: make([]encodeSpace, 1+len(c.helpers)),
	}
	head := v.Dim / v.Heads
	for i := range e.workers {
		e.workers[i] = encodeSpace{
			query: make([]float32, encodeTile*head), out: make([]float32, encodeTile*head),
			scores: make([]float32, encodeTile*roundUp(e.frame, lanes)),
		}
	}
	e.place(grid[2])
	return e
}

// fillPatchAngles writes the angles of each patch of a frame: the first half of them by its row, the second
// by its column.
func (e *encoding) place(width int) {
	v, freqs := &e.m.cfg.Vision, e.m.vision.freqs
	quarter := len(freqs)
	e.cos, e.sin = make([]float32, e.frame*2*quarter), make([]float32, e.frame*2*quarter)
	square, across := v.Merge*v.Merge, width/v.Merge
	for i := range e.frame {
		block, within := i/square, i%square
		row, col := block/across*v.Merge+within/v.Merge, block%across*v.Merge+within%v.Merge
		cos, sin := part(e.cos, i, 2*quarter), part(e.sin, i, 2*quarter)
		angles(cos[:quarter], sin[:quarter], freqs, row)
		angles(cos[quarter:], sin[quarter:], freqs, col)
	}
}

// multiplyRows computes c = a·w + bias for n rows.
func (e *encoding) through(l linear, a, c []float32, n int) {
	tiles, panels := (n+productRows-1)/productRows, l.w.panels()
	e.crew.do(tiles*panels, n*l.w.rows*l.w.cols, func(task, _ int) {
		first, panel := task/panels*productRows, task%panels
		rows := min(productRows, n-first)
		at := c[first*l.w.cols+panel*l.w.wide:]
		l.w.multiplyPanel(e.m.kernel, panel, rows, a[first*l.w.rows:], at, l.w.cols)
		if l.bias == nil {
			return
		}
		bias := l.bias[panel*l.w.wide : min((panel+1)*l.w.wide, l.w.cols)]
		for i := range rows {
			addTo(at[i*l.w.cols:][:len(bias)], bias)
		}
	})
}

// forRows runs f for each of n rows; one row costs about the given number of elements.
func (e *encoding) overRows(n, elements int, f func(row int)) {
	e.crew.do((n+grain-1)/grain, n*elements*elementWork, func(task, _ int) {
		for i := task * grain; i < min((task+1)*grain, n); i++ {
			f(i)
		}
	})
}

// runBlock takes all rows through one block: x += attention(norm(x)), x += mlp(norm(x)).
func (e *encoding) block(b *visionLayer) {
	v := &e.m.cfg.Vision
	e.normalise(&b.attnNorm)
	e.through(b.qkv, e.normed, e.qkv, e.n)
	e.overRows(e.n, 3*v.Dim, e.store)
	e.attend()
	e.through(b.out, e.heads, e.delta, e.n)
	e.absorb()
	e.normalise(&b.mlpNorm)
	e.through(b.up, e.normed, e.up, e.n)
	e.overRows(e.n, v.Intermediate, func(i int) { quickGELU(e.m.kernel, part(e.up, i, v.Intermediate)) })
	e.through(b.down, e.up, e.delta, e.n)
	e.absorb()
}

func (e *encoding) normalise(norm *layerNorm) {
	dim := e.m.cfg.Vision.Dim
	e.overRows(e.n, dim, func(i int) { norm.apply(part(e.normed, i, dim), part(e.x, i, dim)) })
}

func (e *encoding) absorb() {
	dim := e.m.cfg.Vision.Dim
	e.overRows(e.n, dim, func(i int) { addTo(part(e.x, i, dim), part(e.delta, i, dim)) })
}

// storeRow rotates the queries and keys of one patch and stores keys and values where attention reads them.
func (e *encoding) store(row int) {
	v := &e.m.cfg.Vision
	head, slot := v.Dim/v.Heads, row%e.frame
	all := part(e.qkv, row, 3*v.Dim)
	cos, sin := part(e.cos, slot, head/2), part(e.sin, slot, head/2)
	for h := range v.Heads {
		rotate(part(all, h, head), cos, sin)
		key := part(all, v.Heads+h, head)
		rotate(key, cos, sin)
		stored := e.head(e.keys, row/e.frame, h)
		for d, x := range key {
			stored[d*e.frame+slot] = x
		}
		copy(e.head(e.values, row/e.frame, h)[slot*head:], part(all, 2*v.Heads+h, head))
	}
}

// headOf returns one head of the keys or values of one frame.
func (e *encoding) head(of []float32, frame, head int) []float32 {
	v := &e.m.cfg.Vision
	return part(of, frame*v.Heads+head, v.Dim/v.Heads*e.frame)
}

// attendFrames computes softmax(q·kᵀ/√head)·v over the patches of each frame.
func (e *encoding) attend() {
	v := &e.m.cfg.Vision
	head := v.Dim / v.Heads
	tiles := (e.frame + encodeTile - 1) / encodeTile
	work := 2 * e.n * e.frame * v.Dim
	e.crew.do(e.n/e.frame*v.Heads*tiles, work, func(task, worker int) {
		frame, h, first := task/tiles/v.Heads, task/tiles%v.Heads, task%tiles*encodeTile
		rows := min(encodeTile, e.frame-first)
		e.attendTile(&e.workers[worker], frame, h, first, rows)
		for i := range rows {
			copy(part(e.heads, frame*e.frame+first+i, v.Dim)[h*head:], part(e.workers[worker].out, i, head))
		}
	})
}

// attendTile computes rows queries of one head of a frame into ws.out.
func (e *encoding) attendTile(ws *encodeSpace, frame, h, first, rows int) {
	v, k := &e.m.cfg.Vision, e.m.kernel
	head, width := v.Dim/v.Heads, roundUp(e.frame, lanes)
	scale := float32(1 / math.Sqrt(float64(head)))
	for i := range rows {
		from := part(part(e.qkv, frame*e.frame+first+i, 3*v.Dim), h, head)
		for d, x := range from {
			ws.query[i*head+d] = x * scale
		}
	}
	k.set(rows, e.frame, head, ws.query, head, e.head(e.keys, frame, h), e.frame, ws.scores, width)
	clear(ws.out)
	for i := range rows {
		total := k.softmax(part(ws.scores, i, width), e.frame)
		for j := range e.frame {
			ws.scores[i*width+j] /= total
		}
	}
	k.add(rows, head, e.frame, ws.scores, width, e.head(e.values, frame, h), head, ws.out, head)
}

// mergeRows joins the rows of each square of patches, which are adjacent, and projects them to the decoder's
// width.
func (e *encoding) merge() []float32 {
	v, w := &e.m.cfg.Vision, e.m.vision
	square := v.Merge * v.Merge
	rows, wide := e.n/square, v.Dim*square
	e.normalise(&w.norm)
	e.through(w.merge, e.normed, e.x, rows)
	e.overRows(rows, wide, func(i int) { gelu(part(e.x, i, wide)) })
	out := make([]float32, rows*e.m.cfg.HiddenSize)
	e.through(w.leave, e.x, out, rows)
	return out
}
