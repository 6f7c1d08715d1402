package paged

import (
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// FullBlock is what decides the K and V of a full block, except for the blocks before it.
type FullBlock struct {
	Name   kv.SeqHash
	Parent kv.SeqHash // names the block before it; 0 for the first one of a sequence
	Hash   kv.BlockHash
	Index  uint32 // in its sequence
	Salt   kv.Salt
	Tokens []kv.Token
	// Media are the objects which overlap the block, in a fixed order. Start and End are positions in the sequence.
	Media []kv.Media
}

// NoParent stands for the block before the first one of a sequence.
const NoParent = int32(noBlock)

// BlockObserver is told of blocks which are registered. The scheduler calls it within its methods, so it must not call
// the scheduler.
type BlockObserver interface {
	// BlockRegistered says that physical block b is registered. parent is the physical block before it, which is
	// registered too, or NoParent. The slices of content are the observer's.
	BlockRegistered(b, parent int32, content FullBlock)
}

// describe returns the content with slices of its own.
func (c *blockContent) describe() FullBlock {
	return FullBlock{
		Name: c.seq, Parent: c.parentSeq, Hash: c.hash, Index: c.index, Salt: c.salt,
		Tokens: slices.Clone(c.tokens), Media: c.shownMedia(),
	}
}

// IsRegistered reports whether physical block b is the registered block with a name. Between two calls of Step nothing
// else is written to a block which was registered.
func (s *Scheduler) IsRegistered(b int32, name kv.SeqHash) bool {
	if b < 0 || int(b) >= len(s.pool.blocks) {
		return false
	}
	blk := &s.pool.blocks[b]
	return blk.state == stateRegistered && blk.seq == name
}

// AppendFullBlocks appends the blocks of a sequence which could be cached when it is added: the full ones, but not the
// block of its last token. A scheduler registers them with equal content. It returns *fault.Error of code Internal for a block
// size which kv refuses.
func AppendFullBlocks(dst []FullBlock, seq *Sequence, blockSize int) ([]FullBlock, error) {
	hasher, err := kv.NewHasher(blockSize, seq.Salt)
	if err != nil {
		return dst, fault.New(fault.Internal, "paged: hasher: %w", err)
	}
	q := &seqState{salt: seq.Salt, hasher: hasher, media: canonicalMedia(seq.Media), tokens: seq.Tokens}
	tip := kv.SeqHash(0)
	for i := range (len(q.tokens) - 1) / blockSize {
		c := q.describeBlock(i, noBlock, tip)
		dst, tip = append(dst, c.describe()), c.seq
	}
	return dst, nil
}
