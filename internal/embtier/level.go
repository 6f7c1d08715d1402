package embtier

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/internal/obs"
)

const (
	// readLimit bounds a look-up in a tier, and readPause is how long a tier which was late is not asked.
	readLimit = 2 * time.Second
	readPause = 30 * time.Second
	// writeLimit bounds a write where the store can be interrupted, and writePause is how long nothing is written after
	// a failure.
	writeLimit = 30 * time.Second
	writePause = time.Minute
	// maxReads bounds the entries of a tier which are being read.
	maxReads = 4
	// maxQueue bounds what waits to be done in a tier, and keys in the memory of entries.
	maxQueue = 1024
)

// store has the bytes of a tier. Errors which are fs.ErrNotExist say that an entry is gone, errDamaged that its bytes
// cannot be right.
type store interface {
	read(ctx context.Context, key kv.Digest, size int64) ([]byte, error)
	write(ctx context.Context, key kv.Digest, record []byte) error
	remove(ctx context.Context, key kv.Digest) error
	// touch makes an entry the most recently used one for later processes and others.
	touch(ctx context.Context, key kv.Digest) error
}

var errDamaged = errors.New("damaged")

// task is something to be done by the writer of a level.
type task struct {
	do  taskKind
	key kv.Digest
}

type taskKind uint8

const (
	writeTask taskKind = iota // of what is pending
	touchTask
	removeTask
)

// pendingEntry is an entry which waits to be written.
type pendingEntry struct {
	record   embcache.TierRecord
	elements []byte
}

// level is a tier: its index, its store and what waits to be written.
type level struct {
	name string
	log  *slog.Logger
	// throttle bounds the lines about damaged entries.
	throttle *obs.Throttle
	store    store
	below    *level // nil if there is none
	wake     chan struct{}
	slots    chan struct{} // of reads
	reads    sync.WaitGroup

	maxBytes int64
	mu       struct {
		sync.Mutex
		index   *embcache.Tier
		queue   []task
		pending map[kv.Digest]pendingEntry
		// bytes are of the elements of pending, and of elements which are being copied.
		bytes   int64
		dropped uint64
		ended   bool
		// failing says that the last write failed, and that this was logged.
		failing               bool
		readAfter, writeAfter time.Time
	}
}

func newLevel(name string, capacity int64, cfg *Config) *level {
	log := cfg.Log.With("tier", name)
	l := &level{
		name: name, log: log, throttle: obs.NewThrottle(log, time.Minute), maxBytes: cfg.QueueBytes,
		wake: make(chan struct{}, 1), slots: make(chan struct{}, maxReads),
	}
	l.mu.index, l.mu.pending = embcache.NewTier(capacity), map[kv.Digest]pendingEntry{}
	return l
}

// index is for the time before the level is used.
func (l *level) index() *embcache.Tier { return l.mu.index }

func (l *level) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Tier: l.name, TierStats: l.mu.index.Stats(), Dropped: l.mu.dropped, QueuedBytes: l.mu.bytes}
}

func (l *level) has(key kv.Digest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waits := l.mu.pending[key]
	_, kept := l.mu.index.Find(key)
	return waits || kept
}

// load is Tiers.Load for one tier. An entry which waits to be written is a hit too.
func (l *level) load(ctx context.Context, key kv.Digest, accept func(*embcache.TierRecord, []byte) bool) (embcache.TierRecord, []byte, bool) {
	l.mu.Lock()
	if p, ok := l.mu.pending[key]; ok {
		l.mu.index.EndLookup(key, embcache.LookupHit)
		l.mu.Unlock()
		return p.record, p.elements, true
	}
	e, ok := l.mu.index.Find(key)
	switch {
	case !ok || time.Now().Before(l.mu.readAfter):
		l.mu.index.EndLookup(key, embcache.LookupAbsent)
		l.mu.Unlock()
		return embcache.TierRecord{}, nil, false
	case e.Until != 0 && unixNow() >= e.Until:
		l.endLocked(key, embcache.LookupExpired)
		l.mu.Unlock()
		return embcache.TierRecord{}, nil, false
	}
	l.mu.Unlock()

	data, err := l.readWithin(ctx, &e)
	r, elements, end := judgeRecord(key, data, err)
	if end == embcache.LookupHit && !accept(&r, elements) {
		end, err = embcache.LookupCorrupt, errDamaged
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, errLate) && !time.Now().Before(l.mu.readAfter) {
		l.mu.readAfter = time.Now().Add(readPause)
		l.log.Warn("a tier of the embedding cache does not answer: it is left out for a while", "limit", readLimit, "pause", readPause)
	}
	l.endLocked(key, end)
	if end == embcache.LookupCorrupt {
		l.throttle.Log(ctx, slog.LevelWarn, "an entry in a tier of the embedding cache is damaged, and is removed", "entry", entryName(key), "error", err)
	}
	if end != embcache.LookupHit {
		return embcache.TierRecord{}, nil, false
	}
	l.queueLocked(task{touchTask, key})
	return r, elements, true
}

