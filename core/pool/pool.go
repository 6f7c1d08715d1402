// Package pool is a pool of KV blocks in memory which several processes share: an allocator and a directory in the shared
// bytes themselves, without a server.
//
// A [View] is one process's view of it. It is not safe for concurrent use, and has no goroutine, clock or I/O: a shell
// gives it the [Memory] and the time. docs/format/pool.md has the bytes.
//
//	p, err := pool.Open(memory, cfg)         // after pool.Format, by the first process
//	err = p.Join(now, worker)                // and p.Renew and p.Reclaim from time to time
//	w, evicted, err := p.Reserve(content, …) // local → in transit
//	err = p.Write(now, &w, chunk)            // for each chunk
//	err = p.Publish(&w)                      // in transit → pooled
//	found, ok := p.Acquire(content)          // in this or another process
//	err = p.Read(found.Ref, dst)             // a copy; or attention in place, and p.Verify(found.Ref) after it
//	p.Release(found.Ref)
//
// # What is in the memory
//
// Blocks of equal size, and for each an entry. The entry is the only truth about its block: it is allocated by a change of
// its state, so a process which dies cannot leak memory. The index, which finds entries by name, is a hint. The history
// keeps the metadata of blocks which were evicted.
//
// # Processes which die, or are paused
//
// Every change which others rely on is one compare-and-swap of a word with a generation or an epoch. A process can be
// killed between any two accesses: an entry which it had reserved is dropped, and its pins are taken back, when another
// process sees that its life did not change for a lease. If it was only paused, its life word has another epoch, and its
// compare-and-swaps fail.
//
// Ordinary stores of a paused process cannot be held up: when it goes on, it may write a chunk to a block, or words to an
// entry, which are another's by then. So a reader believes nothing but checksums. That of an entry covers its generation,
// its content and the checksum of its block. A reader compares the content with what it wants, and computes the checksum
// of the block after it has used it.
//
// # Hostile memory
//
// Another process can write anything anywhere. No content of the memory makes a method access memory outside of the pool,
// or loop without end while it does not change, and none is taken for a block which it is not: the identity of a block is a
// SHA-256. A process which computes checksums for other K and V cannot be told from one which computed them.
package pool

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// What methods say of a block or an owner. They are compared with errors.Is.
var (
	// ErrEnded: the lease of this owner was ended, or it never joined, or the pool is another one by now.
	ErrEnded = errors.New("pool: this process is no owner, or its lease has ended")
	// ErrExists: the block is pooled, or in transit by another owner.
	ErrExists = errors.New("pool: the block is in the pool, or on its way there")
	// ErrFull: all blocks are pinned or in transit.
	ErrFull = errors.New("pool: all blocks are in use")
	// ErrGone: the block was evicted, or is not acquired.
	ErrGone = errors.New("pool: the block is gone")
	// ErrDamaged: the block is not what was published. It was evicted; see [View.TakeDamaged].
	ErrDamaged = errors.New("pool: the block is damaged")
)

// View is one process's view of a pool.
type View struct {
	data       Data
	words      Words
	lay        layout
	generation uint64
	lease      time.Duration
	recorder

	owner     int      // valid if life is not 0
	life      lifeWord // 0: no owner
	worker    kv.Worker
	renewed   kv.Mono
	sightings [maxOwners]sighting
	joins     uint32  // how often it joined
	holds     []int32 // how often this owner has acquired each entry

	have       []byte // scratch: a record
	chunk      []byte
	candidates []candidate
	scanFrom   int32      // where the next search for room begins
	used       kv.SeqHash // the last block which was published or was there already, and its tick
	tick       uint64
	damaged    []EvictedBlock // see TakeDamaged
}

// Open returns a view of a pool. It is NotFound if the memory is no pool, Conflict if the pool is for other blocks, of
// another size or of another version, and PoolLost if its superblock is damaged. It changes nothing.
func Open(m Memory, cfg Config) (*View, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	h, err := readHeader(m)
	if err != nil {
		return nil, err
	}
	l := &h.layout
	if h.identity != cfg.digestIdentity() || l.tokens != cfg.BlockTokens || l.blockBytes != cfg.BlockTokens*cfg.TokenBytes {
		return nil, fault.New(fault.Conflict, "pool: the pool is for blocks of another model, build or size: give each its own pool, or remove the file if no worker uses it")
	}
	return &View{
		data: m.Data, words: m.Words, lay: h.layout, generation: h.generation, lease: h.lease, recorder: newRecorder(h.identity, l.tokens),
		holds: make([]int32, l.blocks), have: make([]byte, 0, headBytes+int(maxRecord(uint64(l.tokens)))),
		chunk: make([]byte, min(ChunkBytes, l.blockBytes)), candidates: make([]candidate, 0, maxCandidates+1),
	}, nil
}

// Generation returns the generation of the pool as 16 hex digits: processes whose pools have two generations share nothing,
// whatever the pools are called.
func (p *View) Generation() string { return fmt.Sprintf("%016x", p.generation) }

// Blocks returns how many blocks the pool has room for.
func (p *View) Blocks() int { return p.lay.blocks }

// BlockBytes returns the size of a block's K and V in bytes.
func (p *View) BlockBytes() int { return p.lay.blockBytes }

// Lease returns for how long an owner need not renew.
func (p *View) Lease() time.Duration { return p.lease }

// BlockRef names a block which this owner has acquired.
type BlockRef struct {
	Entry      int32
	Generation uint32

	sum   uint64       // of its data
	joins uint32       // View.joins
	block EvictedBlock // what it is if it turns out to be damaged
}

// BlockAt returns where the K and V of a block are, in bytes from the begin of the memory.
func (p *View) BlockAt(ref BlockRef) int { return p.lay.blockAt(ref.Entry) }

// nextTick returns a number which grows with each use of a block in the pool. Two processes may get the same one.
func (p *View) nextTick() uint64 {
	tick := p.words.Load(wordTick) + 1
	p.words.Store(wordTick, tick)
	return tick
}

// touchEntry makes a block of an index in its sequence the most recently used one as of a tick. Of blocks with one tick, the
// last of a sequence is the oldest.
func (p *View) touchEntry(e int32, tick uint64, index uint32) {
	p.words.Store(p.lay.entryAt(e)+wordUsed, tick<<16|(1<<16-1-min(uint64(index), 1<<16-1)))
}
