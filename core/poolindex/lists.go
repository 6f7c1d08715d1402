package poolindex

import (
	"encoding/binary"
	"slices"

	"penstock/core/kv"
)

// maxLists bounds the access lists of blocks, of all pools.
const maxLists = 4096

// listID is the index of an access list in Table.lists, or noList.
type listID int32

const noList listID = -1

// accessList is the workers which can attach some blocks of a pool. The prefix index keeps these blocks in a
// share of the pool. Its slot is vacant if share is 0.
type accessList struct {
	share   kv.PoolShare
	workers []kv.Worker // ascending
	blocks  int
}

// sortedAccess returns the list which is kept of an access list.
func sortedAccess(access []kv.Worker) []kv.Worker {
	list := slices.Clone(access[:min(len(access), MaxAccess)])
	slices.SortFunc(list, kv.Worker.Compare)
	return slices.Compact(list)
}

// listKey identifies a sorted access list of a pool.
func listKey(pool kv.PoolID, workers []kv.Worker) string {
	key := binary.LittleEndian.AppendUint32(nil, uint32(pool))
	for _, w := range workers {
		key = appendWorker(key, w)
	}
	return string(key)
}

// findOrAddList returns the id of a sorted access list of a pool, and appends the access to its share if it is
// new. ok is false if there are too many lists.
func (t *Table) findOrAddList(pool int32, workers []kv.Worker, dst []Effect) (id listID, effects []Effect, ok bool) {
	p := &t.pools[pool]
	key := listKey(p.id, workers)
	if id, ok := t.byList[key]; ok {
		return id, dst, true
	}
	switch n := len(t.freeLists); {
	case n > 0:
		id, t.freeLists = t.freeLists[n-1], t.freeLists[:n-1]
	case len(t.lists) == maxLists:
		return noList, dst, false
	default:
		id = listID(len(t.lists))
		t.lists = append(t.lists, accessList{})
	}
	t.addList(id, p.id, workers, key)
	return id, append(dst, t.shareAccess(p, &t.lists[id])), true
}

func (t *Table) addList(id listID, pool kv.PoolID, workers []kv.Worker, key string) {
	t.lists[id] = accessList{share: pool.Share(uint32(id) + 1), workers: workers}
	t.byList[key] = id
	t.unusedLists = append(t.unusedLists, id)
}

// setList gives a block an access list, or noList.
func (t *Table) setList(e *poolEntry, id listID) {
	if e.list == id {
		return
	}
	if e.list != noList {
		if l := &t.lists[e.list]; l.blocks == 1 {
			t.unusedLists = append(t.unusedLists, e.list)
		}
		t.lists[e.list].blocks--
	}
	if e.list = id; id != noList {
		t.lists[id].blocks++
	}
}

// dropUnusedLists forgets the access lists which no block has any more, and has the prefix index forget pools which
// were released.
func (t *Table) dropUnusedLists(dst []Effect) []Effect {
	for _, id := range t.releasedPools {
		if _, used := t.byID[id]; !used {
			dst = append(dst, Effect{Kind: DropPool, Pool: id.Share(0)})
		}
	}
	t.releasedPools = t.releasedPools[:0]
	for _, id := range t.unusedLists {
		l := &t.lists[id]
		if l.blocks > 0 || l.share == 0 {
			continue
		}
		dst = append(dst, Effect{Kind: DropPool, Pool: l.share})
		delete(t.byList, listKey(l.share.Pool(), l.workers))
		*l = accessList{}
		t.freeLists = append(t.freeLists, id)
	}
	t.unusedLists = t.unusedLists[:0]
	return dst
}

// shareOf returns the share of a pool in which the prefix index keeps a block.
func (t *Table) shareOf(e *poolEntry) kv.PoolShare {
	if e.list != noList {
		return t.lists[e.list].share
	}
	return t.pools[e.pool].id.Share(0)
}

// shareAccess returns the effect which sets who can attach the blocks with access list l: the workers on the
// list which can attach the pool, as far as that is known.
func (t *Table) shareAccess(p *poolState, l *accessList) Effect {
	workers := slices.Clone(l.workers)
	if p.accessKnown {
		workers = slices.DeleteFunc(workers, func(w kv.Worker) bool {
			_, ok := slices.BinarySearchFunc(p.access, w, kv.Worker.Compare)
			return !ok
		})
	}
	return Effect{Kind: SetAccess, Pool: l.share, Access: workers}
}

// attachSender records that a worker which moves blocks into a pool has attached it. That counts while the
// workers which can attach the pool are not known otherwise. The worker which has moved nothing for longest makes room.
func (t *Table) attachSender(pool int32, w kv.Worker, dst []Effect) []Effect {
	p := &t.pools[pool]
	if n := len(p.attached); n > 0 && p.attached[n-1] == w {
		return dst
	}
	at := slices.Index(p.attached, w)
	known := at >= 0
	if !known && len(p.attached) == MaxAccess {
		at = 0
	}
	if at >= 0 {
		p.attached = slices.Delete(p.attached, at, at+1)
	}
	if p.attached = append(p.attached, w); known {
		return dst
	}
	return p.appendAttached(dst)
}

// appendAttached appends that the workers which have attached the pool can attach it, as far as that counts.
func (p *poolState) appendAttached(dst []Effect) []Effect {
	if p.accessKnown {
		return dst
	}
	p.indexed = true
	return append(dst, Effect{Kind: SetAccess, Pool: p.id.Share(0), Access: p.attachedWorkers()})
}

// attachedWorkers returns the workers which have attached the pool, ascending.
func (p *poolState) attachedWorkers() []kv.Worker {
	workers := slices.Clone(p.attached)
	slices.SortFunc(workers, kv.Worker.Compare)
	return workers
}

// DetachWorker records that w, which ended or restarted, has attached no pools, and appends the changes of the prefix
// index to dst. The blocks which it moved stay.
func (t *Table) DetachWorker(w kv.Worker, dst []Effect) []Effect {
	for i := range t.pools {
		p := &t.pools[i]
		at := slices.Index(p.attached, w)
		if at < 0 {
			continue
		}
		p.attached = slices.Delete(p.attached, at, at+1)
		dst = p.appendAttached(dst)
		t.releasePool(int32(i))
	}
	return t.dropUnusedLists(dst)
}
