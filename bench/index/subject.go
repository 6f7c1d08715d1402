package main

import (
	"fmt"
	"math/bits"
	"slices"

	"penstock/core/kv"
	"penstock/core/prefix"
)

// indexSubject is an index under test. One goroutine stores and removes; each querying goroutine has its own
// reader.
type indexSubject interface {
	// storeRange records that worker w holds blocks [from, to) of r; it already holds the ones before.
	storeRange(w int, r *request, from, to int)
	removeSeqs(w int, seqs []kv.SeqHash)
	newReader() subjectReader
}

// subjectReader queries a subject.
type subjectReader interface {
	// lookupDepth finds all runs and returns the depth of the deepest.
	lookupDepth(chain []kv.SeqHash) int
}

// overlapReader is a reader which can return the overlap of each worker.
type overlapReader interface {
	subjectReader
	// appendOverlaps appends each worker's overlap with chain, ordered by worker.
	appendOverlaps(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap
}

// The names of the subjects in rows.
const (
	walkName   = "bitmap-walk"
	gallopName = "bitmap-gallop"
	prefixName = "prefix"
)

// workerOf returns the worker of an index: ids start at 1.
func workerOf(w int) kv.Worker { return kv.Worker{ID: kv.WorkerID(w + 1)} }

func (t *bitmapTable) newReader() subjectReader { return &walkReader{table: t} }

// bitmapSubject adapts a table to a subject: it takes prefixes as they are.
type bitmapSubject struct{ *bitmapTable }

func (t bitmapSubject) storeRange(w int, r *request, from, to int) {
	t.bitmapTable.storeChain(w, r.chain[from:to])
}

// gallopSubject is the same table, queried for the best length only.
type gallopSubject struct{ bitmapSubject }

func (t gallopSubject) newReader() subjectReader { return gallopReader{t.bitmapTable} }

type walkReader struct {
	table  *bitmapTable
	answer walkAnswer
}

func (r *walkReader) lookupDepth(chain []kv.SeqHash) int {
	r.table.walkChain(&r.answer, chain)
	return r.answer.deepestRun()
}

func (r *walkReader) appendOverlaps(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap {
	r.table.walkChain(&r.answer, chain)
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

type gallopReader struct{ table *bitmapTable }

func (r gallopReader) lookupDepth(chain []kv.SeqHash) int { return r.table.gallopDepth(chain) }

// prefixSubject is core/prefix.
type prefixSubject struct{ index *prefix.Index }

func newPrefixSubject() (prefixSubject, error) {
	x, err := prefix.New(prefix.Config{})
	if err != nil {
		return prefixSubject{}, fmt.Errorf("make index: %w", err)
	}
	return prefixSubject{x}, nil
}

func (p prefixSubject) storeRange(w int, r *request, from, to int) {
	ev := kv.Event{Kind: kv.Stored, Blocks: r.blocks[from:to]}
	if from > 0 {
		ev.Start, ev.Parent = uint32(from), r.chain[from-1]
	}
	p.index.ApplyEvent(workerOf(w), ev)
}

func (p prefixSubject) removeSeqs(w int, seqs []kv.SeqHash) {
	p.index.ApplyEvent(workerOf(w), kv.Event{Kind: kv.Removed, Seqs: seqs})
}

func (p prefixSubject) newReader() subjectReader { return &prefixReader{index: p.index} }

type prefixReader struct {
	index *prefix.Index
	match prefix.Match
}

func (r *prefixReader) lookupDepth(chain []kv.SeqHash) int {
	r.index.Match(&r.match, chain, nil)
	if runs := r.match.DepthRuns(kv.TierDevice); len(runs) > 0 {
		return runs[0].Depth
	}
	return 0
}

func (r *prefixReader) appendOverlaps(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap {
	r.index.Match(&r.match, chain, nil)
	return r.match.AppendOverlaps(dst)
}
