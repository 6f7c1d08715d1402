package prefix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"penstock/core/kv"
)

// LoadSnapshot fills x, which must be empty, from the output of AppendSnapshot. It refuses anything else, and
// what exceeds the bounds of x's Config; x is empty then. The memory which it takes is bounded by MaxBytes
// and a multiple of the data.
func (x *Index) LoadSnapshot(data []byte) error {
	if len(x.numbers) > 0 || len(x.poolNumbers) > 0 || x.pages.live > 0 {
		return errors.New("prefix: load snapshot: the index is not empty")
	}
	l := snapshotLoader{index: x, data: data, page: math.MaxUint32}
	if err := l.readSnapshot(); err != nil {
		x.discardAll()
		return fmt.Errorf("prefix: load snapshot: at byte %d of %d: %w", len(data)-len(l.data), len(data), err)
	}
	x.finishChange()
	return nil
}

// discardAll empties x at once: a malicious snapshot could make removing its content step by step very slow.
func (x *Index) discardAll() {
	for i := range x.heads.shards {
		s := &x.heads.shards[i]
		s.table.Store(nil)
		s.used, s.live = 0, 0
	}
	x.heads.live, x.heads.bytes = 0, 0
	x.pages, x.blocks, x.sizes, x.edit = pageTable{}, blockTable{factor: x.blocks.factor}, sizeCounts{}, pageEdit{}
	x.numbers, x.workers, x.freeNumbers = map[kv.Worker]uint32{}, nil, nil
	x.poolNumbers, x.pools, x.freePools = map[kv.PoolShare]uint32{}, nil, nil
	x.view.Store(&lookupView{levels: 1, reused: x.view.Load().reused + 1})
}

var (
	errTruncated = errors.New("it ends early")
	errRange     = errors.New("a number is out of range")
	errOrder     = errors.New("not in order")
	errHolders   = errors.New("a page's blocks and their holders do not fit")
	errLimit     = errors.New("it exceeds the bounds of the index; raise them, or begin without it")
)

// snapshotLoader reads a snapshot. Its err is the first error; values read after it are 0.
type snapshotLoader struct {
	index *Index
	data  []byte
	err   error

	page  uint32   // number of pages read
	seen  []uint32 // by worker: the last page which had it
	words []uint64 // of the set being read, from word lo on
	lo    uint32
	spent int // bytes of the sets of the page
}

