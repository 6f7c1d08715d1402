package paged

import "penstock/core/kv"

// BlockSource is memory outside the cache from which blocks can be copied into it, such as a pool which
// several engines share.
type BlockSource interface {
	// Has reports whether the block which ends in seq can be copied now. The scheduler trusts the answer:
	// the source must compare more than hashes.
	Has(seq kv.SeqHash) bool
}

// countFetchable returns how many blocks after the hits of q can be fetched. Like hits they exclude its
// last token.
func (s *Scheduler) countFetchable(q *seqState, hits []int32, tip kv.SeqHash) int {
	if s.cfg.Remote == nil || q.reuse == Off {
		return 0
	}
	n, most := 0, (len(q.tokens)-1)/s.cfg.BlockSize
	for i := len(hits); i < most; i++ {
		c := q.describeBlock(i, noBlock, tip)
		if _, taken := s.pool.index[c.seq]; taken || !s.cfg.Remote.Has(c.seq) {
			break
		}
		tip = c.seq
		n++
	}
	return n
}

// fetchBlocks allocates to q, which has its hits and nothing else, the n fetched blocks after them. They
// are private, and count as computed when the step which contains q is committed.
func (s *Scheduler) fetchBlocks(q *seqState, n int) {
	for range n {
		q.blocks = append(q.blocks, s.pool.takeBlock())
	}
	q.fetched = n * s.cfg.BlockSize
	s.stats.FetchedTokens += uint64(q.fetched)
}
