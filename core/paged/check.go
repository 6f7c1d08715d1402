package paged

import (
	"fmt"

	"penstock/core/kv"
)

// Check returns the first broken invariant, nil if all hold. It is for tests: it walks everything.
func (s *Scheduler) Check() error {
	for _, check := range []func() error{s.checkQueues, s.checkTables, s.checkPartial, s.checkHolders, s.pool.checkBlocks} {
		if err := check(); err != nil {
			return fmt.Errorf("paged: %w", err)
		}
	}
	return nil
}

// checkQueues: running, paused, held and waiting sequences are each in order of arrival, and byID finds each; a waiting
// one which arrived before one which runs or pauses was added with unfinished ranges or a transfer; at most MaxSeqs run;
// the prefill counts add up.
func (s *Scheduler) checkQueues() error {
	var newest uint64 // of sequences which run or pause
	prefill, preempted, n := 0, 0, 0
	for name, l := range []*sequenceQueue{inRunning: &s.running, inPaused: &s.paused, inHeld: &s.held, inWaiting: &s.waiting} {
		length, arrival := 0, uint64(0)
		for q := l.head; q != nil; q = q.next {
			switch {
			case s.byID[q.id] != q:
				return fmt.Errorf("sequence %d is queued but not known", q.id)
			case q.arrival <= arrival:
				return fmt.Errorf("sequence %d is out of order", q.id)
			case q.queue != queueName(name):
				return fmt.Errorf("sequence %d is in the wrong queue", q.id)
			case q.next != nil && q.next.prev != q, q.next == nil && l.tail != q, q.prev == nil && l.head != q:
				return fmt.Errorf("sequence %d is linked one way only", q.id)
			}
			if q.queue == inWaiting && q.admitted {
				preempted++
			}
			arrival = q.arrival
			if q.queue != inWaiting && q.queue != inHeld {
				newest = max(newest, arrival)
			}
			prefill += q.prefillLeft()
			length++
		}
		if length != l.len {
			return fmt.Errorf("a queue of %d counts %d", length, l.len)
		}
		n += length
	}
	for q := s.waiting.head; q != nil && q.arrival < newest; q = q.next {
		if q.partial == nil {
			return fmt.Errorf("sequence %d waits, and a later one runs or pauses", q.id)
		}
	}
	switch {
	case n != len(s.byID):
		return fmt.Errorf("%d sequences are known, %d are queued", len(s.byID), n)
	case s.running.len > s.cfg.MaxSeqs:
		return fmt.Errorf("%d sequences run, more than %d", s.running.len, s.cfg.MaxSeqs)
	case preempted != s.preempted:
		return fmt.Errorf("%d preempted sequences wait, %d are counted", preempted, s.preempted)
	case s.waiting.len-preempted > s.cfg.MaxWaiting:
		return fmt.Errorf("%d sequences wait, more than %d", s.waiting.len-preempted, s.cfg.MaxWaiting)
	case prefill != s.stats.PrefillTokens:
		return fmt.Errorf("%d prefill tokens are left, %d are counted", prefill, s.stats.PrefillTokens)
	}
	return nil
}

// checkTables: waiting sequences have no blocks. The others have blocks for the computed and planned
// tokens and not beyond the known tokens; all but the newest running one, and all which were added with unfinished
// ranges or a transfer, have blocks for all known tokens before the last. All tokens of held ones are computed. Without
// chunking no prefill is split. The registered head of a table is a chain which holds the sequence's own tokens.
func (s *Scheduler) checkTables() error {
	for q := s.waiting.head; q != nil; q = q.next {
		if len(q.blocks) != 0 || q.computed != 0 || q.planned != 0 || q.fetched != 0 || q.registered != 0 || q.awaitsToken {
			return fmt.Errorf("sequence %d waits but is not empty", q.id)
		}
	}
	for _, q := range s.holders() {
		switch {
		case q.planned < 0 || q.computed < 0 || q.planned > q.pendingTokens():
			return fmt.Errorf("sequence %d: %d tokens planned after %d of %d", q.id, q.planned, q.computed, len(q.tokens))
		case len(q.blocks) < s.cfg.blocksFor(q.readyTokens()+q.planned), len(q.blocks) > s.cfg.blocksFor(len(q.tokens)):
			return fmt.Errorf("sequence %d: %d blocks for %d of %d tokens", q.id, len(q.blocks), q.computed+q.planned, len(q.tokens))
		case s.cfg.Chunking == Off && q.planned > 0 && q.planned < q.pendingTokens():
			return fmt.Errorf("sequence %d: %d of %d tokens planned without chunking", q.id, q.planned, q.pendingTokens())
		case q.next != nil && len(q.blocks) < s.cfg.blocksFor(len(q.tokens)-1):
			return fmt.Errorf("sequence %d: %d blocks for %d tokens, and others run behind it", q.id, len(q.blocks), len(q.tokens))
		case q.queue == inHeld && (!q.hold || q.computed != len(q.tokens) || q.planned != 0 || q.awaitsToken):
			return fmt.Errorf("sequence %d is held with %d of %d tokens", q.id, q.computed, len(q.tokens))
		case q.hold && (q.awaitsToken || q.queue != inHeld && q.computed == len(q.tokens)):
			return fmt.Errorf("sequence %d is computed and not held", q.id)
		case q.awaitsToken && q.readyTokens() != len(q.tokens):
			return fmt.Errorf("sequence %d is due with %d of %d tokens", q.id, q.readyTokens(), len(q.tokens))
		case q.reuse == On && !q.sealed && q.registered != q.computed/s.cfg.BlockSize:
			return fmt.Errorf("sequence %d: %d blocks registered of %d tokens", q.id, q.registered, q.computed)
		}
		if err := s.checkTable(q); err != nil {
			return fmt.Errorf("sequence %d: %w", q.id, err)
		}
	}
	return nil
}

