package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/poolindex"
	"penstock/core/prefix"
	"penstock/core/snapshot"
)

// streamPosition is a position in one life of the event stream. The zero value is before all others.
type streamPosition struct{ life, seq uint64 }

// cacheContent is what a snapshot holds: all that records have changed.
type cacheContent struct {
	index   *prefix.Index
	tracker *kvfeed.Tracker
	pools   *poolindex.Table
	sources map[kv.Worker]*eventSource
	// generations say which memory the pools are, as far as cards have said so.
	generations map[kv.PoolID]string
}

// newContent returns the content before the first record. Its tracker requests nothing until
// releaseRequests, and nothing from workers that discovery does not list: they may be long gone. The
// tracker is used with mu held.
func (c *cacheIndex) newContent() (cacheContent, error) {
	policy := c.cfg.Feed
	policy.CanReach = func(w kv.Worker) bool { return c.mu.lives[w].publishes }
	tracker, err := kvfeed.NewTracker(policy)
	if err != nil {
		return cacheContent{}, err
	}
	tracker.HoldRequests()
	index, err := prefix.New(c.cfg.Index)
	if err != nil {
		return cacheContent{}, err
	}
	pools, err := poolindex.New(c.cfg.Residency)
	if err != nil {
		return cacheContent{}, err
	}
	return cacheContent{index, tracker, pools, map[kv.Worker]*eventSource{}, map[kv.PoolID]string{}}, nil
}

// snapshotPart is one section of a snapshot: how it is written and read. Its version is the version of
// the frame; the data carries the version of its own format.
type snapshotPart struct {
	kind     snapshot.SectionKind
	need     snapshot.SectionNeed
	appendTo func(dst []byte) []byte
	loadFrom func(data []byte) error
	// isPresent reports whether the section is to be written; nil means always. A section which need not be
	// there may be missing.
	isPresent func() bool
}

const snapshotPartVersion = 1

// snapshotParts returns the sections of a snapshot of k, in the order in which they are loaded. A new kind of
// state gets a line here.
func (k *cacheContent) snapshotParts(now kv.Mono) []snapshotPart {
	return []snapshotPart{
		{snapshot.Index, snapshot.Required, k.index.AppendSnapshot, k.index.LoadSnapshot, nil},
		{snapshot.Feeds, snapshot.Required, k.tracker.AppendSnapshot, func(data []byte) error { return k.tracker.LoadSnapshot(now, data) }, nil},
		// The index holds the blocks in pools; this section holds when they expire.
		{
			snapshot.Residency, snapshot.Required,
			func(dst []byte) []byte { return k.pools.AppendSnapshot(dst, now) },
			func(data []byte) error { return k.pools.LoadSnapshot(data, now) }, nil,
		},
		{snapshot.PoolAccess, snapshot.Required, k.pools.AppendLists, k.pools.LoadLists, k.pools.HasLists},
		{snapshot.PoolLabels, snapshot.Optional, k.pools.AppendLabels, k.loadPoolLabels, nil},
		{snapshot.PoolGenerations, snapshot.Optional, k.appendGenerations, k.loadGenerations, func() bool { return len(k.generations) > 0 }},
		{snapshot.Workers, snapshot.Required, k.appendSources, func(data []byte) error { return k.loadSources(now, data) }, nil},
	}
}

// loadPoolLabels sets the labels of pooled blocks, in the pools and in the index.
func (k *cacheContent) loadPoolLabels(data []byte) error {
	effects, err := k.pools.LoadLabels(data, nil)
	if err == nil {
		k.pools.ApplyEffects(k.index, effects)
	}
	return err
}

// takeSnapshot returns the content as a snapshot, and the position that it covers; nil before the first
// record. It is encoded between two records: records wait for the encoding, decisions and checksums do
// not. size estimates its length in bytes.
func (c *cacheIndex) takeSnapshot(taken int64, size int) (streamPosition, []byte) {
	at, w := c.encodeContent(taken, size)
	if w == nil {
		return at, nil
	}
	return at, w.Finish()
}

