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
	if len(x.numbers) > 0 || len(x.places) > 0 || x.pages.live > 0 {
		return errors.New("prefix: load snapshot: the index is not empty")
	}
	l := loader{x: x, data: data, page: math.MaxUint32}
	if err := l.load(); err != nil {
		x.discard()
		return fmt.Errorf("prefix: load snapshot: at byte %d of %d: %w", len(data)-len(l.data), len(data), err)
	}
	x.settle()
	return nil
}

// discardAll empties x at once: a malicious snapshot could make removing its content step by step very slow.
func (x *Index) discard() {
	for i := range x.heads.shards {
		s := &x.heads.shards[i]
		s.table.Store(nil)
		s.used, s.live = 0, 0
	}
	x.heads.live, x.heads.bytes = 0, 0
	x.pages, x.where, x.size, x.edit = pages{}, where{factor: x.where.factor}, size{}, edit{}
	x.numbers, x.workers, x.vacant = map[kv.Worker]uint32{}, nil, nil
	x.places, x.pools, x.free = map[kv.PoolID]uint32{}, nil, nil
	x.view.Store(&view{levels: 1, reused: x.view.Load().reused + 1})
}

var (
	errShort = errors.New("it ends early")
	errRange = errors.New("a number is out of range")
	errOrder = errors.New("not in order")
	errHeld  = errors.New("a page's blocks and their holders do not fit")
	errFull  = errors.New("it exceeds the bounds of the index; raise them, or begin without it")
)

// snapshotLoader reads a snapshot. Its err is the first error; values read after it are 0.
type loader struct {
	x    *Index
	data []byte
	err  error

	page  uint32   // number of pages read
	seen  []uint32 // by worker: the last page which had it
	words []uint64 // of the set being read, from word lo on
	lo    uint32
	spent int // bytes of the sets of the page
}

func (l *loader) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (l *loader) byte() byte {
	if l.err != nil || len(l.data) == 0 {
		l.fail(errShort)
		return 0
	}
	b := l.data[0]
	l.data = l.data[1:]
	return b
}

func (l *loader) u64() uint64 {
	if l.err != nil || len(l.data) < 8 {
		l.fail(errShort)
		return 0
	}
	u := binary.LittleEndian.Uint64(l.data)
	l.data = l.data[8:]
	return u
}

// readNumber reads a number up to limit.
func (l *loader) number(limit uint64) uint64 {
	if l.err != nil {
		return 0
	}
	u, n := binary.Uvarint(l.data)
	switch {
	case n == 0:
		l.fail(errShort)
		return 0
	case n < 0 || u > limit || n > 1 && l.data[n-1] == 0:
		l.fail(errRange)
		return 0
	}
	l.data = l.data[n:]
	return u
}

// readCount reads the number of following items, each of at least each bytes.
func (l *loader) count(each int) int {
	return int(l.number(uint64(len(l.data) / each)))
}

func (l *loader) worker() kv.Worker {
	id := l.number(uint64(kv.MaxWorkerID))
	return kv.Worker{ID: kv.WorkerID(id), Rank: uint32(l.number(math.MaxUint32))}
}

func (l *loader) load() error {
	if v := l.byte(); l.err == nil && v != snapshotVersion {
		return fmt.Errorf("version %d, not %d", v, snapshotVersion)
	}
	l.workers()
	l.pools()
	var before kv.SeqHash
	for n := l.count(12); n > 0 && l.err == nil; n-- {
		l.page++
		head := l.readPage()
		if l.page > 0 && head <= before {
			l.fail(errOrder)
		}
		before = head
	}
	if len(l.data) > 0 {
		l.fail(errors.New("more follows"))
	}
	return l.err
}

