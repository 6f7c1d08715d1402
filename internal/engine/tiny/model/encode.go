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
func (m *Model) EncodeImage(ctx context.Context, patches []float32, grid [3]int) ([]float32, error) {
	return m.EncodeImageBeside(ctx, patches, grid, nil)
}

// EncodeImageBeside is EncodeImage, which uses all processors, except that it uses one and gives way between two parts of
// its work while yields returns true. A nil yields never does.
func (m *Model) EncodeImageBeside(ctx context.Context, patches []float32, grid [3]int, yields func() bool) ([]float32, error) {
	return m.encodeImage(ctx, patches, grid, newYieldingPool(yields))
}

func newYieldingPool(yields func() bool) *workerPool {
	c := newWorkerPool(runtime.GOMAXPROCS(0))
	c.yields = yields
	return c
}

func (m *Model) encodeImage(ctx context.Context, patches []float32, grid [3]int, c *workerPool) ([]float32, error) {
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
	e := newEncodeState(m, c, n, grid)
	e.multiplyRows(linear{w: m.vision.embed}, patches, e.x, n)
	for i := range m.vision.blocks {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("model encode: stopped before block %d of %d: %w", i, v.Depth, err)
		}
		e.runBlock(&m.vision.blocks[i])
	}
	return e.mergeRows(), nil
}

