package poolindex

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Access lists of blocks have a section of a snapshot for themselves, which is only there if there are some, and
// which a router must know: without it too many workers could attach the blocks. See docs/format/snapshot.md, "Pool
// access".
const (
	listsVersion = 1

	attachedSize = poolIDSize + 4             // pool, workers
	listSize     = poolIDSize + 4 + 4 + 4 + 8 // pool, number, workers, blocks, and one block
)

// HasLists reports whether AppendLists has something to say.
func (t *Table) HasLists() bool {
	for i := range t.pools {
		if len(t.pools[i].attached) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(t.lists, func(l accessList) bool { return l.blocks > 0 })
}

// AppendLists appends the access lists of all blocks, and the workers which attached pools by moving blocks, to
// dst. Equal tables give equal bytes.
func (t *Table) AppendLists(dst []byte) []byte {
	le := binary.LittleEndian
	dst = append(dst, listsVersion)
	pools := slices.DeleteFunc(t.AppendPools(nil), func(p PoolStatus) bool { return len(p.Attached) == 0 })
	dst = le.AppendUint32(dst, uint32(len(pools)))
	for _, p := range pools {
		dst = appendWorkers(le.AppendUint32(dst, uint32(p.ID)), p.Attached)
	}
	blocks := make([][]kv.SeqHash, len(t.lists))
	for i := range t.entries {
		if e := &t.entries[i]; e.state != 0 && e.list != noList {
			blocks[e.list] = append(blocks[e.list], e.seq)
		}
	}
	var ids []listID
	for i := range t.lists {
		if len(blocks[i]) > 0 {
			ids = append(ids, listID(i))
		}
	}
	slices.SortFunc(ids, func(a, b listID) int {
		return cmp.Or(cmp.Compare(t.lists[a].share.Pool(), t.lists[b].share.Pool()), cmp.Compare(a, b))
	})
	dst = le.AppendUint32(dst, uint32(len(ids)))
	for _, id := range ids {
		l := &t.lists[id]
		dst = le.AppendUint32(dst, uint32(l.share.Pool()))
		dst = le.AppendUint32(dst, uint32(id)+1)
		dst = appendWorkers(dst, l.workers)
		slices.Sort(blocks[id])
		dst = le.AppendUint32(dst, uint32(len(blocks[id])))
		for _, seq := range blocks[id] {
			dst = le.AppendUint64(dst, uint64(seq))
		}
	}
	return dst
}

func appendWorkers(dst []byte, workers []kv.Worker) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(workers)))
	for _, w := range workers {
		dst = appendWorker(dst, w)
	}
	return dst
}

// LoadLists sets access lists from the output of AppendLists, in a table which LoadSnapshot has just filled. The
// prefix index of the same snapshot has the blocks in their shares already. It skips blocks which the table does
// not know: they were beyond its bounds. After an error the table must not be used.
func (t *Table) LoadLists(data []byte) error {
	if err := t.readLists(snapshotReader{data}); err != nil {
		return fmt.Errorf("poolindex: load access lists of %d bytes: %w", len(data), err)
	}
	return nil
}

func (t *Table) readLists(r snapshotReader) error {
	version, err := r.readByte()
	if err != nil {
		return err
	}
	if version != listsVersion {
		return fmt.Errorf("%w %d", ErrVersion, version)
	}
	if err := t.readAttached(&r); err != nil {
		return err
	}
	n, err := r.readCount(listSize)
	if err != nil {
		return err
	}
	var last kv.PoolShare
	for range n {
		share, err := t.readList(&r)
		if err != nil {
			return err
		}
		if cmp.Or(cmp.Compare(share.Pool(), last.Pool()), cmp.Compare(share, last)) <= 0 {
			return errors.New("access lists are not in order")
		}
		last = share
	}
	if len(r.data) > 0 {
		return fmt.Errorf("%d bytes too many", len(r.data))
	}
	for i := range t.lists {
		if t.lists[i].share == 0 {
			t.freeLists = append(t.freeLists, listID(i))
		}
	}
	return nil
}

// readAttached reads which workers attached which pools.
func (t *Table) readAttached(r *snapshotReader) error {
	n, err := r.readCount(attachedSize)
	if err != nil {
		return err
	}
	last := int64(-1)
	for range n {
		id, err := r.readUint32()
		if err != nil {
			return err
		}
		workers, err := r.readWorkers()
		if err != nil {
			return err
		}
		if int64(id) <= last || len(workers) == 0 {
			return errors.New("attached pools are not in order")
		}
		last = int64(id)
		if slot := t.findOrAddPool(kv.PoolID(id)); slot >= 0 {
			t.pools[slot].attached, t.pools[slot].indexed = workers, true
		}
	}
	return nil
}

// readList reads one access list and its blocks.
func (t *Table) readList(r *snapshotReader) (kv.PoolShare, error) {
	pool, err := r.readUint32()
	if err != nil {
		return 0, err
	}
	number, err := r.readUint32()
	if err != nil {
		return 0, err
	}
	workers, err := r.readWorkers()
	if err != nil {
		return 0, err
	}
	n, err := r.readCount(hashSize)
	if err != nil {
		return 0, err
	}
	id, key := listID(number)-1, listKey(kv.PoolID(pool), workers)
	for int(id) >= len(t.lists) && id < maxLists {
		t.lists = append(t.lists, accessList{})
	}
	_, twice := t.byList[key]
	if number == 0 || number > maxLists || n == 0 || twice || t.lists[id].share != 0 {
		return 0, fmt.Errorf("access list %d of pool %d, with %d blocks", number, pool, n)
	}
	t.addList(id, kv.PoolID(pool), workers, key)
	slot, known := t.byID[kv.PoolID(pool)]
	var last kv.SeqHash
	for i := range n {
		hash, err := r.readUint64()
		if err != nil {
			return 0, err
		}
		seq := kv.SeqHash(hash)
		if i > 0 && seq <= last {
			return 0, errors.New("blocks of an access list are not in order")
		}
		last = seq
		if !known {
			continue
		}
		if err := t.loadListed(slot, seq, id); err != nil {
			return 0, err
		}
	}
	return t.lists[id].share, nil
}

func (t *Table) loadListed(pool int32, seq kv.SeqHash, id listID) error {
	at := t.findEntry(pool, seq)
	if at == noEntry {
		return nil
	}
	e := &t.entries[at]
	if e.list != noList || e.state == kv.Evicted {
		return fmt.Errorf("block %x, which is %v, has an access list, or two", uint64(seq), e.state)
	}
	t.setList(e, id)
	return nil
}

// readWorkers reads a list of at most MaxAccess workers, ascending.
func (r *snapshotReader) readWorkers() ([]kv.Worker, error) {
	n, err := r.readCount(nameSize)
	if err != nil {
		return nil, err
	}
	if n > MaxAccess {
		return nil, fmt.Errorf("%d workers", n)
	}
	workers := make([]kv.Worker, 0, n)
	for range n {
		w, err := r.readWorker()
		if err != nil {
			return nil, err
		}
		if k := len(workers); k > 0 && w.Compare(workers[k-1]) <= 0 {
			return nil, errors.New("workers are not in order")
		}
		workers = append(workers, w)
	}
	return workers, nil
}
