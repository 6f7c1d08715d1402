package embregion

import (
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/plane/xfer"
)

// view is a mapped region. Its owner may write anything to it at any time.
type view struct {
	memory, notes memory
	layout        layout
	epoch         uint64
	leases        [leaseCount]atomic.Bool // which are taken
	reading       sync.WaitGroup
	// copied is called between a copy and its check, in tests.
	copied func()
	now    func() time.Time // [time.Now], except in tests
}

func newView(region, notes []byte) (*view, error) {
	l, epoch, err := readHeader(region)
	if err != nil {
		return nil, err
	}
	return &view{memory: region, notes: notes, layout: l, epoch: epoch, now: time.Now}, nil
}

// awaitEnd returns when no reader uses the view any more, after which none begins to.
func (v *view) awaitEnd() { v.reading.Wait() }

// readAndLeave is read, and gives the view back.
func (v *view) readAndLeave(want *Wanted, into func(grid [3]int) []byte) (Found, bool) {
	defer v.reading.Done()
	return v.read(want, into)
}

// read copies rows out of the region, if their entry is there and did not change meanwhile. The digest of the copy alone
// decides that it is whole: a processor may do the loads of a copy after that of the generation.
func (v *view) read(want *Wanted, into func(grid [3]int) []byte) (Found, bool) {
	slot, w, generation, ok := v.find(want)
	if !ok {
		return Found{}, false
	}
	found := Found{Grid: w.unpackGrid(), Digest: xfer.Digest(w.digest)}
	dst := into(found.Grid)
	if len(dst) != want.Bytes {
		return Found{}, false
	}
	defer v.endLease(v.beginLease(slot, generation))
	if v.memory.load(slotAt(slot)+wordGeneration) != generation {
		return Found{}, false
	}
	at := v.layout.dataAt + int(w.offset)
	digest := xfer.CopyDigest(dst, v.memory[at:at+want.Bytes])
	if v.copied != nil {
		v.copied()
	}
	return found, digest == found.Digest && v.memory.load(slotAt(slot)+wordGeneration) == generation && v.memory.load(wordEpoch) == v.epoch
}

// find returns the slot of an entry, and its content, whose place is within the region.
func (v *view) find(want *Wanted) (slot int, w slotWords, generation uint64, ok bool) {
	key := keyWords(&want.Key)
	first := v.layout.bucketOf(&want.Key)
	for slot = first; slot < first+bucketSlots; slot++ {
		if w, generation, ok = loadSlot(v.memory, slot); ok && w.length != 0 && w.key == key {
			return slot, w, generation, v.matches(&w, want)
		}
	}
	return 0, slotWords{}, 0, false
}

// matches reports whether an entry is what is wanted, has not ended and lies within the region.
func (v *view) matches(w *slotWords, want *Wanted) bool {
	data := uint64(v.layout.data)
	return w.length == uint64(want.Bytes) && w.offset <= data && w.length <= data-w.offset &&
		w.kind == uint64(want.Kind)|uint64(want.Type)<<8|1<<32 && w.shape == packPair(want.Rows, want.Width) &&
		(w.until == 0 || v.now().UnixNano() < int64(w.until))
}

// beginLease asks the owner not to evict an entry for a while. It returns the place of the lease; -1 if all are taken,
// which only makes a miss more likely.
func (v *view) beginLease(slot int, generation uint64) (place int) {
	for i := range v.leases {
		if !v.leases[i].CompareAndSwap(false, true) {
			continue
		}
		at := i * leaseSize
		v.notes.word(at + wordLeaseGeneration).Store(generation)
		v.notes.word(at + wordLeaseUntil).Store(uint64(v.now().Add(MaxLease).UnixNano()))
		v.notes.word(at + wordLeased).Store(uint64(slot) + 1)
		return i
	}
	return -1
}

func (v *view) endLease(place int) {
	if place >= 0 {
		v.notes.word(place*leaseSize + wordLeased).Store(0)
		v.leases[place].Store(false)
	}
}
