package embregion

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/internal/obs"
	"penstock/internal/plane/xfer"
)

// OwnerConfig configures an Owner.
type OwnerConfig struct {
	// Readers bounds the processes which read the region. Default: that of xfer.SharedRegionConfig.
	Readers int
	Log     *slog.Logger
	// Now is the clock by which leases end; nil is [time.Now].
	Now func() time.Time
}

// Owner has the memory of one embedding cache, in which other processes of the host find its entries. Its shell says
// which these are. It is safe for concurrent use.
type Owner struct {
	region *xfer.SharedRegion
	log    *slog.Logger
	now    func() time.Time
	mu     struct {
		sync.Mutex
		layout layout
		memory memory    // nil before Allocate
		listed []listing // by slot
		// byOffset finds the slot of an entry by its place in the memory of the cache.
		byOffset map[int]int
		serial   uint64
		now      int64 // scratch of AppendLeased
		leased   []embcache.RowKey
	}
}

// listing is what the owner knows of a slot.
type listing struct {
	key        embcache.RowKey
	offset     int
	serial     uint64 // 0: the slot has no entry
	generation uint64
}

// NewOwner returns an Owner without memory. It is Unimplemented on systems other than Linux.
func NewOwner(cfg OwnerConfig) (*Owner, error) {
	log := obs.Component(cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), "engine")
	region, err := xfer.NewSharedRegion(xfer.SharedRegionConfig{Readers: cfg.Readers, Log: log})
	if err != nil {
		return nil, err
	}
	o := &Owner{region: region, log: log, now: cfg.Now}
	if o.now == nil {
		o.now = time.Now
	}
	return o, nil
}

// Addr is where readers find the region.
func (o *Owner) Addr() string { return o.region.Addr() }

// Run serves readers until ctx ends, and then returns nil.
func (o *Owner) Run(ctx context.Context) error { return o.region.Run(ctx) }

// Allocate returns the memory of a cache of a capacity: nil if it cannot be shared, which is logged. It is called once.
func (o *Owner) Allocate(capacity int) []byte {
	l := newLayout(capacity)
	m, err := o.region.Allocate(l.size())
	if err != nil {
		o.log.Warn("the embedding cache takes ordinary memory: other workers of this host cannot read it, and ask for its rows", "bytes", l.size(), "error", err)
		return nil
	}
	if err := o.region.Lock(); err != nil {
		o.log.Warn("the memory of the embedding cache is not locked, so this machine may swap it out; to lock it, raise the limit of locked memory (ulimit -l, LimitMEMLOCK= of systemd) or give the process CAP_IPC_LOCK", "bytes", l.size(), "error", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.layout, o.mu.memory = l, m
	o.mu.listed, o.mu.byOffset = make([]listing, l.slots), map[int]int{}
	l.writeHeader(m, newEpoch())
	return m[l.dataAt : l.dataAt+l.data : l.dataAt+l.data]
}

// newEpoch returns a random number which is not 0.
func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// Added is an entry which readers may find.
type Added struct {
	Item *embcache.Item
	Slot embcache.Slot
	// Digest is that of the rows, see xfer.DigestOf, and Until when they end in nanoseconds of Unix time; 0 is never.
	Digest xfer.Digest
	Until  int64
}

// AddEntry lists an entry whose rows have been written. If its bucket is full, it takes the place of the oldest one there,
// which readers do not find any more.
func (o *Owner) AddEntry(e *Added) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.memory == nil {
		return
	}
	key := e.Item.Key.TierKey()
	at := o.mu.layout.bucketOf(&key)
	oldest := at
	for i := at; i < at+bucketSlots; i++ {
		if o.mu.listed[i].serial < o.mu.listed[oldest].serial {
			oldest = i
		}
	}
	if l := &o.mu.listed[oldest]; l.serial != 0 {
		delete(o.mu.byOffset, l.offset)
	}
	o.mu.serial++
	shape := &e.Item.Shape
	w := slotWords{
		key: keyWords(&key), offset: uint64(e.Slot.Offset), length: uint64(e.Slot.Length), digest: uint64(e.Digest),
		kind:  uint64(e.Item.Key.Kind) | uint64(e.Item.Key.Type)<<8 | uint64(uint32(shape.Layers))<<32,
		shape: packPair(shape.Rows, shape.Width), until: uint64(e.Until),
	}
	w.grid, w.gridLast = packGrid(shape.Grid)
	generation := w.store(o.mu.memory, oldest)
	o.mu.listed[oldest] = listing{e.Item.Key, e.Slot.Offset, o.mu.serial, generation}
	o.mu.byOffset[e.Slot.Offset] = oldest
}

// RemoveEntry takes an entry off the table, before anything is written to its place.
func (o *Owner) RemoveEntry(slot embcache.Slot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i, ok := o.mu.byOffset[slot.Offset]
	if !ok {
		return
	}
	new(slotWords).store(o.mu.memory, i)
	o.mu.listed[i] = listing{}
	delete(o.mu.byOffset, slot.Offset)
}

// AppendLeased appends the keys of the entries which readers are copying to dst.
func (o *Owner) AppendLeased(dst []embcache.RowKey) []embcache.RowKey {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.memory == nil {
		return dst
	}
	now := o.now().UnixNano()
	o.region.VisitNotes(func(notes []byte) {
		for at := 0; at < leaseCount*leaseSize; at += leaseSize {
			if i, ok := o.leasedLocked(memory(notes), at, now); ok {
				dst = append(dst, o.mu.listed[i].key)
			}
		}
	})
	return dst
}

// leasedLocked returns the slot for which a lease holds.
func (o *Owner) leasedLocked(notes memory, at int, now int64) (slot int, ok bool) {
	leased := notes.load(at + wordLeased)
	if leased == 0 || leased > uint64(len(o.mu.listed)) {
		return 0, false
	}
	l, until := &o.mu.listed[leased-1], int64(notes.load(at+wordLeaseUntil))
	held := l.serial != 0 && notes.load(at+wordLeaseGeneration) == l.generation
	return int(leased - 1), held && until > now && until-now <= int64(MaxLease)
}

// Close gives the memory back, after the last request. See xfer.SharedRegion.Close.
func (o *Owner) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.memory != nil {
		o.mu.memory.word(wordEpoch).Store(0)
		o.mu.memory = nil
	}
	return o.region.Close()
}