// judgeRecord says what was read of an entry.
func judgeRecord(key kv.Digest, data []byte, err error) (r embcache.TierRecord, elements []byte, end embcache.LookupEnd) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil, embcache.LookupVanished
	case errors.Is(err, errDamaged):
		return r, nil, embcache.LookupCorrupt
	case err != nil:
		return r, nil, embcache.LookupAbsent
	}
	r, elements, err = embcache.DecodeRecord(data)
	switch {
	case err != nil || r.Key != key:
		return r, nil, embcache.LookupCorrupt
	case r.Until != 0 && unixNow() >= r.Until:
		return r, nil, embcache.LookupExpired
	}
	return r, elements, embcache.LookupHit
}

// endLocked ends a look-up, and has the writer remove what the tier does not keep.
func (l *level) endLocked(key kv.Digest, end embcache.LookupEnd) {
	if l.mu.index.EndLookup(key, end) {
		l.queueLocked(task{removeTask, key})
	}
}

var errLate = errors.New("it took too long")

// readWithin reads an entry. A read which cannot be interrupted goes on after readLimit, and its bytes are dropped.
func (l *level) readWithin(ctx context.Context, e *embcache.TierEntry) ([]byte, error) {
	within, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	late := func() error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errLate
	}
	select {
	case l.slots <- struct{}{}:
	case <-within.Done():
		return nil, late()
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	started := l.startRead(func() {
		defer func() { <-l.slots }()
		data, err := l.store.read(within, e.Key, e.Bytes)
		done <- result{data, err}
	})
	if !started {
		<-l.slots
		return nil, errEnded
	}
	select {
	case r := <-done:
		if r.err != nil && within.Err() != nil {
			return nil, late()
		}
		return r.data, r.err
	case <-within.Done():
		return nil, late()
	}
}

var errEnded = errors.New("the tiers have ended")

// startRead starts a read, for whose end Run waits, and reports whether it has: after the end of the level none begins.
func (l *level) startRead(read func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.ended {
		l.reads.Go(read)
	}
	return !l.mu.ended
}

