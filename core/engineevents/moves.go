package engineevents

import (
	"cmp"
	"encoding/binary"
	"slices"

	"penstock/core/kv"
)

// The bounds of what a table remembers of blocks in pools.
const (
	maxPooled     = 1 << 18 // blocks; the oldest makes room, and is withdrawn
	maxPooledName = 1 << 21 // hashes of the engine's blocks which make them; again the oldest block makes room
	maxPools      = 256
	maxPooledList = 1024 // access lists
)

// pooledSet remembers which blocks the engine reported in or on its way into memory pools. A block stays in a pool
// when the engine removes it from its own memory, so its engine hashes must be remembered here.
type pooledSet struct {
	bySeq          map[kv.SeqHash]*pooledBlock
	byHash         map[kv.EngineHash]*pooledName // the newest; the others are linked
	nameCount      int
	oldest, newest *pooledBlock
	pools          []namedPool // ascending
	lists          map[string]*pooledAccess
}

// namedPool is a pool into which the engine has moved blocks.
type namedPool struct {
	id     kv.PoolID
	blocks int // remembered; with 0 routers may still know some
}

// pooledBlock is one Penstock block in one pool, the last which the engine named for it.
type pooledBlock struct {
	blockEntry   // its position; without copies
	seq          kv.SeqHash
	names        []pooledName // of the engine's blocks which make it, in order
	state        kv.PoolState // InTransit or Pooled
	pool         kv.PoolID
	access       *pooledAccess // nil: every worker which attached the pool
	label        kv.MoELabel
	older, newer *pooledBlock
}

// pooledName is one of the engine's blocks which make a block in a pool. Blocks which have one in common are linked.
type pooledName struct {
	name         kv.EngineHash
	block        *pooledBlock
	older, newer *pooledName
}

// pooledAccess is an access list, which blocks share.
type pooledAccess struct {
	workers []kv.Worker
	key     string
	blocks  int
}

// applyMoved applies a transition.
func (t *Table) applyMoved(e *Event) {
	p := &t.pooled
	enters := e.Move.To == kv.InTransit || e.Move.To == kv.Pooled
	if enters && (t.buffer.losesMoves || e.Move.HasPool && !t.addPool(e.Move.Pool)) {
		t.stats.RefusedMoves += uint64(len(e.Hashes))
		return
	}
	if len(e.Hashes) == 0 {
		t.movePool(&e.Move)
		return
	}
	var named map[kv.EngineHash]bool
	if t.pagesPerBlock > 1 {
		named = make(map[kv.EngineHash]bool, len(e.Hashes))
		for _, name := range e.Hashes {
			named[name] = true
		}
	}
	var placed []kv.SeqHash
	if e.Move.To == kv.Pooled && len(p.bySeq) > 0 {
		placed = t.placeUnheld(e.Hashes, named)
	}
	for _, name := range e.Hashes {
		blocks := t.blocksWith(name, e.Move.To, named)
		waits := t.orphans.moveBlock(t, name, &e.Move)
		if !waits && len(blocks) == 0 && (named == nil || !t.knowsHash(name)) {
			t.stats.UnknownMoves++
		}
		for i := range blocks {
			t.moveBlock(&blocks[i], &e.Move)
		}
	}
	for _, seq := range placed {
		t.emitRemoved(kv.TierPool, seq)
	}
}

// placeUnheld announces the blocks of a transition which the engine's own memory does not have as stored in the pool,
// and returns them: routers may not know their prefixes any more. After the transition they must be announced as
// removed.
func (t *Table) placeUnheld(names []kv.EngineHash, named map[kv.EngineHash]bool) (placed []kv.SeqHash) {
	var unheld []movedBlock
	for _, name := range names {
		for _, b := range t.blocksWith(name, kv.Pooled, named) {
			if !b.held {
				unheld = append(unheld, b)
			}
		}
	}
	slices.SortStableFunc(unheld, func(a, b movedBlock) int { return cmp.Compare(a.depth, b.depth) })
	for i := range unheld {
		t.emitStored(kv.TierPool, &unheld[i].blockEntry, unheld[i].seq)
		placed = append(placed, unheld[i].seq)
	}
	return placed
}

// knowsHash reports whether an engine hash is of a remembered block.
func (t *Table) knowsHash(name kv.EngineHash) bool {
	return t.findBlock(name) != 0 || t.pooled.byHash[name] != nil
}

