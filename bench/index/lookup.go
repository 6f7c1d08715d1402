package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/core/kv"
)

// lookupRate is the throughput of goroutines which query in a loop.
type lookupRate struct {
	requests, blocks float64 // per second
}

// measureThroughput makes n goroutines query every request in turn, each from another start, for at least
// window. A query returns the depth of the deepest run, which is checked against the expected minimum.
func measureThroughput(s indexSubject, w *requestSet, n int, window time.Duration) (lookupRate, error) {
	var wait sync.WaitGroup
	type share struct {
		requests, blocks, deepest int
	}
	shares := make([]share, n)
	begin := time.Now()
	for g := range n {
		wait.Go(func() {
			r, at := s.newReader(), g*len(w.requests)/n
			var sum share
			for time.Since(begin) < window {
				for range 64 {
					chain := w.requests[at].chain
					sum.requests++
					sum.blocks += len(chain)
					sum.deepest += r.lookupDepth(chain)
					if at++; at == len(w.requests) {
						at = 0
					}
				}
			}
			shares[g] = sum
		})
	}
	wait.Wait()
	took := time.Since(begin).Seconds()
	var sum share
	for _, s := range shares {
		sum.requests += s.requests
		sum.blocks += s.blocks
		sum.deepest += s.deepest
	}
	if sum.deepest == 0 {
		return lookupRate{}, fmt.Errorf("throughput: nothing matched")
	}
	return lookupRate{float64(sum.requests) / took, float64(sum.blocks) / took}, nil
}

// measureLatency makes n goroutines time each query for window. It also returns how many answers were
// shallower than their request.
func measureLatency(s indexSubject, w *requestSet, n int, window time.Duration) (latencyHistogram, int) {
	var wait sync.WaitGroup
	all := make([]latencyHistogram, n)
	short := make([]int, n)
	begin := time.Now()
	for g := range n {
		wait.Go(func() {
			r, at := s.newReader(), g*len(w.requests)/n
			for before := begin; before.Sub(begin) < window; {
				chain := w.requests[at].chain
				before = time.Now()
				depth := r.lookupDepth(chain)
				all[g].addDuration(time.Since(before))
				if depth < len(chain) {
					short[g]++
				}
				if at++; at == len(w.requests) {
					at = 0
				}
			}
		})
	}
	wait.Wait()
	for g := 1; g < n; g++ {
		all[0].mergeCounts(&all[g])
		short[0] += short[g]
	}
	return all[0], short[0]
}

// measureWithHashing is measureThroughput on one goroutine including the hashing of the tokens, over a sample
// of requests whose tokens fit in memory.
func measureWithHashing(s indexSubject, w *requestSet, window time.Duration) (lookupRate, error) {
	h, err := kv.NewHasher(blockTokens, kv.Salt{})
	if err != nil {
		return lookupRate{}, err
	}
	step := (len(w.requests) + hashedSample - 1) / hashedSample
	var tokens [][]kv.Token
	for i := 0; i < len(w.requests); i += step {
		tokens = append(tokens, appendTokens(nil, w.requests[i].ids))
	}
	var chain []kv.SeqHash
	var out lookupRate
	r, deepest := s.newReader(), 0
	begin := time.Now()
	for at := 0; time.Since(begin) < window; at = (at + 1) % len(tokens) {
		chain = h.AppendSeqHashes(chain[:0], tokens[at], nil)
		deepest += r.lookupDepth(chain)
		out.requests++
		out.blocks += float64(len(chain))
	}
	took := time.Since(begin).Seconds()
	if deepest == 0 {
		return lookupRate{}, fmt.Errorf("throughput with hashing: nothing matched")
	}
	return lookupRate{out.requests / took, out.blocks / took}, nil
}

const hashedSample = 500

// measurePicks is the rate of one goroutine which queries the overlap of every worker, and the mean number of
// workers in an answer.
func measurePicks(r overlapReader, w *requestSet, window time.Duration) (perSecond, workers float64) {
	var dst []kv.Overlap
	asked, named := 0, 0
	begin := time.Now()
	for at := 0; time.Since(begin) < window; at = (at + 1) % len(w.requests) {
		dst = r.appendOverlaps(dst[:0], w.requests[at].chain)
		asked++
		named += len(dst)
	}
	return float64(asked) / time.Since(begin).Seconds(), float64(named) / float64(asked)
}

// medianOf returns the median of the rounds; the machine is never quite idle.
func medianOf(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
