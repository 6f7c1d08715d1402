package main

import (
	"fmt"
	"slices"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

const (
	blockTokens = 16 // tokens of a block of the index
	blocksPerID = 32 // blocks of 16 tokens per 512-token block of a trace
	vocabulary  = 128_000
)

// request is one prompt: its blocks of 512 tokens, as named in a trace, and the hashes of its blocks of 16.
type request struct {
	ids    []uint64
	blocks []kv.BlockHash
	chain  []kv.SeqHash
}

// requestSet is the requests of a run, in order of arrival.
type requestSet struct {
	name     string
	requests []request
	touches  int // blocks of all requests
	unique   int // distinct prefixes among them
}

// newRequestSet hashes the prompts described by ids. The tokens of a block of 512 depend only on its id, so
// equal ids after equal ids are equal prefixes.
func newRequestSet(name string, prompts [][]uint64) (*requestSet, error) {
	h, err := kv.NewHasher(blockTokens, kv.Salt{})
	if err != nil {
		return nil, err
	}
	w := &requestSet{name: name, requests: make([]request, 0, len(prompts))}
	var tokens []kv.Token
	var all []kv.SeqHash
	for _, ids := range prompts {
		tokens = appendTokens(tokens[:0], ids)
		r := request{
			ids:    ids,
			blocks: h.AppendBlockHashes(make([]kv.BlockHash, 0, len(ids)*blocksPerID), tokens, nil),
			chain:  h.AppendSeqHashes(make([]kv.SeqHash, 0, len(ids)*blocksPerID), tokens, nil),
		}
		w.requests = append(w.requests, r)
		all = append(all, r.chain...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("workload %s: has no blocks", name)
	}
	w.touches = len(all)
	slices.Sort(all)
	w.unique = len(slices.Compact(all))
	return w, nil
}

// appendTokens appends the tokens of a prompt.
func appendTokens(dst []kv.Token, ids []uint64) []kv.Token {
	for _, id := range ids {
		at := splitmix.Source(splitmix.Mix(id + 1))
		for range blocksPerID * blockTokens {
			dst = append(dst, kv.Token(at.Below(vocabulary)))
		}
	}
	return dst
}

// firstRequests returns the workload of the first n requests.
func (w *requestSet) firstRequests(n int) (*requestSet, error) {
	if n <= 0 || n >= len(w.requests) {
		return w, nil
	}
	return newRequestSet(w.name, requestIDs(w.requests[:n]))
}

// withCommonPrompt returns the workload with a common prompt of n blocks of 512 tokens before each request.
func (w *requestSet) withCommonPrompt(n int) (*requestSet, error) {
	common := make([]uint64, n)
	for i := range common {
		common[i] = commonID + uint64(i)
	}
	out := requestIDs(w.requests)
	for i, ids := range out {
		out[i] = slices.Concat(common, ids)
	}
	return newRequestSet(fmt.Sprintf("%s behind a prompt of %d blocks", w.name, n*blocksPerID), out)
}

// Block ids which no trace has.
const (
	commonID = 1 << 40
	freshID  = 1 << 41
)

func requestIDs(requests []request) [][]uint64 {
	out := make([][]uint64, len(requests))
	for i := range requests {
		out[i] = requests[i].ids
	}
	return out
}

// String summarizes the workload.
func (w *requestSet) String() string {
	lengths := make([]int, len(w.requests))
	for i := range w.requests {
		lengths[i] = len(w.requests[i].chain)
	}
	slices.Sort(lengths)
	at := func(share float64) int { return lengths[int(share*float64(len(lengths)-1))] }
	return fmt.Sprintf("%s: %d requests, blocks of %d tokens per request: mean %.0f, p50 %d, p99 %d, most %d; %d blocks touched, %d distinct",
		w.name, len(w.requests), blockTokens, float64(w.touches)/float64(len(w.requests)), at(0.5), at(0.99), lengths[len(lengths)-1], w.touches, w.unique)
}