// movePool applies a transition of all blocks of a pool.
func (t *Table) movePool(m *kv.PoolMove) {
	if !m.HasPool || m.To != kv.Evicted && m.To != kv.LocalGPU {
		return
	}
	p := &t.pooled
	for b := p.oldest; b != nil; b = b.newer {
		if b.pool == m.Pool {
			p.removeBlock(b)
		}
	}
	t.orphans.forgetMoves(func(of *kv.PoolMove) bool { return of.HasPool && of.Pool == m.Pool })
	t.emitMoved(0, kv.PoolMove{To: m.To, Pool: m.Pool, HasPool: true, OfBlocks: true}, kv.MoELabel{})
}

// movedBlock is a block which a transition names.
type movedBlock struct {
	blockEntry // its position
	seq        kv.SeqHash
	names      []kv.EngineHash // of the engine's blocks which make it; may be missing if it leaves a pool
	held       bool            // the engine's own memory has it
}

// blocksWith returns the blocks which a transition of an engine hash moves: into a pool the block which ends with the
// engine's block, if named has all of its parts; out of a pool all blocks with that part.
func (t *Table) blocksWith(name kv.EngineHash, to kv.PoolState, named map[kv.EngineHash]bool) (blocks []movedBlock) {
	enters := to == kv.InTransit || to == kv.Pooled
	if b, ok := t.storedBlock(name); ok {
		blocks = append(blocks, b)
	}
	stored := len(blocks)
	for n := t.pooled.byHash[name]; n != nil; n = n.older {
		b := n.block
		if enters && (len(blocks) > 0 || b.names[len(b.names)-1].name != name) {
			break // the hash ends no other block: others have it inside
		}
		if stored == 0 || blocks[0].seq != b.seq {
			m := movedBlock{blockEntry: b.blockEntry, seq: b.seq}
			if enters {
				m.names = b.engineHashes()
			}
			blocks = append(blocks, m)
		}
	}
	if named == nil || !enters {
		return blocks
	}
	return slices.DeleteFunc(blocks, func(b movedBlock) bool {
		return slices.ContainsFunc(b.names, func(part kv.EngineHash) bool { return !named[part] })
	})
}

// storedBlock returns the Penstock block which the engine's own memory has and which ends with an engine hash.
func (t *Table) storedBlock(name kv.EngineHash) (m movedBlock, ok bool) {
	id := t.blocks.findID(name)
	if id == 0 || t.blocks.entries.at(id).salt == opaqueSalt {
		return m, false
	}
	b := t.blocks.entries.at(id)
	m = movedBlock{
		blockEntry: blockEntry{prefix: b.prefix, hash: b.hash, depth: b.depth},
		seq:        b.seq(), names: []kv.EngineHash{name}, held: true,
	}
	if t.pagesPerBlock > 1 {
		page := t.pages.findID(name)
		for range t.pagesPerBlock - 1 {
			if page == 0 {
				return m, false
			}
			if page = t.pages.entries.at(page).parent; page != 0 {
				m.names = append(m.names, *t.pages.hashes.at(page))
			}
		}
		slices.Reverse(m.names)
	}
	return m, true
}

// moveBlock remembers and announces the new state of a block. A transition which names no pool or no list leaves
// what was said of them. The pool which was said is announced again: to routers another worker's may be the last.
func (t *Table) moveBlock(b *movedBlock, said *kv.PoolMove) {
	p, m := &t.pooled, *said
	known := p.bySeq[b.seq]
	t.stats.Moves++
	if !m.HasPool && known != nil {
		m.Pool, m.HasPool = known.pool, true
	}
	if m.To == kv.LocalGPU || m.To == kv.Evicted {
		if known != nil && m.Pool == known.pool {
			p.removeBlock(known)
		}
		t.emitMoved(b.seq, kv.PoolMove{To: m.To, Pool: m.Pool, HasPool: m.HasPool, OfBlocks: true}, kv.MoELabel{})
		return
	}
	label := t.labels[b.seq]
	if !m.HasPool {
		m.Access = slices.Clone(m.Access)
		t.emitMoved(b.seq, m, label) // a router may know the pool
		return
	}
	next := pooledBlock{blockEntry: b.blockEntry, seq: b.seq, state: m.To, pool: m.Pool, label: label}
	if known != nil && known.pool == next.pool {
		if next.access = known.access; next.label.Has == 0 {
			next.label = known.label
		}
	}
	if m.Access != nil {
		access, ok := p.findOrAddAccess(m.Access)
		if !ok {
			t.stats.RefusedMoves++
			if known != nil {
				t.withdrawBlock(known)
			}
			return
		}
		next.access, m.Access = access, access.workers
	}
	if next.access != nil {
		next.access.blocks++ // so that the list outlives the block which had it
	}
	if known != nil {
		p.removeBlock(known)
	}
	p.insertBlock(&next, b.names)
	for len(p.bySeq) > maxPooled || p.nameCount > maxPooledName {
		t.withdrawBlock(p.oldest)
	}
	t.emitMoved(b.seq, m, next.label)
}

