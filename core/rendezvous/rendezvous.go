// Package rendezvous chooses one of several workers for a key. Processes do not need to talk to each other for it: two
// which know the same workers ask the same one for a key, so that it works once for both.
//
// Workers which hold what the key names come first. Within them, and within the others, rendezvous hashing
// (Thaler and Ravishankar, 1998) orders: each worker has a score for the key, and the highest comes first. When a
// worker leaves only its keys go elsewhere, to the worker which was second for them. A worker with far more work
// than the mean is passed over, as in consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam,
// 2016): it comes after the others of its group.
package rendezvous

import (
	"cmp"
	"slices"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Candidate is a worker which can be chosen.
type Candidate struct {
	ID kv.WorkerID
	// Holds says that the worker has what the key names.
	Holds bool
	// Load is the work of the worker, in any unit in which one key is one more.
	Load int
	// HoldsOnly says that the worker gives what it holds and makes nothing for others; see AppendAskOrder.
	HoldsOnly bool
}

// The bound of a worker's load, with the key to place: loadFactor times the mean, but at least minBound, so that a
// few keys never make two processes ask two workers for one of them.
const (
	loadFactor = 2
	minBound   = 8
)

// AppendOrder appends to dst the indexes of candidates in the order in which they are to be asked for key. It
// depends on nothing else, and not on the order of the candidates, whose ids must differ.
func AppendOrder(dst []int, key uint64, candidates []Candidate) []int {
	return appendOrderOf(dst, key, candidates, func(*Candidate) bool { return true })
}

// AppendAskOrder appends to dst the indexes of those candidates which are asked for what key names, in order, and returns
// how many of them are asked only for what they hold: these come first, at most maxHolders of them, unless a candidate
// which makes what is missing holds it. All of the latter follow. Loads are compared within each of the two groups.
func AppendAskOrder(dst []int, key uint64, candidates []Candidate, maxHolders int) (order []int, holders int) {
	start := len(dst)
	if !slices.ContainsFunc(candidates, func(c Candidate) bool { return c.Holds && !c.HoldsOnly }) {
		dst = appendOrderOf(dst, key, candidates, func(c *Candidate) bool { return c.Holds && c.HoldsOnly })
		holders = min(len(dst)-start, maxHolders)
	}
	return appendOrderOf(dst[:start+holders], key, candidates, func(c *Candidate) bool { return !c.HoldsOnly }), holders
}

// appendOrderOf is AppendOrder for the candidates which belong to a group.
func appendOrderOf(dst []int, key uint64, candidates []Candidate, belongs func(*Candidate) bool) []int {
	start, total := len(dst), 1
	for i := range candidates {
		if belongs(&candidates[i]) {
			dst = append(dst, i)
			total += candidates[i].Load
		}
	}
	n := len(dst) - start
	bound := max(minBound, (loadFactor*total+n-1)/max(n, 1))
	group := func(c *Candidate) int {
		g := 0
		if !c.Holds {
			g = 2
		}
		if c.Load+1 > bound {
			g++
		}
		return g
	}
	slices.SortFunc(dst[start:], func(i, j int) int {
		a, b := &candidates[i], &candidates[j]
		return cmp.Or(cmp.Compare(group(a), group(b)), cmp.Compare(score(key, b.ID), score(key, a.ID)), cmp.Compare(a.ID, b.ID))
	})
	return dst
}

// score is the weight of a worker for a key.
func score(key uint64, id kv.WorkerID) uint64 {
	return splitmix.Mix(splitmix.Mix(uint64(id)+splitmix.Step) + splitmix.Mix(key))
}
