package pool

import (
	"bytes"
	"encoding/binary"

	"penstock/core/kv"
)

// PooledBlock is a block in the pool, as its entry describes it.
type PooledBlock struct {
	// Name is the SeqHash of the prefix which the block ends. It is ExtendSeq of Parent, Index and Hash.
	Name, Parent kv.SeqHash
	Hash         kv.BlockHash
	Index        uint32 // of the block in its sequence
	Label        kv.MoELabel
	Mover        kv.Worker // which has put it into the pool
}

// Offsets in a record; see prepareRecord.
const (
	recordParent = 104
	recordHash   = 112
	recordIndex  = 120
)

// AppendPooled appends the blocks whose entries are among the n from an index on, and returns the index of the entry after
// them: Blocks, at the end of the pool. It skips blocks whose entries are damaged, changes nothing, and does not look at K
// and V. So a caller can list a pool in parts, between which others use it.
func (p *View) AppendPooled(dst []PooledBlock, from, n int) (all []PooledBlock, next int) {
	next = min(from+n, p.lay.blocks)
	for e := int32(from); int(e) < next; e++ {
		word := p.loadEntry(e)
		if word.state() != entryPooled {
			continue
		}
		h, record, ok := p.loadContent(e, word.generation())
		if !ok || len(record) < recordHead || !bytes.HasPrefix(record, p.identity[:]) {
			continue
		}
		b := PooledBlock{
			Name: h.name, Label: h.label, Mover: h.mover,
			Parent: kv.SeqHash(binary.LittleEndian.Uint64(record[recordParent:])),
			Hash:   kv.BlockHash(binary.LittleEndian.Uint64(record[recordHash:])),
			Index:  binary.LittleEndian.Uint32(record[recordIndex:]),
		}
		if b.Name == kv.ExtendSeq(b.Parent, b.Index, b.Hash) && b.Label.IsValid() {
			dst = append(dst, b)
		}
	}
	return dst, next
}

// AppendOwners appends the workers which are owners now, in any order.
func (p *View) AppendOwners(dst []kv.Worker) []kv.Worker {
	for i := range maxOwners {
		life := p.loadLife(i)
		if life.state() != lifeLive {
			continue
		}
		w := kv.Worker{ID: kv.WorkerID(p.words.Load(ownerAt(i) + wordOwnerID)), Rank: uint32(p.words.Load(ownerAt(i) + wordOwnerRank))}
		// An owner which is another by now has other words. Damaged memory can have any.
		if now := p.loadLife(i); now.epoch() == life.epoch() && now.state() == lifeLive && w.ID <= kv.MaxWorkerID {
			dst = append(dst, w)
		}
	}
	return dst
}