// withdrawBlock forgets a block in a pool, and announces that it is not there.
func (t *Table) withdrawBlock(b *pooledBlock) {
	t.pooled.removeBlock(b)
	t.emitMoved(b.seq, kv.PoolMove{To: kv.LocalGPU, Pool: b.pool, HasPool: true, OfBlocks: true}, kv.MoELabel{})
}

// addPool remembers that the engine uses a pool. If there are too many, one without blocks makes room. It reports false
// if there is none.
func (t *Table) addPool(id kv.PoolID) bool {
	p := &t.pooled
	if _, known := p.findPool(id); known {
		return true
	}
	if len(p.pools) == maxPools {
		unused := slices.IndexFunc(p.pools, func(n namedPool) bool { return n.blocks == 0 })
		if unused < 0 {
			return false
		}
		t.withdrawPool(p.pools[unused].id) // descriptions will not say it
		p.pools = slices.Delete(p.pools, unused, unused+1)
	}
	at, _ := p.findPool(id)
	p.pools = slices.Insert(p.pools, at, namedPool{id: id})
	return true
}

// findPool returns where a pool is in p.pools, or would be.
func (p *pooledSet) findPool(id kv.PoolID) (at int, known bool) {
	return slices.BinarySearchFunc(p.pools, id, func(n namedPool, id kv.PoolID) int { return cmp.Compare(n.id, id) })
}

// countBlocks adds to the number of blocks in a pool, if it is remembered.
func (p *pooledSet) countBlocks(id kv.PoolID, more int) {
	if at, known := p.findPool(id); known {
		p.pools[at].blocks += more
	}
}

// withdrawPool announces that a pool has nothing of the engine.
func (t *Table) withdrawPool(id kv.PoolID) {
	t.emitMoved(0, kv.PoolMove{To: kv.LocalGPU, Pool: id, HasPool: true, OfBlocks: true}, kv.MoELabel{})
}

// findOrAddAccess returns the shared list with these workers. ok is false if there are too many lists.
func (p *pooledSet) findOrAddAccess(workers []kv.Worker) (a *pooledAccess, ok bool) {
	key := accessKey(workers)
	if a, ok := p.lists[key]; ok {
		return a, true
	}
	if len(p.lists) == maxPooledList {
		return nil, false
	}
	if p.lists == nil {
		p.lists = make(map[string]*pooledAccess)
	}
	a = &pooledAccess{workers: append([]kv.Worker{}, workers...), key: key}
	p.lists[a.key] = a
	return a, true
}

// engineHashes returns the hashes of the engine's blocks which make b.
func (b *pooledBlock) engineHashes() []kv.EngineHash {
	names := make([]kv.EngineHash, len(b.names))
	for i := range b.names {
		names[i] = b.names[i].name
	}
	return names
}

// accessKey identifies an access list.
func accessKey(workers []kv.Worker) string {
	var key []byte
	for _, w := range workers {
		key = binary.LittleEndian.AppendUint64(key, uint64(w.ID))
		key = binary.LittleEndian.AppendUint32(key, w.Rank)
	}
	return string(key)
}

// insertBlock remembers a block, which the engine's blocks with these hashes make, as the newest. Its access list
// counts it already.
func (p *pooledSet) insertBlock(b *pooledBlock, names []kv.EngineHash) {
	if p.bySeq == nil {
		p.bySeq, p.byHash = make(map[kv.SeqHash]*pooledBlock), make(map[kv.EngineHash]*pooledName)
	}
	p.bySeq[b.seq] = b
	p.countBlocks(b.pool, 1)
	b.names = make([]pooledName, len(names))
	for i, name := range names {
		n := &b.names[i]
		*n = pooledName{name: name, block: b, older: p.byHash[name]}
		if n.older != nil {
			n.older.newer = n
		}
		p.byHash[name] = n
	}
	p.nameCount += len(names)
	if b.older = p.newest; b.older != nil {
		b.older.newer = b
	} else {
		p.oldest = b
	}
	p.newest = b
}