func (l *snapshotLoader) setError(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (l *snapshotLoader) readByte() byte {
	if l.err != nil || len(l.data) == 0 {
		l.setError(errTruncated)
		return 0
	}
	b := l.data[0]
	l.data = l.data[1:]
	return b
}

func (l *snapshotLoader) readUint64() uint64 {
	if l.err != nil || len(l.data) < 8 {
		l.setError(errTruncated)
		return 0
	}
	u := binary.LittleEndian.Uint64(l.data)
	l.data = l.data[8:]
	return u
}

// readNumber reads a number up to limit.
func (l *snapshotLoader) readNumber(limit uint64) uint64 {
	if l.err != nil {
		return 0
	}
	u, n := binary.Uvarint(l.data)
	switch {
	case n == 0:
		l.setError(errTruncated)
		return 0
	case n < 0 || u > limit || n > 1 && l.data[n-1] == 0:
		l.setError(errRange)
		return 0
	}
	l.data = l.data[n:]
	return u
}

// readCount reads the number of following items, each of at least each bytes.
func (l *snapshotLoader) readCount(each int) int {
	return int(l.readNumber(uint64(len(l.data) / each)))
}

func (l *snapshotLoader) readWorker() kv.Worker {
	id := l.readNumber(uint64(kv.MaxWorkerID))
	return kv.Worker{ID: kv.WorkerID(id), Rank: uint32(l.readNumber(math.MaxUint32))}
}

func (l *snapshotLoader) readSnapshot() error {
	version := l.readByte()
	if l.err == nil && (version < snapshotVersion || version > shareVersion) {
		return fmt.Errorf("version %d, not %d or %d", version, snapshotVersion, shareVersion)
	}
	l.readWorkers()
	l.readPools(version)
	var before kv.SeqHash
	for n := l.readCount(12); n > 0 && l.err == nil; n-- {
		l.page++
		head := l.readPage()
		if l.page > 0 && head <= before {
			l.setError(errOrder)
		}
		before = head
	}
	if len(l.data) > 0 {
		l.setError(errors.New("more follows"))
	}
	return l.err
}

func (l *snapshotLoader) readWorkers() {
	n := l.readCount(3)
	l.seen = make([]uint32, n)
	names, hidden := make([]kv.Worker, 0, n), make([]bool, 0, n)
	for i := 0; i < n && l.err == nil; i++ {
		w, flags := l.readWorker(), l.readByte()
		switch {
		case l.err != nil:
			return
		case i > 0 && w.Compare(names[i-1]) <= 0:
			l.setError(errOrder)
			return
		case flags > workerHidden:
			l.setError(errRange)
			return
		}
		l.seen[i] = math.MaxUint32
		names, hidden = append(names, w), append(hidden, flags&workerHidden != 0)
	}
	if l.err != nil || n == 0 {
		return
	}
	l.index.addWorkers(names) // in order, so each number is the index in names
	for i := range hidden {
		l.index.workers[i].hidden = hidden[i]
	}
	v := *l.index.view.Load()
	l.index.setVisible(&v)
	l.index.view.Store(&v)
}

func (l *snapshotLoader) readPools(version byte) {
	var before kv.PoolShare
	limit := uint64(math.MaxUint32)
	if version == shareVersion {
		limit = math.MaxUint64
	}
	v, spent := *l.index.view.Load(), 0
	for i, n := 0, l.readCount(2); i < n && l.err == nil; i++ {
		id := kv.PoolShare(l.readNumber(limit))
		if i > 0 && id <= before {
			l.setError(errOrder)
		}
		before = id
		p := blockPool{id: id, known: true, access: l.readAccess()}
		workers := l.index.accessSet(&p)
		if spent += 8 * len(workers.rest); spent > l.index.cfg.MaxBytes {
			l.setError(errLimit)
		}
		if l.err != nil {
			return
		}
		l.index.poolNumbers[id] = uint32(len(l.index.pools))
		l.index.pools, v.access = append(l.index.pools, p), append(v.access, workers)
	}
	if version == shareVersion && !before.IsPart() {
		l.setError(errRange) // version 1 would do
	}
	l.index.view.Store(&v)
}

// readAccess reads which workers can attach a pool.
func (l *snapshotLoader) readAccess() (access []kv.Worker) {
	for k := l.readCount(2); k > 0 && l.err == nil; k-- {
		w := l.readWorker()
		if len(access) > 0 && w.Compare(access[len(access)-1]) <= 0 {
			l.setError(errOrder)
		}
		access = append(access, w)
	}
	return access
}

// readPage reads a page and returns its head.
func (l *snapshotLoader) readPage() kv.SeqHash {
	start, form := int(l.readByte()), l.readByte()
	n := int(form&pageBlocks) + 1
	if l.err == nil && start+n > window {
		l.setError(errRange)
	}
	if l.err == nil && len(l.data) < 8*n {
		l.setError(errTruncated)
	}
	if l.err != nil {
		return 0
	}
	e := l.index.createPage(start)
	head := kv.SeqHash(binary.LittleEndian.Uint64(l.data))
	for i := 0; i < n && l.err == nil; i++ {
		seq := kv.SeqHash(l.readUint64())
		if _, known := l.index.locateBlock(seq); known {
			l.setError(errors.New("a block is there twice"))
			break
		}
		e.appendBlock(seq, n-i-1)
		l.index.blocks.addBlock(seq, blockLocation{e.id, uint8(start + i)})
	}
	l.readHolders(form, start, n)
	if l.err == nil && !holdsEnds(e.heldMask(), start, n) {
		l.setError(errHolders)
	}
	if l.err == nil && l.index.memoryBytes() > l.index.cfg.MaxBytes {
		l.setError(errLimit)
	}
	e.changed = true
	l.index.commitPage() // also after an error: discardAll removes the page with the rest
	return head
}

func (l *snapshotLoader) readHolders(form byte, start, n int) {
	e, groups := &l.index.edit, 1
	if form&pageGroups != 0 {
		if groups = l.readCount(2); groups == 1 {
			l.setError(errRange)
		}
	}
	l.spent = 0
	for ; groups > 0 && l.err == nil; groups-- {
		g := l.readGroup(maskOf(start, n))
		if k := len(e.groups); l.err == nil && k > 0 && compareGroups(&e.groups[k-1], &g) >= 0 {
			l.setError(errOrder)
		}
		if l.err == nil {
			l.setError(l.index.joinGroup(g))
		}
	}
	if form&pagePools == 0 || l.err != nil {
		return
	}
	pools := l.readCount(9)
	if pools == 0 {
		l.setError(errRange)
	}
	next := uint64(0)
	for ; pools > 0 && l.err == nil; pools-- {
		i, mask := l.readNumber(uint64(len(l.index.pools))), l.readUint64()
		switch {
		case l.err != nil:
		case i >= uint64(len(l.index.pools)) || mask == 0 || mask&^maskOf(start, n) != 0:
			l.setError(errRange)
		case i < next:
			l.setError(errOrder)
		default:
			l.index.joinPool(uint32(i), mask)
			next = i + 1
		}
	}
}

// joinGroup adds g to the open page; its workers hold nothing of the page yet.
func (x *Index) joinGroup(g holderGroup) error {
	held := bits.OnesCount64(g.onAnyTier())
	x.edit.groups = append(x.edit.groups, g)
	x.sizes.countEntries(&g, g.set.size())
	var err error
	for n := range g.set.eachNumber() {
		w := &x.workers[n]
		w.held += held
		w.pages.addPage(x.edit.id)
		if w.held > x.cfg.MaxBlocks {
			err = errLimit
		}
	}
	return err
}

// joinPool adds blocks of the open page to pool i, which has none of it.
func (x *Index) joinPool(i uint32, mask uint64) {
	p := &x.pools[i]
	p.held += bits.OnesCount64(mask)
	x.sizes.pooled += bits.OnesCount64(mask)
	p.pages.addPage(x.edit.id)
	x.edit.pools = append(x.edit.pools, pooledBlocks{mask: mask, pool: i})
}

// readGroup reads a group of a page which has the blocks all.
func (l *snapshotLoader) readGroup(all uint64) holderGroup {
	flags := l.readByte()
	if flags > groupFlags {
		l.setError(errRange)
	}
	g := holderGroup{device: all}
	if flags&groupAll == 0 {
		if g.device = l.readUint64(); g.device == all {
			l.setError(errRange)
		}
	}
	var x groupExt
	for t := range x.slow {
		if flags&(groupSlow<<t) != 0 {
			if x.slow[t] = l.readUint64(); x.slow[t] == 0 {
				l.setError(errRange)
			}
		}
	}
	if flags&groupLabels != 0 {
		n := l.readCount(11)
		if n == 0 {
			l.setError(errRange)
		}
		for ; n > 0 && l.err == nil; n-- {
			x.labels = append(x.labels, l.readLabel())
		}
	}
	g.setExt(x)
	held := g.onAnyTier()
	if held == 0 || held&^all != 0 || g.ext != nil && g.ext.check(held) != nil {
		l.setError(errHolders)
	}
	g.set = l.readSet(flags&groupOne != 0)
	return g
}

func (l *snapshotLoader) readLabel() blockLabels {
	is := blockLabels{mask: l.readUint64()}
	is.label.Has = kv.MoEFields(l.readByte())
	is.label.Layer = uint32(l.readNumber(math.MaxUint32))
	is.label.Expert = uint32(l.readNumber(math.MaxUint32))
	if is.label.Has&kv.HasGroup != 0 {
		is.label.Group = uint32(l.readNumber(math.MaxUint32))
	}
	return is
}

// readSet reads the workers of a group; none may be in another group of the page.
func (l *snapshotLoader) readSet(one bool) numberSet {
	runs := 1
	if !one {
		runs = l.readCount(2)
		if runs == 0 {
			l.setError(errRange)
		}
	}
	l.words = l.words[:0]
	l.lo = 0
	next, count := uint64(0), 0
	for i := 0; i < runs && l.err == nil; i++ {
		gap := l.readNumber(uint64(len(l.seen)))
		more := uint64(0)
		if !one {
			more = l.readNumber(uint64(len(l.seen)))
		}
		first, end := next+gap, next+gap+more+1
		if end > uint64(len(l.seen)) || i > 0 && gap == 0 {
			l.setError(errRange)
		}
		for n := first; n < end && l.err == nil; n++ {
			l.addNumber(uint32(n))
			count++
		}
		next = end
	}
	if !one && count == 1 {
		l.setError(errRange)
	}
	if l.err != nil {
		return numberSet{}
	}
	return l.packSet()
}

// addNumber adds worker n to the words of the set.
func (l *snapshotLoader) addNumber(n uint32) {
	if l.seen[n] == l.page {
		l.setError(errHolders)
	}
	l.seen[n] = l.page
	if len(l.words) == 0 {
		l.lo = n / 64
	}
	for int(n/64-l.lo) >= len(l.words) {
		l.words = append(l.words, 0)
	}
	l.words[n/64-l.lo] |= 1 << (n % 64)
}

// packSet makes the set of the words. The first and the last word are not 0.
func (l *snapshotLoader) packSet() numberSet {
	if l.spent += 8 * len(l.words); l.index.memoryBytes()+l.spent > l.index.cfg.MaxBytes {
		l.setError(errLimit)
		return numberSet{}
	}
	return numberSet{one: l.words[0], rest: cloneCompact(l.words[1:]), lo: l.lo}
}