// holders returns the sequences which hold blocks: the running, paused and held ones.
func (s *Scheduler) holders() (all []*seqState) {
	for _, l := range [...]*sequenceQueue{&s.running, &s.paused, &s.held} {
		for q := l.head; q != nil; q = q.next {
			all = append(all, q)
		}
	}
	return all
}

// checkPartial: sequences added with unfinished ranges or a transfer have the blocks of all tokens which were known at
// admission. Running ones can compute or fetch something if they are encoding; paused ones can compute nothing, or no place was
// free. The counts add up.
func (s *Scheduler) checkPartial() error {
	var want partialCounts
	for _, q := range s.byID {
		if limit := s.limitOf(q, q.readyTokens()); q.limit != limit {
			return fmt.Errorf("sequence %d: the limit is %d, should be %d", q.id, q.limit, limit)
		}
		waits := q.pendingTokens() == 0 && !q.fetchOnly
		switch {
		case q.partial == nil && (q.isEncoding() || q.queue == inPaused):
			return fmt.Errorf("sequence %d is encoding or paused, and had no unfinished range", q.id)
		case q.partial != nil && q.queue != inWaiting && len(q.blocks) < s.cfg.blocksFor(q.prefillGoal):
			return fmt.Errorf("sequence %d: %d blocks are reserved for %d tokens", q.id, len(q.blocks), q.prefillGoal)
		case q.queue == inRunning && q.isEncoding() && waits:
			return fmt.Errorf("sequence %d runs and can compute nothing", q.id)
		case q.queue != inWaiting && q.awaitsTransfer() && (q.planned != 0 || !q.isEncoding() || q.queue == inRunning && !q.fetchOnly):
			return fmt.Errorf("sequence %d awaits a transfer, and %d tokens are planned", q.id, q.planned)
		case q.queue == inPaused && (q.planned != 0 || q.fetched != 0 || q.awaitsToken || !q.isEncoding() && waits):
			return fmt.Errorf("sequence %d should not pause", q.id)
		case q.fetchOnly && (q.queue != inRunning || q.fetched == 0):
			return fmt.Errorf("sequence %d should fetch %d tokens", q.id, q.fetched)
		}
		if q.isEncoding() {
			want.encoding[q.queue]++
		}
		if q.queue == inPaused {
			want.reserved += len(q.blocks) - s.cfg.blocksFor(q.computed)
			if !waits {
				want.resumable++
			}
		}
	}
	if want != s.partial {
		return fmt.Errorf("counts are %+v, should be %+v", s.partial, want)
	}
	return nil
}

func (s *Scheduler) checkTable(q *seqState) error {
	parent, tip := int32(noBlock), kv.SeqHash(0)
	for i, b := range q.blocks {
		blk := &s.pool.blocks[b]
		if i >= q.registered {
			if blk.state != statePrivate {
				return fmt.Errorf("block %d is at %d, where none is registered", b, i)
			}
			continue
		}
		c := q.describeBlock(i, parent, tip)
		if own, ok := s.pool.findBlock(&c); !ok || own != b {
			return fmt.Errorf("block %d at %d has other content in the index", b, i)
		}
		parent, tip = b, c.seq
	}
	if tip != q.tip {
		return fmt.Errorf("tip is %#x, should be %#x", q.tip, tip)
	}
	return nil
}