// removeBlock forgets a block. b.newer stays, so that a walk can continue.
func (p *pooledSet) removeBlock(b *pooledBlock) {
	delete(p.bySeq, b.seq)
	p.countBlocks(b.pool, -1)
	p.forgetNames(b)
	if b.older != nil {
		b.older.newer = b.newer
	} else {
		p.oldest = b.newer
	}
	if b.newer != nil {
		b.newer.older = b.older
	} else {
		p.newest = b.older
	}
	if a := b.access; a != nil {
		if a.blocks--; a.blocks == 0 {
			delete(p.lists, a.key)
		}
	}
}

// forgetNames forgets the engine hashes of a block.
func (p *pooledSet) forgetNames(b *pooledBlock) {
	for i := range b.names {
		n := &b.names[i]
		if n.older != nil {
			n.older.newer = n.newer
		}
		switch {
		case n.newer != nil:
			n.newer.older = n.older
		case n.older != nil:
			p.byHash[n.name] = n.older
		default:
			delete(p.byHash, n.name)
		}
	}
	p.nameCount -= len(b.names)
	b.names = nil
}

// withdrawPooled forgets all blocks in pools: events of the engine may be missing. The next description withdraws them.
func (t *Table) withdrawPooled() {
	t.pooled = pooledSet{pools: t.pooled.pools}
	for i := range t.pooled.pools {
		t.pooled.pools[i].blocks = 0
	}
	t.orphans.forgetMoves(func(*kv.PoolMove) bool { return true })
}

// restartEngine keeps the blocks which are in pools when the engine restarts: they stay. If the seed of its hashes is
// fixed, the new engine names them as before when they leave. Copies which were not finished never will be.
func (p *pooledSet) restartEngine() {
	for b := p.oldest; b != nil; b = b.newer {
		if b.state == kv.InTransit {
			p.removeBlock(b)
		}
	}
}

// describePooled announces which blocks are in pools because of this engine, and that no others are. Every Cleared
// event is followed by it: such an event ends all doubt about earlier ones, which may have been lost. The blocks are
// first announced as stored in the pool, and afterwards as removed, so that routers learn their prefixes even if no
// worker's own memory has them.
func (t *Table) describePooled() {
	p := &t.pooled
	for i := range p.pools {
		t.withdrawPool(p.pools[i].id)
	}
	placed := t.placePooled()
	for _, b := range p.blocksByMove() {
		m := kv.PoolMove{To: b.state, Pool: b.pool, HasPool: true, OfBlocks: true}
		if b.access != nil {
			m.Access = b.access.workers
		}
		t.emitMoved(b.seq, m, b.label)
	}
	for _, seq := range placed {
		t.emitRemoved(kv.TierPool, seq)
	}
}

// blocksByMove returns the blocks in pools so that ones which one event can announce are next to each other, the oldest
// first.
func (p *pooledSet) blocksByMove() []*pooledBlock {
	blocks := make([]*pooledBlock, 0, len(p.bySeq))
	first := make(map[*pooledAccess]int) // which list the oldest block has, and so on
	for b := p.oldest; b != nil; b = b.newer {
		blocks = append(blocks, b)
		if _, known := first[b.access]; !known {
			first[b.access] = len(first)
		}
	}
	slices.SortStableFunc(blocks, func(a, b *pooledBlock) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.state, b.state), cmp.Compare(first[a.access], first[b.access]),
			cmp.Compare(min(a.label.Has, 1), min(b.label.Has, 1)))
	})
	return blocks
}

// placePooled announces the blocks which are in pools as stored there, parents before children, and returns them.
func (t *Table) placePooled() (placed []kv.SeqHash) {
	var blocks []*pooledBlock
	next := make(map[kv.SeqHash]*pooledBlock) // one block which follows a prefix, so that a run is one event
	for b := t.pooled.oldest; b != nil; b = b.newer {
		if b.state == kv.Pooled {
			blocks, next[b.prefix] = append(blocks, b), b
		}
	}
	slices.SortStableFunc(blocks, func(a, b *pooledBlock) int { return cmp.Compare(a.depth, b.depth) })
	told := make(map[*pooledBlock]bool, len(blocks))
	for _, b := range blocks {
		for ; b != nil && !told[b]; b = next[b.seq] {
			told[b] = true
			t.emitStored(kv.TierPool, &b.blockEntry, b.seq)
			placed = append(placed, b.seq)
		}
	}
	return placed
}

