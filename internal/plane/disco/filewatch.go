package disco

import (
	"context"
	"crypto/sha256"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// fileWatcher is one Watch: it reads the directory periodically and passes the changes to its view.
// All times are local: it records when it last saw each file change.
type fileWatcher struct {
	reg       *FileRegistry
	kind      Kind
	sink      func([]Instance)
	view      *instanceView
	seen      map[leaseFileName]*seenFile
	viewed    map[kv.WorkerID]viewedInstance // what the view knows since contact was established
	temps     map[string]tempFile
	lastRead  time.Time // last successful read of the directory
	lastShown []Instance
	shownOnce bool // sink was called
	lost      bool // the directory is unreachable, and that was logged
	reports   reportThrottle
}

// seenFile is one file as it was last read.
type seenFile struct {
	sum      [sha256.Size]byte
	changed  time.Time // when this content was first read
	tried    time.Time // when its removal was last tried
	instance Instance
	readable bool
}

// viewedInstance is what the view knows about an instance.
type viewedInstance struct {
	file  leaseFileName
	alive bool
	in    Instance
}

// tempFile is a file that is being written, or whose process crashed while writing it.
type tempFile struct{ modified, since time.Time }

// Watch implements Registry. The first set arrives once the directory could be read. It includes
// dead instances until they have been silent for a TTL, because a single read cannot detect them.
func (f *FileRegistry) Watch(ctx context.Context, kind Kind, sink func([]Instance)) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	w := &fileWatcher{reg: f, kind: kind, sink: sink, view: newInstanceView(f.cfg.TTL)}
	_ = os.MkdirAll(f.cfg.Dir, 0o755) // an error shows when the directory is read
	wake, leave := f.addWatch()
	defer leave()
	tick := time.NewTicker(f.cfg.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		w.readDirectory(now)
		w.view.dropUnconfirmed(now)
		if ctx.Err() == nil {
			w.showSet()
		}
		select {
		case <-tick.C:
		case <-wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// readDirectory reads the directory and updates the view.
func (w *fileWatcher) readDirectory(now time.Time) {
	names, err := w.reg.listFiles(w.matchesKind)
	if err != nil {
		w.markDisconnected(err)
		return
	}
	w.markConnected(now)
	// A listing may miss a file which is being replaced, but opening it by name finds it.
	for n := range w.seen {
		names = append(names, n)
	}
	w.readFiles(now, names)
	if w.hasMissing() { // unless its next incarnation appeared while the listing was made
		if names, err = w.reg.listFiles(w.matchesKind); err != nil {
			w.markDisconnected(err)
			return
		}
		w.readFiles(now, names)
	}
	w.updateView(now)
	if w.view.contact == contactReading {
		w.view.finishReading(now)
	}
	w.removeDeadFiles(now)
}

func (w *fileWatcher) matchesKind(n leaseFileName) bool { return n.kind == w.kind }

// markConnected resets the state after the directory was unreachable: earlier observations no
// longer count. If this process itself was suspended, every live instance gets a new TTL.
func (w *fileWatcher) markConnected(now time.Time) {
	if w.view.contact != contactLive {
		w.view.startReading()
		w.seen, w.viewed = map[leaseFileName]*seenFile{}, map[kv.WorkerID]viewedInstance{}
		w.temps = map[string]tempFile{}
		if w.lost {
			w.lost = false
			w.reg.cfg.Log.Info("discovery watch resumed", "kind", w.kind)
		}
	} else if now.Sub(w.lastRead) > w.reg.cfg.TTL/2 {
		for _, s := range w.seen {
			if w.lastRead.Sub(s.changed) < w.reg.cfg.TTL {
				s.changed = now
			}
		}
	}
	w.lastRead = now
}

func (w *fileWatcher) markDisconnected(err error) {
	if !w.lost {
		w.lost = true
		w.reg.cfg.Log.Warn("discovery watch interrupted", "kind", w.kind, "err", errDirUnavailable("read", err))
	}
	if w.view.contact != contactNever && w.view.contact != contactLost {
		w.view.markDisconnected()
	}
}

// readFiles reads the named files and deletes missing ones from w.seen.
func (w *fileWatcher) readFiles(now time.Time, names []leaseFileName) {
	for _, n := range names {
		data, err := w.reg.readLeaseFile(n)
		if err != nil {
			if ignoreMissing(err) == nil {
				delete(w.seen, n)
			} else {
				w.reportUnreadable(now, n, err) // its last known state stays
			}
			continue
		}
		w.recordContents(now, n, data)
	}
}

// recordContents stores the content of a file.
func (w *fileWatcher) recordContents(now time.Time, n leaseFileName, data []byte) {
	sum := sha256.Sum256(data)
	s := w.seen[n]
	if s != nil && s.sum == sum {
		return
	}
	if s == nil {
		s = &seenFile{}
		w.seen[n] = s
	}
	s.sum, s.changed = sum, now
	r, _, err := decodeFile(n, data)
	if err != nil {
		w.reportUnreadable(now, n, err) // the last known instance stays
		return
	}
	s.instance, s.readable = r.Instance, true
}

// hasMissing reports whether an instance in the view has no file.
func (w *fileWatcher) hasMissing() bool {
	have := map[kv.WorkerID]bool{}
	for n := range w.seen {
		have[n.id] = true
	}
	for id := range w.viewed {
		if !have[id] {
			return true
		}
	}
	return false
}

// updateView passes the changes to the view. For each instance the newest live registration wins,
// or the newest if none is alive.
func (w *fileWatcher) updateView(now time.Time) {
	next := map[kv.WorkerID]viewedInstance{}
	for n, s := range w.seen {
		if !s.readable {
			continue
		}
		f := viewedInstance{n, now.Sub(s.changed) < w.reg.cfg.TTL, s.instance}
		if have, ok := next[n.id]; !ok || f.alive && !have.alive || f.alive == have.alive && n.isNewerThan(have.file) {
			next[n.id] = f
		}
	}
	ids := slices.Sorted(maps.Keys(next))
	for _, id := range ids {
		f, was := next[id], w.viewed[id]
		if was.file != f.file || !equalInstances(was.in, f.in) {
			w.view.putRecord(now, f.in, 0)
		}
		switch {
		case f.alive:
			w.view.refreshLease(now, id, 0) // this watcher judges liveness by the counter
		case was.alive:
			w.view.expireLease(now, id)
		}
	}
	for id := range w.viewed {
		if _, ok := next[id]; !ok {
			w.view.removeRecord(id)
			w.view.expireLease(now, id)
		}
	}
	w.viewed = next
}

// showSet calls sink if the set has changed.
func (w *fileWatcher) showSet() {
	if !w.view.changed || !w.view.complete {
		return
	}
	w.view.changed = false
	set := w.view.shownInstances()
	if w.shownOnce && equalSets(set, w.lastShown) {
		return
	}
	w.shownOnce, w.lastShown = true, cloneSet(set)
	w.reg.wakeWatches() // also wakes this watch, which finds no change
	w.sink(set)
}

// reportUnreadable counts unreadable files and logs some of them.
func (w *fileWatcher) reportUnreadable(now time.Time, n leaseFileName, err error) {
	w.reg.malformed.Add(1)
	if count, ok := w.reports.allow(now); ok {
		w.reg.cfg.Log.Warn("unreadable discovery file skipped", "file", n.String(), "err", err, "since_last_report", count)
	}
}

// removeDeadFiles removes the files which have not changed for three TTLs. A live process which was
// only suspended writes its file again.
func (w *fileWatcher) removeDeadFiles(now time.Time) {
	for n, s := range w.seen {
		if now.Sub(s.changed) < 3*w.reg.cfg.TTL || now.Sub(s.tried) < w.reg.cfg.TTL {
			continue
		}
		s.tried = now
		if data, err := w.reg.readLeaseFile(n); err == nil && sha256.Sum256(data) == s.sum {
			if err := w.reg.removeFile(n); err != nil {
				w.reportUnreadable(now, n, fault.New(fault.Unavailable, "remove the file of a dead process: %w", err))
			}
		}
	}
	w.removeDeadTemps(now)
}

// removeDeadTemps removes the temporary files of processes which crashed while writing.
func (w *fileWatcher) removeDeadTemps(now time.Time) {
	entries, err := os.ReadDir(w.reg.cfg.Dir)
	if err != nil {
		return // the next readDirectory reports it
	}
	next := map[string]tempFile{}
	for _, e := range entries {
		holder, ok := strings.CutPrefix(e.Name(), tempPrefix)
		info, err := e.Info()
		if !ok || !isHex(holder) || err != nil {
			continue
		}
		t := w.temps[e.Name()]
		if !t.modified.Equal(info.ModTime()) {
			t = tempFile{info.ModTime(), now}
		}
		if now.Sub(t.since) >= 3*w.reg.cfg.TTL {
			_ = os.Remove(filepath.Join(w.reg.cfg.Dir, e.Name())) // another watcher may have removed it
			continue
		}
		next[e.Name()] = t
	}
	w.temps = next
}
