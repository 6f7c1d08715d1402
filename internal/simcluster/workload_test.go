package simcluster

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"penstock/core/splitmix"
	"penstock/internal/replay"
)

// requests is a source of requests that are there.
type requests struct {
	all   []replay.Request
	at    int
	given []int64
}

func (s *requests) Next(r *replay.Request) error {
	if s.at == len(s.all) {
		return io.EOF
	}
	// What the request before has is no longer good, as a source may have it.
	for i := range s.given {
		s.given[i] = -1
	}
	s.given = append(s.given[:0], s.all[s.at].Blocks...)
	*r = s.all[s.at]
	r.Blocks = s.given
	s.at++
	return nil
}

func (s *requests) Close() error { return nil }

// shape is a workload like those of assistants: prompts are a path in a tree that
// many share, then something of their own.
type shape struct {
	requests    int
	every       time.Duration // mean pause between requests
	roots       int           // prefixes that are shared by all prompts with them
	blocks      int           // mean number in a prompt
	blockTokens int
	output      int // mean
	sessions    int // 0 for none
}

// make draws the workload of a seed.
func (s shape) make(seed uint64) []replay.Request {
	rng := randomSource{splitmix.Source(deriveSeed(seed, 99))}
	below := func(n int) int { return int(rng.Next() % uint64(max(n, 1))) }
	histories := make([][]int64, s.roots)
	fresh := int64(1)
	at := time.Duration(0)
	all := make([]replay.Request, s.requests)
	for i := range all {
		at += rng.drawUpTo(2 * s.every)
		root := below(s.roots)
		h := histories[root]
		path := slices.Clone(h[:below(len(h)+1)])
		for range 1 + below(2*s.blocks) - len(path) {
			path = append(path, fresh)
			fresh++
		}
		if len(path) == 0 {
			path = []int64{fresh}
			fresh++
		}
		if len(path) > len(h) {
			histories[root] = path
		}
		r := replay.Request{
			Index: i, At: at, Blocks: path, BlockTokens: s.blockTokens,
			Input: len(path)*s.blockTokens - below(s.blockTokens), Output: 1 + below(2*s.output),
		}
		if s.sessions > 0 && below(3) > 0 {
			r.Session = fmt.Sprintf("s%d", below(s.sessions))
			r.Delay = rng.drawUpTo(time.Second)
		}
		all[i] = r
	}
	return all
}

// journal is a recorder that keeps what it is told, in words.
type journal struct {
	strings.Builder
	samples    []replay.Sample
	gaps       int
	embeddings replay.EmbeddingUse
	disagg     replay.DisaggUse
}

func (j *journal) RecordSample(s *replay.Sample) {
	j.samples = append(j.samples, *s)
	fmt.Fprintf(j, "%+v\n", *s)
}

func (j *journal) RecordGap(between time.Duration, n int) {
	j.gaps += n
	fmt.Fprintf(j, "gap %d %d\n", between, n)
}