// emitMoved announces the new state of a block, or with seq 0 of all blocks of the pool. It extends the open event if
// that is the same move. Labelled and other blocks stay apart: no label in an event with labels erases the label which
// another worker gave. Events share the access list.
func (t *Table) emitMoved(seq kv.SeqHash, m kv.PoolMove, label kv.MoELabel) {
	r := &t.buffer
	m.OfBlocks = true
	grows := false
	if r.openKind == kv.Moved && seq != 0 && len(r.seqs) > r.openStart && len(r.seqs)-r.openStart < maxEventBlocks {
		grows = samePoolMove(&t.out[len(t.out)-1].Move, &m) && (label.Has != 0) == (len(r.openLabels) > 0)
	}
	if !grows {
		t.closeEvent()
		t.out = append(t.out, kv.Event{Kind: kv.Moved, Move: m})
		r.openKind, r.openStart, r.openLabels = kv.Moved, len(r.seqs), nil
	}
	if seq == 0 {
		return
	}
	r.seqs = append(r.seqs, seq)
	if m.To == kv.InTransit || m.To == kv.Pooled {
		r.addLabel(label, len(r.seqs)-r.openStart)
	}
}

// addLabel records the label of the n-th block of the open event.
func (r *eventBuffer) addLabel(l kv.MoELabel, n int) {
	if l.Has == 0 && len(r.openLabels) == 0 {
		return
	}
	for len(r.openLabels) < n-1 {
		r.openLabels = append(r.openLabels, kv.MoELabel{})
	}
	r.openLabels = append(r.openLabels, l)
}

// moveStored applies the states in pools of the first n blocks of e, which are stored.
func (t *Table) moveStored(e *Event, n int) {
	for i := 0; i < n; {
		from := i
		for i++; i < n && samePoolMove(&e.Moves[from], &e.Moves[i]); i++ {
		}
		m := &e.Moves[from]
		if m.To == 0 || m.To == kv.LocalGPU && len(t.pooled.bySeq) == 0 {
			continue // a block which is stored is in the engine's own memory anyway
		}
		t.applyMoved(&Event{Kind: Moved, Hashes: e.Hashes[from:i], Move: *m})
	}
}

// samePoolMove reports whether two moves of blocks say the same.
func samePoolMove(a, b *kv.PoolMove) bool {
	return a.To == b.To && a.Pool == b.Pool && a.HasPool == b.HasPool && sameAccess(a.Access, b.Access)
}

// sameAccess reports whether two access lists, which may be none, are equal. Events of
// blocks with one list share it, so most comparisons read one address.
func sameAccess(a, b []kv.Worker) bool {
	if (a == nil) != (b == nil) || len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b)
}

// setLabel sets the label of a stored block. It reports whether the label is another one than before.
func (t *Table) setLabel(seq kv.SeqHash, l kv.MoELabel) bool {
	if l.Has == 0 || t.labels[seq] == l {
		return false
	}
	if t.labels == nil {
		t.labels = make(map[kv.SeqHash]kv.MoELabel)
	}
	t.labels[seq] = l
	return true
}

// labelBlock sets the label of block i of the event, whose engine block has this id, before the block is announced. It
// returns the Penstock block if that was announced on this tier without the label.
func (s *storeOperation) labelBlock(i int, id uint32) *blockEntry {
	t := s.t
	if s.e.Labels == nil || s.salt == opaqueSalt {
		return nil
	}
	seq := s.seq
	if t.pagesPerBlock > 1 {
		p := t.pages.entries.at(id)
		if !p.endsBlock(t) {
			return nil
		}
		seq = p.seq
	}
	if !t.setLabel(seq, s.e.Labels[i]) {
		return nil
	}
	if at := t.blocks.findID(s.e.Hashes[i]); at != 0 && t.blocks.entries.at(at).refs[s.tier] > 0 {
		return t.blocks.entries.at(at)
	}
	return nil
}