func (l *loader) workers() {
	n := l.count(3)
	l.seen = make([]uint32, n)
	names, hidden := make([]kv.Worker, 0, n), make([]bool, 0, n)
	for i := 0; i < n && l.err == nil; i++ {
		w, flags := l.worker(), l.byte()
		switch {
		case l.err != nil:
			return
		case i > 0 && w.Compare(names[i-1]) <= 0:
			l.fail(errOrder)
			return
		case flags > workerHidden:
			l.fail(errRange)
			return
		}
		l.seen[i] = math.MaxUint32
		names, hidden = append(names, w), append(hidden, flags&workerHidden != 0)
	}
	if l.err != nil || n == 0 {
		return
	}
	l.x.introduce(names) // in order, so each number is the index in names
	for i := range hidden {
		l.x.workers[i].hidden = hidden[i]
	}
	v := *l.x.view.Load()
	l.x.look(&v)
	l.x.view.Store(&v)
}

func (l *loader) pools() {
	var before kv.PoolID
	v, spent := *l.x.view.Load(), 0
	for i, n := 0, l.count(2); i < n && l.err == nil; i++ {
		id := kv.PoolID(l.number(math.MaxUint32))
		if i > 0 && id <= before {
			l.fail(errOrder)
		}
		before = id
		p := pool{id: id, known: true, access: l.access()}
		who := l.x.whoOf(&p)
		if spent += 8 * len(who.rest); spent > l.x.cfg.MaxBytes {
			l.fail(errFull)
		}
		if l.err != nil {
			return
		}
		l.x.places[id] = uint32(len(l.x.pools))
		l.x.pools, v.access = append(l.x.pools, p), append(v.access, who)
	}
	l.x.view.Store(&v)
}

// readAccess reads which workers can attach a pool.
func (l *loader) access() (access []kv.Worker) {
	for k := l.count(2); k > 0 && l.err == nil; k-- {
		w := l.worker()
		if len(access) > 0 && w.Compare(access[len(access)-1]) <= 0 {
			l.fail(errOrder)
		}
		access = append(access, w)
	}
	return access
}

// readPage reads a page and returns its head.
func (l *loader) readPage() kv.SeqHash {
	start, form := int(l.byte()), l.byte()
	n := int(form&pageBlocks) + 1
	if l.err == nil && start+n > window {
		l.fail(errRange)
	}
	if l.err == nil && len(l.data) < 8*n {
		l.fail(errShort)
	}
	if l.err != nil {
		return 0
	}
	e := l.x.create(start)
	head := kv.SeqHash(binary.LittleEndian.Uint64(l.data))
	for i := 0; i < n && l.err == nil; i++ {
		seq := kv.SeqHash(l.u64())
		if _, known := l.x.locate(seq); known {
			l.fail(errors.New("a block is there twice"))
			break
		}
		e.extend(seq, n-i-1)
		l.x.where.add(seq, place{e.id, uint8(start + i)})
	}
	l.holders(form, start, n)
	if l.err == nil && !ends(e.held(), start, n) {
		l.fail(errHeld)
	}
	if l.err == nil && l.x.bytes() > l.x.cfg.MaxBytes {
		l.fail(errFull)
	}
	e.changed = true
	l.x.commit() // also after an error: discardAll removes the page with the rest
	return head
}

func (l *loader) holders(form byte, start, n int) {
	e, groups := &l.x.edit, 1
	if form&pageGroups != 0 {
		if groups = l.count(2); groups == 1 {
			l.fail(errRange)
		}
	}
	l.spent = 0
	for ; groups > 0 && l.err == nil; groups-- {
		g := l.group(maskOf(start, n))
		if k := len(e.groups); l.err == nil && k > 0 && compareGroups(&e.groups[k-1], &g) >= 0 {
			l.fail(errOrder)
		}
		if l.err == nil {
			l.fail(l.x.join(g))
		}
	}
	if form&pagePools == 0 || l.err != nil {
		return
	}
	pools := l.count(9)
	if pools == 0 {
		l.fail(errRange)
	}
	next := uint64(0)
	for ; pools > 0 && l.err == nil; pools-- {
		i, mask := l.number(uint64(len(l.x.pools))), l.u64()
		switch {
		case l.err != nil:
		case i >= uint64(len(l.x.pools)) || mask == 0 || mask&^maskOf(start, n) != 0:
			l.fail(errRange)
		case i < next:
			l.fail(errOrder)
		default:
			l.x.joinPool(uint32(i), mask)
			next = i + 1
		}
	}
}