// checkHolders: a block's reference count is its number of occurrences in tables, so a block is held at
// least as often as one which extends it.
func (s *Scheduler) checkHolders() error {
	refs := make([]int32, len(s.pool.blocks))
	for _, q := range s.holders() {
		for _, b := range q.blocks {
			refs[b]++
		}
	}
	for b := range s.pool.blocks {
		blk := &s.pool.blocks[b]
		if blk.refs != refs[b] {
			return fmt.Errorf("block %d counts %d holders, has %d", b, blk.refs, refs[b])
		}
		if blk.state == stateRegistered && blk.parent != noBlock && refs[blk.parent] < blk.refs {
			return fmt.Errorf("block %d is held more often than the one before it, %d", b, blk.parent)
		}
	}
	return nil
}

// checkBlocks: every block is free, held or cached, and counted as such. Free blocks are in the free list,
// cached ones in the LRU list, leaf first. The index contains exactly the registered blocks, each after a
// registered one.
func (p *blockPool) checkBlocks() error {
	if len(p.blocks) > p.capacity {
		return fmt.Errorf("pool has %d blocks of %d", len(p.blocks), p.capacity)
	}
	var held, cached, vacant, indexed, noted int
	for b := range p.blocks {
		blk := &p.blocks[b]
		switch {
		case blk.state == stateFree:
			vacant++
		case blk.refs > 0:
			held++
		case blk.state == stateRegistered:
			cached++
		default:
			return fmt.Errorf("block %d is lost: private and not held", b)
		}
		if blk.hasExtra {
			noted++
		}
		if blk.state != stateRegistered {
			continue
		}
		indexed++
		if err := p.checkRegistered(int32(b)); err != nil {
			return fmt.Errorf("block %d: %w", b, err)
		}
	}
	switch {
	case held != p.used || cached != p.cached:
		return fmt.Errorf("%d blocks are held and %d cached, %d and %d are counted", held, cached, p.used, p.cached)
	case indexed != len(p.index):
		return fmt.Errorf("%d blocks are registered, %d are in the index", indexed, len(p.index))
	case noted != len(p.extras):
		return fmt.Errorf("%d blocks have notes, %d are kept", noted, len(p.extras))
	}
	if err := p.checkFreeList(vacant); err != nil {
		return err
	}
	return p.checkCachedList()
}

func (p *blockPool) checkRegistered(b int32) error {
	blk := &p.blocks[b]
	var tip kv.SeqHash
	if blk.parent != noBlock {
		parent := &p.blocks[blk.parent]
		if parent.state != stateRegistered || parent.index+1 != blk.index {
			return fmt.Errorf("is at %d, and %d before it is not at %d", blk.index, blk.parent, blk.index-1)
		}
		tip = parent.seq
	} else if blk.index != 0 {
		return fmt.Errorf("is at %d, and none is before it", blk.index)
	}
	if own, ok := p.index[blk.seq]; !ok || own != b || kv.ExtendSeq(tip, blk.index, blk.hash) != blk.seq {
		return fmt.Errorf("is not what its name says")
	}
	return nil
}

func (p *blockPool) checkFreeList(want int) error {
	n := 0
	for b := p.freeList; b != noBlock; b = p.blocks[b].next {
		if p.blocks[b].state != stateFree || p.blocks[b].refs != 0 || n == want {
			return fmt.Errorf("block %d should not be in the free list", b)
		}
		n++
	}
	if n != want {
		return fmt.Errorf("%d blocks are free, %d are in the free list", want, n)
	}
	return nil
}

func (p *blockPool) checkCachedList() error {
	n := 0
	seen := make([]bool, len(p.blocks))
	for b := p.oldest; b != noBlock; b = p.blocks[b].next {
		blk := &p.blocks[b]
		switch {
		case n == p.cached, blk.state != stateRegistered, blk.refs != 0:
			return fmt.Errorf("block %d should not be in the order of disuse", b)
		case blk.next == noBlock && p.newest != b, blk.next != noBlock && p.blocks[blk.next].prev != b:
			return fmt.Errorf("block %d is linked one way only", b)
		case blk.parent != noBlock && seen[blk.parent]:
			return fmt.Errorf("block %d would be evicted after the one before it, %d", b, blk.parent)
		}
		seen[b] = true
		n++
	}
	if n != p.cached {
		return fmt.Errorf("%d blocks are in the order of disuse, %d are counted", n, p.cached)
	}
	return nil
}
