package paged

import "penstock/core/kv"

// Elsewhere is memory outside of the cache from which blocks can be copied into it, such
// as a pool that several engines share.
type Elsewhere interface {
	// Has reports whether the block that ends in seq can be copied now. The scheduler
	// trusts the answer: who puts blocks there compares more than names.
	Has(seq kv.SeqHash) bool
}

// elsewhere returns how many blocks follow the hits of q that can be fetched. Like hits
// they leave its last token.
func (s *Scheduler) elsewhere(q *sequence, hits []int32, tip kv.SeqHash) int {
	if s.cfg.Elsewhere == nil || q.reuse == Off {
		return 0
	}
	n, most := 0, (len(q.tokens)-1)/s.cfg.BlockSize
	for i := len(hits); i < most; i++ {
		c := q.content(i, none, tip)
		if _, taken := s.pool.index[c.seq]; taken || !s.cfg.Elsewhere.Has(c.seq) {
			break
		}
		tip = c.seq
		n++
	}
	return n
}

// fetch gives q, which has its hits and nothing else, the n blocks that follow them and
// are fetched. They are its own, and count as computed when the step is committed that it
// has a part in.
func (s *Scheduler) fetch(q *sequence, n int) {
	for range n {
		q.blocks = append(q.blocks, s.pool.take())
	}
	q.fetched = n * s.cfg.BlockSize
	s.stats.FetchedTokens += uint64(q.fetched)
}
