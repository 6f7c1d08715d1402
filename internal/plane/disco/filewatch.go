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

// fileWatcher is one Watch: it reads the directory again and again and tells its
// view what changed. Times are its own: of a file it knows when it saw it change
// last.
type fileWatcher struct {
	reg     *File
	kind    Kind
	sink    func([]Instance)
	view    *view
	seen    map[fileName]*seenFile
	fed     map[kv.WorkerID]fedInstance // what the view was told since contact
	temps   map[string]tempFile
	looked  time.Time // at the directory, with success
	shown   []Instance
	any     bool // sink was called
	lost    bool // and it is in the log
	reports throttle
}

// seenFile is one file as it was read last.
type seenFile struct {
	sum      [sha256.Size]byte
	changed  time.Time // when it was first read like that
	tried    time.Time // when its removal was tried last
	instance Instance
	readable bool
}

// fedInstance is what the view knows of an instance.
type fedInstance struct {
	file  fileName
	alive bool
	in    Instance
}

// tempFile is a file that is being written, or was when its process died.
type tempFile struct{ modified, since time.Time }

// Watch implements Registry. The first set comes once the directory could be read.
// Of what is there then, the dead are shown too until they have been silent for a
// TTL: nobody can tell them by looking once.
func (f *File) Watch(ctx context.Context, kind Kind, sink func([]Instance)) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	w := &fileWatcher{reg: f, kind: kind, sink: sink, view: newView(f.cfg.TTL)}
	_ = os.MkdirAll(f.cfg.Dir, 0o755) // or it is out of reach, which is told
	wake, leave := f.join()
	defer leave()
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		w.look(now)
		w.view.tick(now)
		if ctx.Err() == nil {
			w.show()
		}
		select {
		case <-tick.C:
		case <-wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// look reads the directory and tells the view.
func (w *fileWatcher) look(now time.Time) {
	names, err := w.reg.list(w.ours)
	if err != nil {
		w.disconnect(err)
		return
	}
	w.connect(now)
	// Someone who replaces a file may hide it from a listing; its name finds it.
	for n := range w.seen {
		names = append(names, n)
	}
	w.read(now, names)
	if w.anyMissing() { // unless its next life came while the listing was made
		if names, err = w.reg.list(w.ours); err != nil {
			w.disconnect(err)
			return
		}
		w.read(now, names)
	}
	w.feed(now)
	if w.view.contact == reading {
		w.view.synced(now)
	}
	w.collect(now)
}

func (w *fileWatcher) ours(n fileName) bool { return n.kind == w.kind }

// connect begins anew after the directory was out of reach: nothing that was seen
// before counts. If it was this process that stood still, everyone gets a new TTL.
func (w *fileWatcher) connect(now time.Time) {
	if w.view.contact != live {
		w.view.begin()
		w.seen, w.fed = map[fileName]*seenFile{}, map[kv.WorkerID]fedInstance{}
		w.temps = map[string]tempFile{}
		if w.lost {
			w.lost = false
			w.reg.cfg.Log.Info("discovery watch resumed", "kind", w.kind)
		}
	} else if now.Sub(w.looked) > w.reg.cfg.TTL/2 {
		for _, s := range w.seen {
			if w.looked.Sub(s.changed) < w.reg.cfg.TTL {
				s.changed = now
			}
		}
	}
	w.looked = now
}

func (w *fileWatcher) disconnect(err error) {
	if !w.lost {
		w.lost = true
		w.reg.cfg.Log.Warn("discovery watch interrupted", "kind", w.kind, "err", dirUnavailable("read", err))
	}
	if w.view.contact != never && w.view.contact != lost {
		w.view.disconnect()
	}
}

// read reads the named files; those that are gone are forgotten.
func (w *fileWatcher) read(now time.Time, names []fileName) {
	for _, n := range names {
		data, err := w.reg.load(n)
		if err != nil {
			if ignoreMissing(err) == nil {
				delete(w.seen, n)
			} else {
				w.report(now, n, err) // it stays as it was seen last
			}
			continue
		}
		w.saw(now, n, data)
	}
}

// saw takes over the contents of a file.
func (w *fileWatcher) saw(now time.Time, n fileName, data []byte) {
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
		w.report(now, n, err) // what was known stays
		return
	}
	s.instance, s.readable = r.Instance, true
}

// anyMissing reports whether an instance that the view knows has no file.
func (w *fileWatcher) anyMissing() bool {
	have := map[kv.WorkerID]bool{}
	for n := range w.seen {
		have[n.id] = true
	}
	for id := range w.fed {
		if !have[id] {
			return true
		}
	}
	return false
}

// feed tells the view what changed. Of an instance the newest registration that is
// alive counts, else the newest.
func (w *fileWatcher) feed(now time.Time) {
	next := map[kv.WorkerID]fedInstance{}
	for n, s := range w.seen {
		if !s.readable {
			continue
		}
		f := fedInstance{n, now.Sub(s.changed) < w.reg.cfg.TTL, s.instance}
		if have, ok := next[n.id]; !ok || f.alive && !have.alive || f.alive == have.alive && n.newer(have.file) {
			next[n.id] = f
		}
	}
	ids := slices.Sorted(maps.Keys(next))
	for _, id := range ids {
		f, was := next[id], w.fed[id]
		if was.file != f.file || !equalInstances(was.in, f.in) {
			w.view.put(now, f.in, 0)
		}
		switch {
		case f.alive:
			w.view.refresh(now, id, 0) // beats are counted here
		case was.alive:
			w.view.expired(now, id)
		}
	}
	for id := range w.fed { // each is its own affair
		if _, ok := next[id]; !ok {
			w.view.removed(id)
			w.view.expired(now, id)
		}
	}
	w.fed = next
}

// show calls sink if what is shown has changed.
func (w *fileWatcher) show() {
	if !w.view.touched || !w.view.complete {
		return
	}
	w.view.touched = false
	set := w.view.set()
	if w.any && equalSets(set, w.shown) {
		return
	}
	w.any, w.shown = true, cloneSet(set)
	w.reg.poke() // this watch too, which will find nothing new
	w.sink(set)
}

// report counts what could not be read and logs some of it.
func (w *fileWatcher) report(now time.Time, n fileName, err error) {
	w.reg.malformed.Add(1)
	if count, ok := w.reports.admit(now); ok {
		w.reg.cfg.Log.Warn("unreadable discovery file skipped", "file", n.String(), "err", err, "since_last_report", count)
	}
}

// collect removes the files of the dead: those that have not changed for three
// TTLs. A process that comes back meanwhile writes its file again.
func (w *fileWatcher) collect(now time.Time) {
	for n, s := range w.seen {
		if now.Sub(s.changed) < 3*w.reg.cfg.TTL || now.Sub(s.tried) < w.reg.cfg.TTL {
			continue
		}
		s.tried = now
		if data, err := w.reg.load(n); err == nil && sha256.Sum256(data) == s.sum {
			if err := w.reg.remove(n); err != nil {
				w.report(now, n, fault.New(fault.Unavailable, "remove the file of a dead process: %w", err))
			}
		}
	}
	w.collectTemps(now)
}

// collectTemps removes what was being written by processes that died at it.
func (w *fileWatcher) collectTemps(now time.Time) {
	entries, err := os.ReadDir(w.reg.cfg.Dir)
	if err != nil {
		return // the next look tells
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
			_ = os.Remove(filepath.Join(w.reg.cfg.Dir, e.Name())) // or another does
			continue
		}
		next[e.Name()] = t
	}
	w.temps = next
}
