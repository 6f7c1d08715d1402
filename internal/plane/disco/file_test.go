package disco

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
)

// fileWorld is a directory inside a bubble, and processes that share it.
type fileWorld struct {
	t   *testing.T
	dir string
	log syncLog
}

type syncLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

const fileTTL = 10 * time.Second

func inDir(t *testing.T, test func(*testing.T, *fileWorld)) {
	dir := filepath.Join(t.TempDir(), "a", "b") // created by the registry
	synctest.Test(t, func(t *testing.T) { test(t, &fileWorld{t: t, dir: dir}) })
}

// process returns a registry as another process has it.
func (w *fileWorld) process() *FileRegistry {
	w.t.Helper()
	f, err := NewFileRegistry(FileConfig{Dir: w.dir, TTL: fileTTL, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(f.Close)
	return f
}

// follow returns what a watch of workers shows, as "1@a 2@b?".
func (w *fileWorld) follow(f *FileRegistry) (last func() string) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	text := "nothing"
	done := make(chan error, 1)
	go func() {
		done <- f.Watch(ctx, KindWorker, func(set []Instance) {
			mu.Lock()
			defer mu.Unlock()
			text = showSet(set)
		})
	}()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Watch: %v", err)
		}
	})
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return text
	}
}

func showSet(set []Instance) string {
	var parts []string
	for _, in := range set {
		s := fmt.Sprintf("%d@%s", in.ID, in.Addr)
		if in.Unconfirmed {
			s += "?"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

func (w *fileWorld) register(f *FileRegistry, in Instance) Lease {
	w.t.Helper()
	l, err := f.Register(w.t.Context(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// after checks what is shown after a while.
func (w *fileWorld) after(d time.Duration, last func() string, want string) {
	w.t.Helper()
	<-time.After(d)
	if got := last(); got != want {
		w.t.Errorf("shown [%s], want [%s]", got, want)
	}
}

// files returns how many files are in the directory.
func (w *fileWorld) files() int {
	w.t.Helper()
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(entries)
}

// TestFileCrash: an instance which stops refreshing is gone after its TTL and not before, and its
// file is removed later; an instance which refreshes stays.
func TestFileCrash(t *testing.T) {
	inDir(t, func(t *testing.T, w *fileWorld) {
		alive, crashed := w.process(), w.process()
		last := w.follow(alive)
		w.register(alive, instance(1, "a"))
		w.register(crashed, instance(2, "b"))
		if err := os.WriteFile(filepath.Join(w.dir, tempPrefix+"abc"), nil, 0o600); err != nil { // died while it wrote
			t.Fatal(err)
		}
		w.after(5*fileTTL, last, "1@a 2@b")
		crashed.Close()
		w.after(fileTTL/2, last, "1@a 2@b")
		w.after(fileTTL, last, "1@a")
		w.after(4*fileTTL, last, "1@a")
		if n := w.files(); n != 1 {
			t.Errorf("%d files are left, want one", n)
		}
		w.register(alive, instance(2, "again"))
		w.after(time.Second, last, "1@a 2@again")
	})
}

// TestFileOutage: while the directory is out of reach nothing is lost, and both
// sides find each other again, with or without what was in it.
func TestFileOutage(t *testing.T) {
	for _, keep := range []bool{true, false} {
		t.Run(fmt.Sprintf("kept %v", keep), func(t *testing.T) {
			inDir(t, func(t *testing.T, w *fileWorld) {
				alive, dies := w.process(), w.process()
				last := w.follow(alive)
				lease := w.register(alive, instance(1, "a"))
				w.register(dies, instance(2, "b"))
				w.after(fileTTL, last, "1@a 2@b")
				if err := os.Rename(w.dir, w.dir+".away"); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(w.dir, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				w.after(time.Second, last, "1@a? 2@b?")
				dies.Close()
				w.after(5*fileTTL, last, "1@a? 2@b?")
				moved := instance(1, "moved")
				if err := lease.Update(t.Context(), moved); fault.CodeOf(err) != fault.Unavailable {
					t.Errorf("Update: %v, want Unavailable", err)
				}
				if _, err := alive.Register(t.Context(), instance(3, "c")); fault.CodeOf(err) != fault.Unavailable {
					t.Errorf("Register: %v, want Unavailable", err)
				}
				if err := os.Remove(w.dir); err != nil {
					t.Fatal(err)
				}
				if keep {
					if err := os.Rename(w.dir+".away", w.dir); err != nil {
						t.Fatal(err)
					}
				}
				w.after(fileTTL/2, last, map[bool]string{true: "1@moved 2@b", false: "1@moved 2@b?"}[keep])
				w.after(3*fileTTL, last, "1@moved")
				if n := strings.Count(w.log.String(), "registration refreshed again"); n != 1 {
					t.Errorf("the log tells %d times that refreshing works again", n)
				}
			})
		})
	}
}

// TestFileWatchesTogether: what one watch has seen the others of its process see
// with it, and what the process registers itself at once.
func TestFileWatchesTogether(t *testing.T) {
	inDir(t, func(t *testing.T, w *fileWorld) {
		here, there := w.process(), w.process()
		every := here.cfg.Interval
		first := w.follow(here)
		w.after(every/2, first, "")
		second := w.follow(here) // looks half a period later
		w.after(every/4, second, "")
		lease := w.register(there, instance(1, "a"))
		w.after(every/4+1, first, "1@a")
		w.after(0, second, "1@a")
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.after(every/2, second, "") // which looks first now
		w.after(0, first, "")
		w.register(here, instance(2, "b"))
		w.after(0, first, "2@b")
		w.after(0, second, "2@b")
	})
}

// TestFileTakesOver: an equal epoch is a conflict while its process lives, in this
// process or another, and none when it is dead.
func TestFileTakesOver(t *testing.T) {
	inDir(t, func(t *testing.T, w *fileWorld) {
		first, second := w.process(), w.process()
		w.register(first, instance(1, "a"))
		start := time.Now()
		if _, err := first.Register(t.Context(), instance(1, "b")); fault.CodeOf(err) != fault.Conflict || time.Since(start) != 0 {
			t.Errorf("in one process: %v after %v", err, time.Since(start))
		}
		if _, err := second.Register(t.Context(), instance(1, "b")); fault.CodeOf(err) != fault.Conflict || time.Since(start) > fileTTL/2 {
			t.Errorf("in another: %v after %v", err, time.Since(start))
		}
		first.Close()
		if _, err := first.Register(t.Context(), instance(9, "x")); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("after Close: %v", err)
		}
		w.register(second, instance(1, "b"))
		last := w.follow(second)
		w.after(0, last, "1@b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.process().Register(ctx, instance(1, "c")); err != context.DeadlineExceeded {
			t.Errorf("without the time to see: %v", err)
		}
	})
}

// TestFileNewerLifeElsewhere: a process that was replaced from another notices,
// and its late refresh brings nothing back.
func TestFileNewerLifeElsewhere(t *testing.T) {
	inDir(t, func(t *testing.T, w *fileWorld) {
		first, second := w.process(), w.process()
		old := w.register(first, instance(1, "old"))
		last := w.follow(first)
		w.after(0, last, "1@old")
		newer := instance(1, "new")
		newer.Epoch = 2
		w.register(second, newer)
		if n := w.files(); n != 1 {
			t.Errorf("%d files at once, want one", n)
		}
		w.after(2*fileTTL, last, "1@new")
		if err := old.Update(t.Context(), instance(1, "older")); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("Update of the old life: %v", err)
		}
		if err := old.Release(t.Context()); err != nil {
			t.Error(err)
		}
		w.after(time.Second, last, "1@new")
		if n := strings.Count(w.log.String(), "registration lost"); n != 1 {
			t.Errorf("the log tells %d times that the old life was replaced", n)
		}
		if n := w.files(); n != 1 {
			t.Errorf("%d files, want one", n)
		}
	})
}

// TestFileRace: of two concurrent registrations the higher epoch wins, in any order of writing; of
// equal epochs the smaller holder.
func TestFileRace(t *testing.T) {
	inDir(t, func(t *testing.T, w *fileWorld) {
		f := w.process()
		lease := func(epoch uint64, holder string) *fileLease {
			t.Helper()
			in := instance(1, holder)
			in.Epoch = epoch
			l, err := f.newLease(in)
			if err != nil {
				t.Fatal(err)
			}
			l.file.holder = holder
			if err := errors.Join(l.setRecord(in), l.writeFile()); err != nil {
				t.Fatal(err)
			}
			return l
		}
		// All have written before any of them looks again.
		low, b, a := lease(1, "c"), lease(2, "b"), lease(2, "a")
		if err := b.resolveRivals(); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("the greater holder: %v", err)
		}
		if err := low.resolveRivals(); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("the lower epoch: %v", err)
		}
		if err := a.resolveRivals(); err != nil {
			t.Errorf("the one that counts: %v", err)
		}
		if n := w.files(); n != 1 {
			t.Errorf("%d files, want one", n)
		}
	})
}

// TestFileUnreadable: what cannot be read is skipped and counted once, and what
// was known of its instance stays.
func TestFileUnreadable(t *testing.T) {
	inDir(t, func(t *testing.T, w *fileWorld) {
		f := w.process()
		last := w.follow(f)
		w.register(f, instance(1, "a"))
		w.after(0, last, "1@a") // no watch reads while the file is half written
		stray := leaseFileName{instanceKey{KindWorker, 2}, 1, "abc"}
		for _, name := range []string{stray.String(), "README", "worker.x.1.abc.json", "worker.3.1.ABC.json"} {
			if err := os.WriteFile(filepath.Join(w.dir, name), []byte("what"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(w.dir, leaseFileName{instanceKey{KindWorker, 4}, 1, "abc"}.String()), 0o700); err != nil {
			t.Fatal(err)
		}
		w.after(fileTTL, last, "1@a")
		if n := f.Malformed(); n != 1 {
			t.Errorf("%d malformed files, want 1", n)
		}
		names, err := f.listFiles(func(n leaseFileName) bool { return n.id == 1 })
		if err != nil || len(names) != 1 {
			t.Fatal(names, err)
		}
		if err := os.WriteFile(f.filePath(names[0]), []byte("scribbled"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.after(time.Second, last, "1@a")
	})
}

// looker is a watcher whose time the test makes.
func looker(t *testing.T) (w *fileWatcher, write func(id int, count uint64)) {
	t.Helper()
	f, err := NewFileRegistry(FileConfig{Dir: t.TempDir(), TTL: fileTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return &fileWatcher{reg: f, kind: KindWorker, view: newInstanceView(fileTTL)}, func(id int, count uint64) {
		t.Helper()
		in := instance(1, "a")
		n := leaseFileName{instanceKey{KindWorker, in.ID}, uint64(id), "abc"}
		in.Epoch = n.epoch
		data, err := encodeRecord(instanceRecord{in, n.holder})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.replaceFile(n, encodeFile(data, count)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFileReaderStoodStill: a reader which was itself suspended does not mistake live instances for
// dead, nor dead ones for alive.
func TestFileReaderStoodStill(t *testing.T) {
	w, write := looker(t)
	at := time.Unix(1000, 0)
	step := func(d time.Duration, want string) {
		t.Helper()
		at = at.Add(d)
		w.readDirectory(at)
		w.view.dropUnconfirmed(at)
		if err := w.view.Check(); err != nil {
			t.Error(err)
		}
		if got := showSet(w.view.shownInstances()); got != want {
			t.Errorf("at %v shown [%s], want [%s]", at, got, want)
		}
	}
	write(1, 1)
	step(0, "1@a")
	step(time.Hour, "1@a")
	for range 3 {
		step(fileTTL/4, "1@a")
	}
	step(fileTTL/4, "")
	step(time.Minute, "") // it was silent for a TTL that was watched
}

// TestFileNewestAliveCounts: a life that fell silent gives way to one that lives,
// whichever is newer.
func TestFileNewestAliveCounts(t *testing.T) {
	w, write := looker(t)
	at := time.Unix(1000, 0)
	for i := range 100 { // in whatever order the two are found
		if i == 0 {
			write(2, 1)
		}
		write(1, uint64(i))
		w.readDirectory(at)
		at = at.Add(fileTTL / 4)
		set := w.view.shownInstances()
		if want := map[bool]uint64{true: 2, false: 1}[i < 4]; len(set) != 1 || set[0].Epoch != want {
			t.Errorf("look %d shows %+v, want epoch %d", i, set, want)
		}
	}
}

// TestFileBytes: name and contents follow docs/format/disco.md.
func TestFileBytes(t *testing.T) {
	n := leaseFileName{instanceKey{KindWorker, 7}, 3, "9f86d081884c7d659a2feaa0c55ad015"}
	if got, want := n.String(), "worker.7.3.9f86d081884c7d659a2feaa0c55ad015.json"; got != want {
		t.Errorf("named %s, want %s", got, want)
	}
	const want = `{"kind":"worker","id":7,"epoch":3,"namespace":"penstock","component":"backend","endpoint":"generate",` +
		`"addr":"tcp://127.0.0.1:7001","host":"node-1","pid":4242,"holder":"9f86d081884c7d659a2feaa0c55ad015"}` + "\n" + `{"beat":12}` + "\n"
	r := instanceRecord{Instance{
		Kind: KindWorker, ID: 7, Epoch: 3, Namespace: "penstock", Component: "backend", Endpoint: "generate",
		Addr: "tcp://127.0.0.1:7001", Host: "node-1", PID: 4242,
	}, n.holder}
	data, err := encodeRecord(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(encodeFile(data, 12)); got != want {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
	back, count, err := decodeFile(n, []byte(want))
	if err != nil || count != 12 || !reflect.DeepEqual(back, r) {
		t.Errorf("read back as %+v, %d, %v", back, count, err)
	}
	for name, bad := range map[string]string{
		"one line": strings.Split(want, "\n")[0], "no beat": strings.Split(want, "\n")[0] + "\n",
		"another life": strings.Replace(want, `"epoch":3`, `"epoch":4`, 1), "another holder": strings.Replace(want, `"holder":"9`, `"holder":"8`, 1),
		"negative": strings.Replace(want, `"beat":12`, `"beat":-1`, 1), "too long": strings.Repeat("x", maxFile+1),
	} {
		if _, _, err := decodeFile(n, []byte(bad)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestFileConfig(t *testing.T) {
	for name, cfg := range map[string]FileConfig{
		"no directory": {}, "short": {Dir: "d", TTL: time.Millisecond}, "rare": {Dir: "d", TTL: time.Second, Interval: time.Second},
		"negative": {Dir: "d", Interval: -1},
	} {
		if _, err := NewFileRegistry(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// What is accepted is of the registration that the name says, and survives being
// written and read again.
func FuzzDecodeFile(f *testing.F) {
	n := leaseFileName{instanceKey{KindWorker, 1}, 2, "abc"}
	f.Add([]byte(`{"kind":"worker","id":1,"epoch":2,"holder":"abc"}` + "\n" + `{"beat":1}` + "\n"))
	f.Add([]byte(`{"kind":"worker","id":1,"epoch":2,"holder":"abc","meta":"AAA="}` + "\n" + `{"beat":18446744073709551615,"later":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, count, err := decodeFile(n, data)
		if err != nil {
			return
		}
		if r.Kind != n.kind || r.ID != n.id || r.Epoch != n.epoch || r.Holder != n.holder {
			t.Fatalf("accepted %+v", r)
		}
		out, err := encodeRecord(r)
		if err != nil {
			return // escapes may make it longer
		}
		again, c, err := decodeFile(n, encodeFile(out, count))
		if len(r.Meta) == 0 {
			r.Meta = nil // omitted
		}
		if err != nil || c != count || !reflect.DeepEqual(again, r) {
			t.Fatalf("error %v\nfirst  %+v\nsecond %+v", err, r, again)
		}
	})
}

func FuzzSplitFileName(f *testing.F) {
	f.Add("worker.7.3.9f86d081884c7d659a2feaa0c55ad015.json")
	f.Add("worker.07.3.ab.json")
	f.Add("../worker.7.3.ab.json")
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := parseFileName(s); ok && (n.String() != s || filepath.Base(s) != s) {
			t.Errorf("%q is read as %q", s, n.String())
		}
	})
}