func (c *cacheIndex) encodeContent(taken int64, size int) (streamPosition, *snapshot.Writer) {
	buf := make([]byte, 0, size)
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.mu.place
	if at.life == 0 {
		return at, nil
	}
	w := snapshot.NewWriter(buf, snapshot.Header{StreamID: at.life, Seq: at.seq, Taken: taken})
	for _, p := range c.mu.cacheContent.snapshotParts(c.now()) {
		if p.isPresent != nil && !p.isPresent() {
			continue
		}
		w.AddSection(p.kind, snapshotPartVersion, p.need, p.appendTo)
	}
	return at, w
}

// restoreSnapshot replaces the content by a snapshot. After an error nothing has changed.
func (c *cacheIndex) restoreSnapshot(data []byte) (snapshot.Header, error) {
	k, err := c.newContent()
	if err != nil {
		return snapshot.Header{}, err
	}
	c.mu.Lock() // only to read the time: nothing else refers to k yet
	now := c.now()
	c.mu.Unlock()
	parts := k.snapshotParts(now)
	h, sections, err := snapshot.Open(data, func(s snapshot.Section) bool {
		return s.Version == snapshotPartVersion && slices.ContainsFunc(parts, func(p snapshotPart) bool { return p.kind == s.Kind })
	})
	if err != nil {
		return h, err
	}
	for _, p := range parts {
		at := slices.IndexFunc(sections, func(s snapshot.Section) bool { return s.Kind == p.kind })
		switch {
		case at >= 0:
			if err := p.loadFrom(sections[at].Data); err != nil {
				return h, err
			}
		case p.need == snapshot.Required && p.isPresent == nil:
			return h, fmt.Errorf("the snapshot has no section %v", p.kind)
		}
	}
	c.installContent(k, streamPosition{h.StreamID, h.Seq})
	return h, nil
}

// resetContent drops all content.
func (c *cacheIndex) resetContent() error {
	k, err := c.newContent()
	if err == nil {
		c.installContent(k, streamPosition{})
	}
	return err
}

// installContent replaces the content by k, which covers the stream up to at, and drops the parts of it
// that discovery contradicts.
func (c *cacheIndex) installContent(k cacheContent, at streamPosition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.cacheContent, c.mu.place = k, at
	c.liveIndex.Store(k.index)
	c.mu.asked = c.mu.asked[:0]
	// Nothing else would ever drop a feed without records of a worker that discovery does not list.
	c.mu.tracker.KeepWorkers(func(w kv.Worker) bool {
		_, exists := c.mu.lives[w]
		return exists || k.sources[w] != nil
	})
	for _, w := range k.index.AppendWorkers(nil) {
		if _, known := k.sources[w]; !known {
			c.forgetWorkerLocked(w)
		}
	}
	for w, s := range k.sources { // the order does not matter
		l, known := c.mu.lives[w]
		switch {
		case known && s.epoch < l.epoch:
			c.forgetWorkerLocked(w)
		case known && c.mismatchedSizeLocked(w) != 0:
			c.dropWorkerLocked(w)
		}
	}
	c.separatePoolsLocked()
}

// position returns the position of the last message that was judged.
func (c *cacheIndex) position() streamPosition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.place
}

// skipTo records the position of a message without usable content.
func (c *cacheIndex) skipTo(at streamPosition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.place = at
}

// sourceSize is the bytes of a worker in its section: id, rank, epoch and block size. See
// docs/format/snapshot.md.
const sourceSize = 8 + 4 + 8 + 4

// maxLoaded bounds the workers in that section: maxSources, and the workers that discovery listed.
const maxLoaded = 4 * maxSources

func (k *cacheContent) appendSources(dst []byte) []byte {
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
func (k *cacheContent) loadSources(now kv.Mono, data []byte) error {
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
		k.sources[w] = &eventSource{epoch: binary.LittleEndian.Uint64(data[12:]), since: now, blockSize: int(binary.LittleEndian.Uint32(data[20:])), hasMoved: true}
		last, data = w, data[sourceSize:]
	}
	return nil
}