// joinGroup adds g to the open page; its workers hold nothing of the page yet.
func (x *Index) join(g group) error {
	held := bits.OnesCount64(g.any())
	x.edit.groups = append(x.edit.groups, g)
	x.size.entry(&g, g.set.count())
	var err error
	for n := range g.set.all() {
		w := &x.workers[n]
		w.held += held
		w.pages.add(x.edit.id)
		if w.held > x.cfg.MaxBlocks {
			err = errFull
		}
	}
	return err
}

// joinPool adds blocks of the open page to pool i, which has none of it.
func (x *Index) joinPool(i uint32, mask uint64) {
	p := &x.pools[i]
	p.held += bits.OnesCount64(mask)
	x.size.pooled += bits.OnesCount64(mask)
	p.pages.add(x.edit.id)
	x.edit.pools = append(x.edit.pools, pooled{mask: mask, pool: i})
}

// readGroup reads a group of a page which has the blocks all.
func (l *loader) group(all uint64) group {
	flags := l.byte()
	if flags > groupFlags {
		l.fail(errRange)
	}
	g := group{device: all}
	if flags&groupAll == 0 {
		if g.device = l.u64(); g.device == all {
			l.fail(errRange)
		}
	}
	var x ext
	for t := range x.slow {
		if flags&(groupSlow<<t) != 0 {
			if x.slow[t] = l.u64(); x.slow[t] == 0 {
				l.fail(errRange)
			}
		}
	}
	if flags&groupLabels != 0 {
		n := l.count(11)
		if n == 0 {
			l.fail(errRange)
		}
		for ; n > 0 && l.err == nil; n-- {
			x.labels = append(x.labels, l.label())
		}
	}
	g.adopt(x)
	held := g.any()
	if held == 0 || held&^all != 0 || g.ext != nil && g.ext.check(held) != nil {
		l.fail(errHeld)
	}
	g.set = l.set(flags&groupOne != 0)
	return g
}

func (l *loader) label() label {
	is := label{mask: l.u64()}
	is.is.Has = kv.MoEFields(l.byte())
	is.is.Layer = uint32(l.number(math.MaxUint32))
	is.is.Expert = uint32(l.number(math.MaxUint32))
	if is.is.Has&kv.HasGroup != 0 {
		is.is.Group = uint32(l.number(math.MaxUint32))
	}
	return is
}

// readSet reads the workers of a group; none may be in another group of the page.
func (l *loader) set(one bool) set {
	runs := 1
	if !one {
		runs = l.count(2)
		if runs == 0 {
			l.fail(errRange)
		}
	}
	l.words = l.words[:0]
	l.lo = 0
	next, count := uint64(0), 0
	for i := 0; i < runs && l.err == nil; i++ {
		gap := l.number(uint64(len(l.seen)))
		more := uint64(0)
		if !one {
			more = l.number(uint64(len(l.seen)))
		}
		first, end := next+gap, next+gap+more+1
		if end > uint64(len(l.seen)) || i > 0 && gap == 0 {
			l.fail(errRange)
		}
		for n := first; n < end && l.err == nil; n++ {
			l.add(uint32(n))
			count++
		}
		next = end
	}
	if !one && count == 1 {
		l.fail(errRange)
	}
	if l.err != nil {
		return set{}
	}
	return l.pack()
}

// addNumber adds worker n to the words of the set.
func (l *loader) add(n uint32) {
	if l.seen[n] == l.page {
		l.fail(errHeld)
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

// packSet makes the set of the words, the first and last of which are not 0.
func (l *loader) pack() set {
	if l.spent += 8 * len(l.words); l.x.bytes()+l.spent > l.x.cfg.MaxBytes {
		l.fail(errFull)
		return set{}
	}
	return set{one: l.words[0], rest: clone(l.words[1:]), lo: l.lo}
}
