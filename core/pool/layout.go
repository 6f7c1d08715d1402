package pool

import (
	"math/bits"
	"sort"
)

// Places of the tables, in bytes from the begin of the memory. The others follow from the number of blocks.
const (
	ownersAt = 4096
	accessAt = 8192
	indexAt  = 12288
)

// Sizes of the tables.
const (
	ownerSize   = 64 // bytes
	maxOwners   = 48 // one bit each in the pins of an entry
	maxAllowed  = (indexAt - accessAt) / 8
	indexWindow = 32 // words in which the entry of a name can be
	historySize = 128
	historyWays = 8 // records in which an evicted name can be
	pageSize    = 4096
	lineSize    = 64
)

// Limits of a pool.
const (
	maxBlocks     = 1 << 23 // an index has 24 bits in a word of the index
	maxTokens     = 1 << 16 // of a block
	maxBlockBytes = 1 << 40
)

// layout says where things are in the memory. It follows from the numbers of blocks, tokens and bytes.
type layout struct {
	blocks, tokens int
	blockBytes     int // bytes of a block's K and V
	stride         int // from one block to the next, in bytes
	entrySize      int
	indexWords     int // a power of two
	historySets    int // a power of two
	historyAt      int
	entriesAt      int
	dataAt         int
}

// layOut returns the layout of a pool within limits, and its size in bytes. The layout is only valid if the memory has
// that size, because an int might not hold it.
func layOut(blocks, tokens, blockBytes uint64) (l layout, size uint64) {
	entrySize := roundUp(recordAt+maxRecord(tokens), lineSize)
	indexWords := powerOfTwo(max(4*blocks, 2*indexWindow))
	historySets := powerOfTwo(max(blocks/historyWays, 1))
	stride := roundUp(blockBytes, lineSize)
	historyAt := indexAt + 8*indexWords
	entriesAt := historyAt + historySets*historyWays*historySize
	dataAt := roundUp(entriesAt+blocks*entrySize, pageSize)
	return layout{
		blocks: int(blocks), tokens: int(tokens), blockBytes: int(blockBytes), stride: int(stride), entrySize: int(entrySize),
		indexWords: int(indexWords), historySets: int(historySets),
		historyAt: int(historyAt), entriesAt: int(entriesAt), dataAt: int(dataAt),
	}, dataAt + blocks*stride
}

// fitLayout returns the layout with the most blocks for so many bytes, and 0 blocks if not one fits.
func fitLayout(size, tokens, blockBytes uint64) layout {
	limit := int(min(size/blockBytes, maxBlocks))
	n := sort.Search(limit, func(i int) bool {
		_, need := layOut(uint64(i)+1, tokens, blockBytes)
		return need > size
	})
	l, _ := layOut(uint64(n), tokens, blockBytes)
	return l
}

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

func powerOfTwo(n uint64) uint64 { return 1 << bits.Len64(n-1) }

func ownerAt(owner int) int { return ownersAt + owner*ownerSize }

func (l *layout) entryAt(entry int32) int { return l.entriesAt + int(entry)*l.entrySize }

func (l *layout) blockAt(entry int32) int { return l.dataAt + int(entry)*l.stride }
