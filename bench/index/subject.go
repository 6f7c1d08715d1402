package main

import (
	"fmt"
	"math/bits"
	"slices"

	"penstock/core/kv"
	"penstock/core/prefix"
)

// subject is one way to know who holds what. One goroutine stores and removes; each
// goroutine that asks has a reader of its own.
type subject interface {
	// store says that worker w holds blocks [from, to) of r, of which it holds those before.
	store(w int, r *request, from, to int)
	remove(w int, seqs []kv.SeqHash)
	reader() reader
}

// reader asks a subject.
type reader interface {
	// lookup finds all runs and returns the depth of the deepest.
	lookup(chain []kv.SeqHash) int
}

// picker is a reader that can say how much each worker holds.
type picker interface {
	reader
	// overlaps appends what each worker holds of chain, ordered by worker.
	overlaps(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap
}

// The subjects, as rows name them.
const (
	walkName   = "bitmap-walk"
	gallopName = "bitmap-gallop"
	prefixName = "prefix"
)

// workerOf gives a worker's place its name: ids begin at 1.
func workerOf(w int) kv.Worker { return kv.Worker{ID: kv.WorkerID(w + 1)} }

func (t *bitmaps) reader() reader { return &walker{table: t} }

// bitmapSubject makes a table a subject: it takes prefixes as they are.
type bitmapSubject struct{ *bitmaps }

func (t bitmapSubject) store(w int, r *request, from, to int) { t.bitmaps.store(w, r.chain[from:to]) }

// gallopSubject is the same table, asked for the best length alone.
type gallopSubject struct{ bitmapSubject }

func (t gallopSubject) reader() reader { return galloper{t.bitmaps} }

type walker struct {
	table  *bitmaps
	answer answer
}

func (r *walker) lookup(chain []kv.SeqHash) int {
	r.table.walk(&r.answer, chain)
	return r.answer.best()
}

func (r *walker) overlaps(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap {
	r.table.walk(&r.answer, chain)
	base, words := len(dst), r.table.words
	for i, depth := range r.answer.depths {
		for j, word := range r.answer.sets[i*words : (i+1)*words] {
			for ; word != 0; word &= word - 1 {
				o := kv.Overlap{Worker: workerOf(j*64 + bits.TrailingZeros64(word))}
				o.Blocks[kv.TierDevice] = depth
				dst = append(dst, o)
			}
		}
	}
	slices.SortFunc(dst[base:], func(a, b kv.Overlap) int { return a.Worker.Compare(b.Worker) })
	return dst
}

type galloper struct{ table *bitmaps }

func (r galloper) lookup(chain []kv.SeqHash) int { return r.table.gallop(chain) }

// prefixSubject is core/prefix.
type prefixSubject struct{ index *prefix.Index }

func newPrefix() (prefixSubject, error) {
	x, err := prefix.New(prefix.Config{})
	if err != nil {
		return prefixSubject{}, fmt.Errorf("make index: %w", err)
	}
	return prefixSubject{x}, nil
}

func (p prefixSubject) store(w int, r *request, from, to int) {
	ev := kv.Event{Kind: kv.Stored, Blocks: r.blocks[from:to]}
	if from > 0 {
		ev.Start, ev.Parent = uint32(from), r.chain[from-1]
	}
	p.index.Apply(workerOf(w), ev)
}

func (p prefixSubject) remove(w int, seqs []kv.SeqHash) {
	p.index.Apply(workerOf(w), kv.Event{Kind: kv.Removed, Seqs: seqs})
}

func (p prefixSubject) reader() reader { return &prefixReader{index: p.index} }

type prefixReader struct {
	index *prefix.Index
	match prefix.Match
}

func (r *prefixReader) lookup(chain []kv.SeqHash) int {
	r.index.Match(&r.match, chain, nil)
	if runs := r.match.Runs(kv.TierDevice); len(runs) > 0 {
		return runs[0].Depth
	}
	return 0
}

func (r *prefixReader) overlaps(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap {
	r.index.Match(&r.match, chain, nil)
	return r.match.AppendOverlaps(dst)
}
