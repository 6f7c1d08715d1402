package pool

import (
	"encoding/binary"
	"strconv"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Offsets of the words of the superblock.
const (
	wordMagic      = 0
	wordVersion    = 8
	wordGeneration = 16
	wordSize       = 24
	wordBlocks     = 32
	wordTokens     = 40
	wordBlockBytes = 48
	wordLease      = 56
	wordIdentity   = 64 // four words
	wordHeaderSum  = 96
	wordTick       = 104
	wordRestricted = 112
)

const (
	// poolMagic is "penspool", little-endian.
	poolMagic   = 0x6c6f6f70736e6570
	poolVersion = 1
)

// Config says what blocks a pool has. All processes of a pool have an equal Config.
type Config struct {
	// BlockTokens is the number of tokens of a block, and TokenBytes the bytes of one token in all layers.
	BlockTokens, TokenBytes int
	// Layout, Type and Numerics are as in docs/format/kv-block.md.
	Layout, Type, Numerics string
	// Lease is for how long an owner is not taken for dead while it does not renew. The process which formats the pool
	// decides. Default: 3 s.
	Lease time.Duration
}

// Bounds of Config.Lease.
const (
	minLease     = time.Millisecond
	maxLease     = time.Hour
	defaultLease = 3 * time.Second
)

// validate returns what is wrong with a Config, as *fault.Error of code Invalid.
func (c *Config) validate() error {
	switch {
	case c.BlockTokens < 1 || c.BlockTokens > maxTokens:
		return fault.New(fault.Invalid, "pool: a block of %d tokens: between 1 and %d are taken", c.BlockTokens, maxTokens)
	case c.TokenBytes < 1 || uint64(c.TokenBytes) > maxBlockBytes/maxTokens:
		return fault.New(fault.Invalid, "pool: a token of %d bytes: between 1 and %d are taken", c.TokenBytes, maxBlockBytes/maxTokens)
	case c.Lease != 0 && (c.Lease < minLease || c.Lease > maxLease):
		return fault.New(fault.Invalid, "pool: a lease of %v: between %v and %v are taken", c.Lease, minLease, maxLease)
	}
	return nil
}

// digestIdentity returns what must be equal for two processes to use each other's blocks.
func (c *Config) digestIdentity() kv.Digest {
	return digestTexts("penstock pool\x00", strconv.Itoa(c.BlockTokens), strconv.Itoa(c.TokenBytes), c.Layout, c.Type, c.Numerics)
}

// Format makes memory an empty pool, unless it is a pool already, which is a Conflict. The caller holds a lock which
// other processes that format this memory take too, and gives a random generation, which is not 0. A process which is
// killed meanwhile leaves memory which is no pool, and can be formatted again.
func Format(m Memory, cfg Config, generation uint64) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	if m.Size < pageSize || generation == 0 {
		return fault.New(fault.Invalid, "pool: %d bytes are too few, or the generation is 0", m.Size)
	}
	if m.Words.Load(wordMagic) == poolMagic {
		return fault.New(fault.Conflict, "pool: the memory is a pool already")
	}
	blockBytes := uint64(cfg.BlockTokens) * uint64(cfg.TokenBytes)
	l := fitLayout(uint64(m.Size), uint64(cfg.BlockTokens), blockBytes)
	if l.blocks == 0 {
		return fault.New(fault.Invalid, "pool: %d bytes hold no block of %d bytes: give the pool more", m.Size, blockBytes)
	}
	w := m.Words
	for at := 0; at < l.entriesAt; at += 8 {
		w.Store(at, 0)
	}
	for i := range maxOwners {
		w.Store(ownerAt(i), uint64(packLife(lifeFree, uint32(generation), 0)))
	}
	for i := range int32(l.blocks) {
		at := l.entryAt(i)
		w.Store(at+wordState, uint64(packEntry(entryVacant, 0, 0, uint32(generation))))
		w.Store(at+wordPins, 0)
		w.Store(at+wordUsed, 0)
	}
	lease := cfg.Lease
	if lease == 0 {
		lease = defaultLease
	}
	w.Store(wordVersion, poolVersion)
	w.Store(wordGeneration, generation)
	w.Store(wordSize, uint64(m.Size))
	w.Store(wordBlocks, uint64(l.blocks))
	w.Store(wordTokens, uint64(cfg.BlockTokens))
	w.Store(wordBlockBytes, blockBytes)
	w.Store(wordLease, uint64(lease))
	identity := cfg.digestIdentity()
	storeDigest(w, wordIdentity, &identity)
	w.Store(wordHeaderSum, sumHeader(w))
	w.Store(wordMagic, poolMagic)
	return nil
}

// sumHeader returns the checksum of the superblock: XXH3-64 of its words from the version to the identity.
func sumHeader(w Words) uint64 {
	var b [wordHeaderSum - wordVersion]byte
	for at := wordVersion; at < wordHeaderSum; at += 8 {
		binary.LittleEndian.PutUint64(b[at-wordVersion:], w.Load(at))
	}
	return kv.ContentHash(poolVersion, b[:])
}

// header is the content of a superblock.
type header struct {
	layout     layout
	generation uint64
	lease      time.Duration
	identity   kv.Digest
}

// readHeader reads a superblock which may have any content. The layout which it returns is within the memory.
func readHeader(m Memory) (h header, err error) {
	if m.Size < pageSize || m.Words.Load(wordMagic) != poolMagic {
		return h, fault.New(fault.NotFound, "pool: the memory is no pool")
	}
	w := m.Words
	if v := w.Load(wordVersion); v != poolVersion {
		return h, fault.New(fault.Conflict, "pool: the pool has version %d, this build reads %d", v, poolVersion)
	}
	if w.Load(wordHeaderSum) != sumHeader(w) {
		return h, fault.New(fault.PoolLost, "pool: the superblock is damaged: remove the pool")
	}
	size, blocks, tokens, blockBytes, lease := w.Load(wordSize), w.Load(wordBlocks), w.Load(wordTokens), w.Load(wordBlockBytes), w.Load(wordLease)
	if size != uint64(m.Size) {
		return h, fault.New(fault.Conflict, "pool: the pool has %d bytes, its memory %d: give it the size with which it was made, or remove it", size, m.Size)
	}
	h.generation, h.lease = w.Load(wordGeneration), time.Duration(lease)
	valid := blocks >= 1 && blocks <= maxBlocks && tokens >= 1 && tokens <= maxTokens && blockBytes >= 1 && blockBytes <= maxBlockBytes &&
		h.generation != 0 && lease >= uint64(minLease) && lease <= uint64(maxLease)
	if valid {
		var need uint64
		h.layout, need = layOut(blocks, tokens, blockBytes)
		valid = need <= size
	}
	if !valid {
		return header{}, fault.New(fault.PoolLost, "pool: the superblock is damaged: remove the pool")
	}
	h.identity = loadDigest(w, wordIdentity)
	return h, nil
}

func storeDigest(w Words, at int, d *kv.Digest) {
	for i := 0; i < len(d); i += 8 {
		w.Store(at+i, binary.LittleEndian.Uint64(d[i:]))
	}
}

func loadDigest(w Words, at int) (d kv.Digest) {
	for i := 0; i < len(d); i += 8 {
		binary.LittleEndian.PutUint64(d[i:], w.Load(at+i))
	}
	return d
}
