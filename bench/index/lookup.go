package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/core/kv"
)

// lookupRate is the throughput of goroutines which query in a loop.
type rate struct {
	requests, blocks float64 // per second
}

// measureThroughput makes n goroutines query every request in turn, each from another start, for at least
// window. A query returns the depth of the deepest run, which is checked against the expected minimum.
func throughput(s subject, w *workload, n int, window time.Duration) (rate, error) {
	var wait sync.WaitGroup
	type share struct {
		requests, blocks, deepest int
	}
	shares := make([]share, n)
	begin := time.Now()
	for g := range n {
		wait.Go(func() {
			r, at := s.reader(), g*len(w.requests)/n
			var sum share
			for time.Since(begin) < window {
				for range 64 {
					chain := w.requests[at].chain
					sum.requests++
					sum.blocks += len(chain)
					sum.deepest += r.lookup(chain)
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
		return rate{}, fmt.Errorf("throughput: nothing matched")
	}
	return rate{float64(sum.requests) / took, float64(sum.blocks) / took}, nil
}

// measureLatency makes n goroutines time each query for window. It also returns how many answers were
// shallower than their request.
func latency(s subject, w *workload, n int, window time.Duration) (histogram, int) {
	var wait sync.WaitGroup
	all := make([]histogram, n)
	short := make([]int, n)
	begin := time.Now()
	for g := range n {
		wait.Go(func() {
			r, at := s.reader(), g*len(w.requests)/n
			for before := begin; before.Sub(begin) < window; {
				chain := w.requests[at].chain
				before = time.Now()
				depth := r.lookup(chain)
				all[g].add(time.Since(before))
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
		all[0].merge(&all[g])
		short[0] += short[g]
	}
	return all[0], short[0]
}

// measureWithHashing is measureThroughput on one goroutine including the hashing of the tokens, over a sample
// of requests whose tokens fit in memory.
func hashed(s subject, w *workload, window time.Duration) (rate, error) {
	h, err := kv.NewHasher(blockTokens, kv.Salt{})
	if err != nil {
		return rate{}, err
	}
	step := (len(w.requests) + hashedSample - 1) / hashedSample
	var tokens [][]kv.Token
	for i := 0; i < len(w.requests); i += step {
		tokens = append(tokens, appendTokens(nil, w.requests[i].ids))
	}
	var chain []kv.SeqHash
	var out rate
	r, deepest := s.reader(), 0
	begin := time.Now()
	for at := 0; time.Since(begin) < window; at = (at + 1) % len(tokens) {
		chain = h.Chain(chain[:0], tokens[at], nil)
		deepest += r.lookup(chain)
		out.requests++
		out.blocks += float64(len(chain))
	}
	took := time.Since(begin).Seconds()
	if deepest == 0 {
		return rate{}, fmt.Errorf("throughput with hashing: nothing matched")
	}
	return rate{out.requests / took, out.blocks / took}, nil
}

const hashedSample = 500

// measurePicks is the rate of one goroutine which queries the overlap of every worker, and the mean number of
// workers in an answer.
func picks(r picker, w *workload, window time.Duration) (perSecond, workers float64) {
	var dst []kv.Overlap
	asked, named := 0, 0
	begin := time.Now()
	for at := 0; time.Since(begin) < window; at = (at + 1) % len(w.requests) {
		dst = r.overlaps(dst[:0], w.requests[at].chain)
		asked++
		named += len(dst)
	}
	return float64(asked) / time.Since(begin).Seconds(), float64(named) / float64(asked)
}

// medianOf returns the median of the rounds; the machine is never quite idle.
func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