// offer takes an entry from above: it waits to be written, unless the tier has it.
func (l *level) offer(r *embcache.TierRecord, elements []byte) {
	if !l.admit(r.Key, int64(len(elements))) {
		return
	}
	own := pendingEntry{*r, append([]byte{}, elements...)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.mu.pending[r.Key]; waits || l.mu.ended {
		l.mu.bytes -= int64(len(elements))
		return
	}
	l.mu.pending[r.Key] = own
	if !l.queueLocked(task{writeTask, r.Key}) {
		l.mu.dropped++
		l.forgetPendingLocked(r.Key)
	}
}

// admit reports whether an entry is to be queued, and counts its bytes then.
func (l *level) admit(key kv.Digest, size int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waits := l.mu.pending[key]
	switch {
	case waits:
		return false
	case l.mu.index.Refresh(key):
		l.queueLocked(task{touchTask, key})
		return false
	case l.mu.ended || len(l.mu.queue) >= maxQueue || l.mu.bytes > 0 && l.mu.bytes+size > l.maxBytes || time.Now().Before(l.mu.writeAfter):
		l.mu.dropped++
		return false
	}
	l.mu.bytes += size
	return true
}

// queueLocked has the writer do something, and reports whether there is room for it.
func (l *level) queueLocked(t task) bool {
	if l.mu.ended || len(l.mu.queue) >= maxQueue {
		return false
	}
	l.mu.queue = append(l.mu.queue, t)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// forgetPendingLocked drops an entry which waited to be written, or was.
func (l *level) forgetPendingLocked(key kv.Digest) {
	l.mu.bytes -= int64(len(l.mu.pending[key].elements))
	delete(l.mu.pending, key)
}

// run does what is queued until ctx ends.
func (l *level) run(ctx context.Context) {
	defer l.end()
	for {
		for ctx.Err() == nil {
			t, ok := l.nextTask()
			if !ok {
				break
			}
			l.doTask(ctx, t)
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
	}
}

// end drops what waits, and whatever comes later.
func (l *level) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.ended, l.mu.queue = true, nil
	l.mu.dropped += uint64(len(l.mu.pending))
	clear(l.mu.pending)
	l.mu.bytes = 0
}

func (l *level) nextTask() (t task, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.queue) == 0 {
		l.mu.queue = nil // its memory
		return t, false
	}
	t = l.mu.queue[0]
	l.mu.queue = l.mu.queue[1:]
	return t, true
}

func (l *level) doTask(ctx context.Context, t task) {
	within, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	switch t.do {
	case writeTask:
		l.writePending(within, t.key)
	case touchTask:
		if err := l.store.touch(within, t.key); err != nil {
			l.log.Debug("the use of an entry could not be recorded", "error", err)
		}
	case removeTask:
		l.removeUnlessKept(within, t.key)
	}
}

// removeUnlessKept removes an entry which left the index, unless it was written again since.
func (l *level) removeUnlessKept(ctx context.Context, key kv.Digest) {
	l.mu.Lock()
	_, kept := l.mu.index.Find(key)
	l.mu.Unlock()
	if !kept {
		l.removeEntry(ctx, key)
	}
}

func (l *level) removeEntry(ctx context.Context, key kv.Digest) {
	if err := l.store.remove(ctx, key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Debug("an entry of a tier could not be removed", "entry", entryName(key), "error", err)
	}
}

// writePending writes an entry, after what it displaces was given to the tier below.
func (l *level) writePending(ctx context.Context, key kv.Digest) {
	l.mu.Lock()
	p := l.mu.pending[key]
	var refused embcache.Refusal
	var evicted []embcache.TierEntry
	if time.Now().Before(l.mu.writeAfter) {
		refused = embcache.InUse
		l.mu.dropped++
	} else {
		size := int64(embcache.RecordHeader + len(p.elements))
		refused, evicted = l.mu.index.Reserve(embcache.TierEntry{Key: key, Bytes: size, Until: p.record.Until}, unixNow(), nil)
	}
	if refused != embcache.NotRefused {
		l.forgetPendingLocked(key)
	}
	l.mu.Unlock()
	if refused != embcache.NotRefused {
		return
	}
	for i := range evicted {
		l.moveDown(ctx, &evicted[i])
	}
	data := embcache.AppendRecord(make([]byte, 0, embcache.RecordHeader+len(p.elements)), &p.record, p.elements)
	l.finishWrite(ctx, key, l.store.write(ctx, key, data))
}

// finishWrite takes the outcome of a write. A failure stops writing for a while, and is logged once until a write
// succeeds.
func (l *level) finishWrite(ctx context.Context, key kv.Digest, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetPendingLocked(key)
	if err != nil {
		l.mu.index.Abort(key)
		if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return // the process ends
		}
		l.mu.writeAfter = time.Now().Add(writePause)
		if !l.mu.failing {
			l.mu.failing = true
			l.log.Warn("a tier of the embedding cache cannot be written: the cache goes on without it, and tries again from time to time", "error", err, "pause", writePause)
		}
		return
	}
	l.mu.index.Commit(key)
	if l.mu.failing {
		l.mu.failing = false
		l.log.Info("a tier of the embedding cache can be written again")
	}
}

// moveDown gives an evicted entry to the tier below, if there is one, and removes it here.
func (l *level) moveDown(ctx context.Context, e *embcache.TierEntry) {
	if l.below != nil && !l.below.refresh(e.Key) {
		data, err := l.store.read(ctx, e.Key, e.Bytes)
		if r, elements, end := judgeRecord(e.Key, data, err); end == embcache.LookupHit {
			l.below.offer(&r, elements)
		}
	}
	l.removeEntry(ctx, e.Key)
}

// refresh takes in that an entry was used above, and reports whether the tier has it.
func (l *level) refresh(key kv.Digest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.index.Refresh(key) {
		l.queueLocked(task{touchTask, key})
		return true
	}
	_, waits := l.mu.pending[key]
	return waits
}
