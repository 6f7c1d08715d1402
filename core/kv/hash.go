package kv

import (
	"encoding/binary"
	"errors"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Seed is the seed of every hash before salts. It is the one which other KV routers use, so that hashes can
// be compared with theirs.
const Seed uint64 = 1337

// Salt separates caches which must never share blocks even if the tokens are equal. The zero Salt is the
// plain model.
type Salt struct {
	LoRA      string // adapter name; "" is the base model
	Namespace string // cache namespace or client-supplied cache salt; "" is the shared one
}

// Seed returns the seed of the block hashes under this salt: Seed + XXH3(LoRA, seed 0) + XXH3(Namespace, seed
// 1), wrapping; an empty string adds nothing.
func (s Salt) Seed() uint64 {
	seed := Seed
	if s.LoRA != "" {
		seed += xxh3.HashStringSeed(s.LoRA, 0)
	}
	if s.Namespace != "" {
		seed += xxh3.HashStringSeed(s.Namespace, 1)
	}
	return seed
}

// Media is one media object inside a prompt: its content hash and the half-open
// range of token positions [Start, End) that its placeholders fill.
//
// Block hashes contain only Hash. Digest is the object's full-width identity, for packages where a collision
// would show one picture in place of another (core/paged compares it); it is zero where it is unknown, as in
// what engines report.
type Media struct {
	Hash       uint64
	Start, End int
	Digest     Digest
}

// Digest is a SHA-256 over the content of a media object; the zero Digest is none.
type Digest [32]byte

// Hasher turns tokens into block and sequence hashes for one block size and one
// salt. It is a value, safe to copy; the zero value is not usable.
type Hasher struct {
	seed uint64
	size int
}

// ErrBlockSize is returned for a block size that no engine can have.
var ErrBlockSize = errors.New("kv: block size must be between 2 and 65536 tokens")

// NewHasher returns a Hasher for blocks of blockSize tokens under salt.
func NewHasher(blockSize int, salt Salt) (Hasher, error) {
	if blockSize < 2 || blockSize > 65536 {
		return Hasher{}, ErrBlockSize
	}
	return Hasher{seed: salt.Seed(), size: blockSize}, nil
}

// BlockSize returns the number of tokens in a block.
func (h Hasher) BlockSize() int { return h.size }

// AppendBlockHashes appends to dst the hash of every full block of tokens; a shorter tail has none. The hash
// of a block is XXH3-64 over its tokens as little-endian u32 followed, for each distinct media object which
// overlaps it, by the object's hash as little-endian u64, ascending. It allocates only if dst must grow or
// more than a few media objects overlap one block.
func (h Hasher) AppendBlockHashes(dst []BlockHash, tokens []Token, media []Media) []BlockHash {
	n := len(tokens) / h.size
	dst = slices.Grow(dst, n)
	for i := range n {
		block := tokens[i*h.size : (i+1)*h.size]
		dst = append(dst, h.HashBlock(block, i*h.size, media))
	}
	return dst
}

// HashBlock returns the hash of one block: tokens are its content, exactly BlockSize of them, and start is
// the position of the first in its sequence, which determines the overlapping media. It is one element of
// what AppendBlockHashes appends.
func (h Hasher) HashBlock(tokens []Token, start int, media []Media) BlockHash {
	if len(media) > 0 {
		var few [8]uint64
		if hashes := appendOverlapping(few[:0], media, start, start+len(tokens)); len(hashes) > 0 {
			return h.mediaBlock(tokens, hashes)
		}
	}
	return BlockHash(xxh3.HashSeed(littleEndianBytes(tokens), h.seed))
}

// AppendSeqHashes appends to dst the SeqHash of every full block of tokens.
func (h Hasher) AppendSeqHashes(dst []SeqHash, tokens []Token, media []Media) []SeqHash {
	n := len(tokens) / h.size
	dst = slices.Grow(dst, n)
	var parent SeqHash
	for i := range n {
		block := tokens[i*h.size : (i+1)*h.size]
		parent = extendSeq(parent, i == 0, h.HashBlock(block, i*h.size, media))
		dst = append(dst, parent)
	}
	return dst
}

// AppendChain appends to dst the SeqHash of each of blocks, which start a sequence.
func AppendChain(dst []SeqHash, blocks []BlockHash) []SeqHash {
	dst = slices.Grow(dst, len(blocks))
	var parent SeqHash
	for i, b := range blocks {
		parent = extendSeq(parent, i == 0, b)
		dst = append(dst, parent)
	}
	return dst
}

// mediaBlock hashes the concatenation of block and hashes. A block of 512 tokens with 32 media needs no
// allocation; smaller ones do not need to clear the large buffer.
func (h Hasher) mediaBlock(block []Token, hashes []uint64) BlockHash {
	if 4*len(block)+8*len(hashes) <= 320 {
		var small [320]byte
		return h.hashJoined(small[:0], block, hashes)
	}
	var large [4*512 + 8*32]byte
	return h.hashJoined(large[:0], block, hashes)
}

func (h Hasher) hashJoined(buf []byte, block []Token, hashes []uint64) BlockHash {
	buf = append(buf, littleEndianBytes(block)...)
	for _, m := range hashes {
		buf = binary.LittleEndian.AppendUint64(buf, m)
	}
	return BlockHash(xxh3.HashSeed(buf, h.seed))
}

// appendOverlapping appends the distinct hashes of the media which overlap [start, end), ascending.
func appendOverlapping(dst []uint64, media []Media, start, end int) []uint64 {
	for _, m := range media {
		if m.Start < end && m.End > start && m.Start < m.End {
			dst = append(dst, m.Hash)
		}
	}
	slices.Sort(dst)
	return slices.Compact(dst)
}

// ExtendSeq returns the SeqHash of the block after parent: XXH3-64 with the plain seed over parent and block,
// both little-endian u64. start is the block's index in its sequence; at 0 there is no parent and the result
// is the block's own hash, which already includes the salts.
func ExtendSeq(parent SeqHash, start uint32, block BlockHash) SeqHash {
	return extendSeq(parent, start == 0, block)
}

func extendSeq(parent SeqHash, first bool, block BlockHash) SeqHash {
	if first {
		return SeqHash(block)
	}
	var buf [16]byte
	binary.LittleEndian.PutUint64(buf[:8], uint64(parent))
	binary.LittleEndian.PutUint64(buf[8:], uint64(block))
	return SeqHash(xxh3.HashSeed(buf[:], Seed))
}

// littleEndianBytes returns tokens as little-endian bytes, without a copy on little-endian machines.
func littleEndianBytes(tokens []Token) []byte {
	if len(tokens) == 0 {
		return nil
	}
	if isLittleEndian {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
	}
	buf := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
	}
	return buf
}

var isLittleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
