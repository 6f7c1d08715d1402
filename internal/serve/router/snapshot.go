package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/residency"
	"penstock/core/snapshot"
)

// streamPosition is a position in one life of the event stream. The zero value is before all others.
type place struct{ life, seq uint64 }

// cacheContent is what a snapshot holds: all that records have changed.
type content struct {
	index   *prefix.Index
	tracker *feed.Tracker
	pools   *residency.Table
	sources map[kv.Worker]*source
}

// newContent returns the content before the first record. Its tracker requests nothing until
// releaseRequests, and nothing from workers that discovery does not list: they may be long gone. The
// tracker is used with mu held.
func (c *cache) newContent() (content, error) {
	policy := c.cfg.Feed
	policy.Reach = func(w kv.Worker) bool { return c.mu.lives[w].publishes }
	tracker, err := feed.NewTracker(policy)
	if err != nil {
		return content{}, err
	}
	tracker.Hold()
	index, err := prefix.New(c.cfg.Index)
	if err != nil {
		return content{}, err
	}
	pools, err := residency.New(c.cfg.Residency)
	if err != nil {
		return content{}, err
	}
	return content{index, tracker, pools, map[kv.Worker]*source{}}, nil
}

// snapshotPart is one section of a snapshot: how it is written and read. Its version is the version of
// the frame; the data carries the version of its own format.
type part struct {
	kind snapshot.Kind
	need snapshot.Need
	fill func(dst []byte) []byte
	load func(data []byte) error
}

const partVersion = 1

// snapshotParts returns the sections of a snapshot of k, in the order in which they are loaded. A new kind of
// state gets a line here.
func (k *content) parts(now kv.Mono) []part {
	return []part{
		{snapshot.Index, snapshot.Required, k.index.AppendSnapshot, k.index.LoadSnapshot},
		{snapshot.Feeds, snapshot.Required, k.tracker.AppendSnapshot, func(data []byte) error { return k.tracker.LoadSnapshot(now, data) }},
		// The index holds the blocks in pools; this section holds when they expire.
		{
			snapshot.Residency, snapshot.Required,
			func(dst []byte) []byte { return k.pools.AppendSnapshot(dst, now) },
			func(data []byte) error { return k.pools.LoadSnapshot(data, now) },
		},
		{snapshot.Workers, snapshot.Required, k.appendSources, func(data []byte) error { return k.loadSources(now, data) }},
	}
}

// takeSnapshot returns the content as a snapshot, and the position that it covers; nil before the first
// record. It is encoded between two records: records wait for the encoding, decisions and checksums do
// not. size estimates its length in bytes.
func (c *cache) snapshot(taken int64, size int) (place, []byte) {
	at, w := c.encode(taken, size)
	if w == nil {
		return at, nil
	}
	return at, w.Finish()
}

func (c *cache) encode(taken int64, size int) (place, *snapshot.Writer) {
	buf := make([]byte, 0, size)
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.mu.place
	if at.life == 0 {
		return at, nil
	}
	w := snapshot.NewWriter(buf, snapshot.Header{Life: at.life, Seq: at.seq, Taken: taken})
	for _, p := range c.mu.content.parts(c.now()) {
		w.Add(p.kind, partVersion, p.need, p.fill)
	}
	return at, w
}

// restoreSnapshot replaces the content by a snapshot. After an error nothing has changed.
func (c *cache) restore(data []byte) (snapshot.Header, error) {
	k, err := c.newContent()
	if err != nil {
		return snapshot.Header{}, err
	}
	c.mu.Lock() // only to read the time: nothing else refers to k yet
	now := c.now()
	c.mu.Unlock()
	parts := k.parts(now)
	h, sections, err := snapshot.Open(data, func(s snapshot.Section) bool {
		return s.Version == partVersion && slices.ContainsFunc(parts, func(p part) bool { return p.kind == s.Kind })
	})
	if err != nil {
		return h, err
	}
	for _, p := range parts {
		at := slices.IndexFunc(sections, func(s snapshot.Section) bool { return s.Kind == p.kind })
		switch {
		case at >= 0:
			if err := p.load(sections[at].Data); err != nil {
				return h, err
			}
		case p.need == snapshot.Required:
			return h, fmt.Errorf("the snapshot has no section %v", p.kind)
		}
	}
	c.install(k, place{h.Life, h.Seq})
	return h, nil
}

// resetContent drops all content.
func (c *cache) reset() error {
	k, err := c.newContent()
	if err == nil {
		c.install(k, place{})
	}
	return err
}

// installContent replaces the content by k, which covers the stream up to at, and drops the parts of it
// that discovery contradicts.
func (c *cache) install(k content, at place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.content, c.mu.place = k, at
	c.live.Store(k.index)
	c.mu.asked = c.mu.asked[:0]
	// Nothing else would ever drop a feed without records of a worker that discovery does not list.
	c.mu.tracker.Keep(func(w kv.Worker) bool {
		_, exists := c.mu.lives[w]
		return exists || k.sources[w] != nil
	})
	for _, w := range k.index.AppendWorkers(nil) {
		if _, known := k.sources[w]; !known {
			c.forget(w)
		}
	}
	for w, s := range k.sources { // the order does not matter
		l, known := c.mu.lives[w]
		switch {
		case known && s.epoch < l.epoch:
			c.forget(w)
		case known && c.mismatch(w) != 0:
			c.drop(w)
		}
	}
}

// position returns the position of the last message that was judged.
func (c *cache) where() place {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.place
}

// skipTo records the position of a message without usable content.
func (c *cache) pass(at place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.place = at
}

// sourceSize is the bytes of a worker in its section: id, rank, epoch and block size. See
// docs/format/snapshot.md.
const sourceSize = 8 + 4 + 8 + 4

// maxLoaded bounds the workers in that section: maxSources, and the workers that discovery listed.
const maxLoaded = 4 * maxSources

func (k *content) appendSources(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(k.sources)))
	workers := make([]kv.Worker, 0, len(k.sources))
	for w := range k.sources {
		workers = append(workers, w)
	}
	slices.SortFunc(workers, kv.Worker.Compare)
	for _, w := range workers {
		s := k.sources[w]
		dst = binary.LittleEndian.AppendUint64(dst, uint64(w.ID))
		dst = binary.LittleEndian.AppendUint32(dst, w.Rank)
		dst = binary.LittleEndian.AppendUint64(dst, s.epoch)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(s.blockSize))
	}
	return dst
}

// loadSources reads what appendSources wrote. The workers in it count as first heard of now.
func (k *content) loadSources(now kv.Mono, data []byte) error {
	if len(data) < 4 {
		return errors.New("the section workers is cut off")
	}
	n := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if n > maxLoaded || uint64(len(data)) != uint64(n)*sourceSize {
		return fmt.Errorf("the section workers says that it has %d, in %d bytes", n, len(data))
	}
	var last kv.Worker
	for i := range n {
		w := kv.Worker{ID: kv.WorkerID(binary.LittleEndian.Uint64(data)), Rank: binary.LittleEndian.Uint32(data[8:])}
		if w.ID > kv.MaxWorkerID || i > 0 && w.Compare(last) <= 0 {
			return fmt.Errorf("the section workers is not in order at worker %d", i)
		}
		k.sources[w] = &source{epoch: binary.LittleEndian.Uint64(data[12:]), since: now, blockSize: int(binary.LittleEndian.Uint32(data[20:]))}
		last, data = w, data[sourceSize:]
	}
	return nil
}