// encodeState is the state of one picture or video in the encoder, with its memory.
type encodeState struct {
	model *Model
	pool  *workerPool
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

func newEncodeState(m *Model, c *workerPool, n int, grid [3]int) *encodeState {
	v := &m.cfg.Vision
	e := &encodeState{
		model: m, pool: c, n: n, frame: grid[1] * grid[2],
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
	e.fillPatchAngles(grid[2])
	return e
}

// fillPatchAngles writes the angles of each patch of a frame: the first half of them by its row, the second
// by its column.
func (e *encodeState) fillPatchAngles(width int) {
	v, freqs := &e.model.cfg.Vision, e.model.vision.freqs
	quarter := len(freqs)
	e.cos, e.sin = make([]float32, e.frame*2*quarter), make([]float32, e.frame*2*quarter)
	square, across := v.Merge*v.Merge, width/v.Merge
	for i := range e.frame {
		block, within := i/square, i%square
		row, col := block/across*v.Merge+within/v.Merge, block%across*v.Merge+within%v.Merge
		cos, sin := rowOf(e.cos, i, 2*quarter), rowOf(e.sin, i, 2*quarter)
		fillAngles(cos[:quarter], sin[:quarter], freqs, row)
		fillAngles(cos[quarter:], sin[quarter:], freqs, col)
	}
}

// multiplyRows computes c = a·w + bias for n rows.
func (e *encodeState) multiplyRows(l linear, a, c []float32, n int) {
	tiles, panels := (n+productRows-1)/productRows, l.w.panelCount()
	e.pool.runTasks(tiles*panels, n*l.w.rows*l.w.cols, func(task, _ int) {
		first, panel := task/panels*productRows, task%panels
		rows := min(productRows, n-first)
		at := c[first*l.w.cols+panel*l.w.panelWidth:]
		l.w.multiplyPanel(e.model.kernel, panel, rows, a[first*l.w.rows:], at, l.w.cols)
		if l.bias == nil {
			return
		}
		bias := l.bias[panel*l.w.panelWidth : min((panel+1)*l.w.panelWidth, l.w.cols)]
		for i := range rows {
			addVector(at[i*l.w.cols:][:len(bias)], bias)
		}
	})
}

// forRows runs f for each of n rows; one row costs about the given number of elements.
func (e *encodeState) forRows(n, elements int, f func(row int)) {
	e.pool.runTasks((n+grain-1)/grain, n*elements*elementWork, func(task, _ int) {
		for i := task * grain; i < min((task+1)*grain, n); i++ {
			f(i)
		}
	})
}

// runBlock takes all rows through one block: x += attention(norm(x)), x += mlp(norm(x)).
func (e *encodeState) runBlock(b *visionLayer) {
	v := &e.model.cfg.Vision
	e.normalizeRows(&b.attnNorm)
	e.multiplyRows(b.qkv, e.normed, e.qkv, e.n)
	e.forRows(e.n, 3*v.Dim, e.storeRow)
	e.attendFrames()
	e.multiplyRows(b.out, e.heads, e.delta, e.n)
	e.addDelta()
	e.normalizeRows(&b.mlpNorm)
	e.multiplyRows(b.up, e.normed, e.up, e.n)
	e.forRows(e.n, v.Intermediate, func(i int) { applyQuickGELU(e.model.kernel, rowOf(e.up, i, v.Intermediate)) })
	e.multiplyRows(b.down, e.up, e.delta, e.n)
	e.addDelta()
}

func (e *encodeState) normalizeRows(norm *layerNorm) {
	dim := e.model.cfg.Vision.Dim
	e.forRows(e.n, dim, func(i int) { norm.normalizeRow(rowOf(e.normed, i, dim), rowOf(e.x, i, dim)) })
}

func (e *encodeState) addDelta() {
	dim := e.model.cfg.Vision.Dim
	e.forRows(e.n, dim, func(i int) { addVector(rowOf(e.x, i, dim), rowOf(e.delta, i, dim)) })
}

// storeRow rotates the queries and keys of one patch and stores keys and values where attention reads them.
func (e *encodeState) storeRow(row int) {
	v := &e.model.cfg.Vision
	head, slot := v.Dim/v.Heads, row%e.frame
	all := rowOf(e.qkv, row, 3*v.Dim)
	cos, sin := rowOf(e.cos, slot, head/2), rowOf(e.sin, slot, head/2)
	for h := range v.Heads {
		rotateHead(rowOf(all, h, head), cos, sin)
		key := rowOf(all, v.Heads+h, head)
		rotateHead(key, cos, sin)
		stored := e.headOf(e.keys, row/e.frame, h)
		for d, x := range key {
			stored[d*e.frame+slot] = x
		}
		copy(e.headOf(e.values, row/e.frame, h)[slot*head:], rowOf(all, 2*v.Heads+h, head))
	}
}

// headOf returns one head of the keys or values of one frame.
func (e *encodeState) headOf(of []float32, frame, head int) []float32 {
	v := &e.model.cfg.Vision
	return rowOf(of, frame*v.Heads+head, v.Dim/v.Heads*e.frame)
}

// attendFrames computes softmax(q·kᵀ/√head)·v over the patches of each frame.
func (e *encodeState) attendFrames() {
	v := &e.model.cfg.Vision
	head := v.Dim / v.Heads
	tiles := (e.frame + encodeTile - 1) / encodeTile
	work := 2 * e.n * e.frame * v.Dim
	e.pool.runTasks(e.n/e.frame*v.Heads*tiles, work, func(task, worker int) {
		frame, h, first := task/tiles/v.Heads, task/tiles%v.Heads, task%tiles*encodeTile
		rows := min(encodeTile, e.frame-first)
		e.attendTile(&e.workers[worker], frame, h, first, rows)
		for i := range rows {
			copy(rowOf(e.heads, frame*e.frame+first+i, v.Dim)[h*head:], rowOf(e.workers[worker].out, i, head))
		}
	})
}

// attendTile computes rows queries of one head of a frame into ws.out.
func (e *encodeState) attendTile(ws *encodeSpace, frame, h, first, rows int) {
	v, k := &e.model.cfg.Vision, e.model.kernel
	head, width := v.Dim/v.Heads, roundUp(e.frame, lanes)
	scale := float32(1 / math.Sqrt(float64(head)))
	for i := range rows {
		from := rowOf(rowOf(e.qkv, frame*e.frame+first+i, 3*v.Dim), h, head)
		for d, x := range from {
			ws.query[i*head+d] = x * scale
		}
	}
	k.multiplyInto(rows, e.frame, head, ws.query, head, e.headOf(e.keys, frame, h), e.frame, ws.scores, width)
	clear(ws.out)
	for i := range rows {
		total := k.softmax(rowOf(ws.scores, i, width), e.frame)
		for j := range e.frame {
			ws.scores[i*width+j] /= total
		}
	}
	k.multiplyAdd(rows, head, e.frame, ws.scores, width, e.headOf(e.values, frame, h), head, ws.out, head)
}

// mergeRows joins the rows of each square of patches, which are adjacent, and projects them to the decoder's
// width.
func (e *encodeState) mergeRows() []float32 {
	v, w := &e.model.cfg.Vision, e.model.vision
	square := v.Merge * v.Merge
	rows, wide := e.n/square, v.Dim*square
	e.normalizeRows(&w.norm)
	e.multiplyRows(w.merge, e.normed, e.x, rows)
	e.forRows(rows, wide, func(i int) { applyGELU(rowOf(e.x, i, wide)) })
	out := make([]float32, rows*e.model.cfg.HiddenSize)
	e.multiplyRows(w.project, e.x, out, rows)
	return out
}
