// Package embtier keeps entries of an embedding cache in tiers below memory: a directory, and an object store which a
// fleet shares. What memory evicts goes down to the first tier, what that evicts to the next, and what is looked up and
// found comes up to memory, where its caller puts it; it stays below as well.
//
// A tier only ever saves work: what fails, is late, damaged or gone is a miss. Entries are written by one goroutine for
// each tier, from a bounded queue; what does not fit the queue is dropped and counted. Package embcache decides what a
// tier keeps ([embcache.Tier]) and what an entry is in bytes ([embcache.TierRecord]).
package embtier

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
)

// The names of tiers, as metrics and logs have them.
const (
	DiskTier   = "disk"
	ObjectTier = "object_store"
)

// Config says which tiers there are. Without any, nothing is kept.
type Config struct {
	// Dir is the directory of the disk tier, which no other process may use, and DiskCapacity its size in bytes; ""
	// is none.
	Dir          string
	DiskCapacity int64
	// Objects is the object store; nil is none. All processes together use ObjectCapacity bytes of it.
	Objects        Objects
	ObjectCapacity int64
	// QueueBytes bounds the memory of entries which wait to be written to a tier. The default is 64 MiB.
	QueueBytes int64
	Log        *slog.Logger
}

// Objects is an object store which several processes share. Names are words of lower-case hexadecimal digits.
type Objects interface {
	// PutObject stores an object, which others see whole or not at all. It is fault.Conflict if there is one.
	PutObject(ctx context.Context, name string, data []byte) error
	// GetObject returns an object of at most limit bytes, which the caller owns. It is fault.NotFound if there is
	// none, and another error if it is damaged.
	GetObject(ctx context.Context, name string, limit int64) ([]byte, error)
	// TouchObject tells followers of an object again. Without it, it does nothing.
	TouchObject(ctx context.Context, name string) error
	// DeleteObject removes an object, if there is one.
	DeleteObject(ctx context.Context, name string) error
	// FollowObjects calls sink with each object, in the order in which they were put or touched last, calls ready
	// when that was all, and goes on with each change until ctx ends or the store fails. A size of -1 says that an
	// object is gone.
	FollowObjects(ctx context.Context, sink func(name string, size int64), ready func()) error
}

// Tiers are the tiers of one process. They are safe for concurrent use.
type Tiers struct {
	levels []*level
	follow []func(context.Context)
}

// Open opens the tiers. It reads the directory of the disk tier: what an earlier process wrote is there again. The
// caller calls Run.
func Open(cfg Config) (*Tiers, error) {
	if cfg.QueueBytes == 0 {
		cfg.QueueBytes = 64 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	t := &Tiers{}
	if cfg.Dir != "" {
		l := newLevel(DiskTier, cfg.DiskCapacity, &cfg)
		disk, err := openDisk(cfg.Dir, l.index())
		if err != nil {
			return nil, err
		}
		l.store = disk
		t.levels = append(t.levels, l)
	}
	if cfg.Objects != nil {
		l := newLevel(ObjectTier, cfg.ObjectCapacity, &cfg)
		l.store = objectStore{cfg.Objects}
		t.levels = append(t.levels, l)
		t.follow = append(t.follow, func(ctx context.Context) { l.followObjects(ctx, cfg.Objects) })
	}
	for i := range t.levels[:max(0, len(t.levels)-1)] {
		t.levels[i].below = t.levels[i+1]
	}
	return t, nil
}

// Run writes what goes down until ctx ends, and returns when all reads have ended. What then waits is dropped.
func (t *Tiers) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	for _, l := range t.levels {
		parts.Go(func() { l.run(ctx) })
	}
	for _, follow := range t.follow {
		parts.Go(func() { follow(ctx) })
	}
	parts.Wait()
	for _, l := range t.levels {
		l.reads.Wait()
	}
	return nil
}

// Has reports whether a tier is believed to have an entry. It counts nothing.
func (t *Tiers) Has(key kv.Digest) bool {
	for _, l := range t.levels {
		if l.has(key) {
			return true
		}
	}
	return false
}

// Load returns the entry of a key, from the first tier which has it, and its elements, which the caller owns and must
// not change. One for which accept is false is as good as a damaged one: it leaves its tier. Load takes no longer than
// [readLimit] for each tier, and fails when ctx ends.
func (t *Tiers) Load(ctx context.Context, key kv.Digest, accept func(*embcache.TierRecord, []byte) bool) (r embcache.TierRecord, elements []byte, ok bool) {
	for _, l := range t.levels {
		if r, elements, ok = l.load(ctx, key, accept); ok || ctx.Err() != nil {
			return r, elements, ok
		}
	}
	return r, nil, false
}

// Demote takes an entry which memory has evicted. It copies elements, which are little-endian, and does not wait.
func (t *Tiers) Demote(r *embcache.TierRecord, elements []byte) {
	if len(t.levels) > 0 {
		t.levels[0].offer(r, elements)
	}
}

// Stats are figures of a tier.
type Stats struct {
	Tier string
	embcache.TierStats
	// Dropped counts the entries which were not written, since too many waited or the tier had failed.
	Dropped uint64
	// QueuedBytes are of entries which wait to be written.
	QueuedBytes int64
}

// Stats returns the figures of the tiers, the upper one first.
func (t *Tiers) Stats() (all []Stats) {
	for _, l := range t.levels {
		all = append(all, l.stats())
	}
	return all
}

// unixNow returns the Unix time in nanoseconds.
func unixNow() int64 { return time.Now().UnixNano() }
