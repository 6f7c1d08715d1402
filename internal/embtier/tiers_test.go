package embtier

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("PENSTOCK_TEST_TIER"); dir != "" {
		writeForever(dir)
	}
	fixturetest.RunTests(m)
}

// memoryObjects is an object store in memory, as several processes see it.
type memoryObjects struct {
	mu sync.Mutex
	// order has the names by when they were put or touched last.
	order []string
	data  map[string][]byte
	sinks map[*func(string, int64)]bool
	err   error // of every call, if it is set
	hangs bool  // calls wait until their context ends
}

func newMemoryObjects() *memoryObjects {
	return &memoryObjects{data: map[string][]byte{}, sinks: map[*func(string, int64)]bool{}}
}

func (m *memoryObjects) begin(ctx context.Context) error {
	m.mu.Lock()
	err, hangs := m.err, m.hangs
	m.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (m *memoryObjects) tell(name string, size int64) {
	for sink := range m.sinks {
		(*sink)(name, size)
	}
}

func (m *memoryObjects) PutObject(ctx context.Context, name string, data []byte) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data[name] != nil {
		return fault.New(fault.Conflict, "it is there")
	}
	m.data[name], m.order = bytes.Clone(data), append(m.order, name)
	m.tell(name, int64(len(data)))
	return nil
}

func (m *memoryObjects) GetObject(ctx context.Context, name string, limit int64) ([]byte, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch data := m.data[name]; {
	case data == nil:
		return nil, fault.New(fault.NotFound, "it is not there")
	case int64(len(data)) > limit:
		return nil, fault.New(fault.TooLarge, "it is large")
	default:
		return bytes.Clone(data), nil
	}
}

func (m *memoryObjects) TouchObject(ctx context.Context, name string) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.order, name); i >= 0 {
		m.order = append(slices.Delete(m.order, i, i+1), name)
		m.tell(name, int64(len(m.data[name])))
	}
	return nil
}

func (m *memoryObjects) DeleteObject(ctx context.Context, name string) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.order, name); i >= 0 {
		m.order = slices.Delete(m.order, i, i+1)
		delete(m.data, name)
		m.tell(name, -1)
	}
	return nil
}

func (m *memoryObjects) FollowObjects(ctx context.Context, sink func(string, int64), ready func()) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	for _, name := range m.order {
		sink(name, int64(len(m.data[name])))
	}
	ready()
	m.sinks[&sink] = true
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sinks, &sink)
	return nil
}

// rig is the tiers of one process in a bubble.
type rig struct {
	*Tiers
	t    *testing.T
	logs *lockedBuffer
	stop func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) count(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.b.String(), what)
}

func start(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, logs: &lockedBuffer{}}
	cfg.Log = slog.New(slog.NewTextHandler(r.logs, nil))
	var err error
	if r.Tiers, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx) // it returns nil
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(r.stop)
	synctest.Wait()
	return r
}

// rowKey is an entry of a test; elementsOf are its elements: n KiB.
func rowKey(n int, salt string) *embcache.RowKey {
	return &embcache.RowKey{Salt: salt, Kind: 1, Digest: kv.Digest{byte(n), byte(n >> 8), 1}, Encoder: "e", Type: 1}
}

func elementsOf(n, kib int) []byte { return bytes.Repeat([]byte{byte(n), byte(n >> 8), 7, 9}, kib<<8) }

func recordOf(key kv.Digest, elements []byte) *embcache.TierRecord {
	return &embcache.TierRecord{Key: key, Type: 1, Shape: embcache.Shape{Layers: 1, Rows: len(elements) / 256, Width: 64}}
}

// demote has memory evict entry n, and waits until that was written.
func (r *rig) demote(n, kib int) {
	key := rowKey(n, "").TierKey()
	r.Demote(recordOf(key, elementsOf(n, kib)), elementsOf(n, kib))
	synctest.Wait()
}

func acceptAll(*embcache.TierRecord, []byte) bool { return true }

// has reports whether entry n is found, right to the byte.
func (r *rig) has(n, kib int) bool {
	r.t.Helper()
	key := rowKey(n, "").TierKey()
	rec, elements, ok := r.Load(r.t.Context(), key, acceptAll)
	synctest.Wait()
	if ok && (rec != *recordOf(key, elements) || !bytes.Equal(elements, elementsOf(n, kib))) {
		r.t.Errorf("entry %d is another one: %+v of %d bytes", n, rec, len(elements))
	}
	return ok
}

// check compares the statistics of a tier with what is there.
func (r *rig) check() {
	r.t.Helper()
	for _, l := range r.levels {
		l.mu.Lock()
		if err := l.mu.index.Check(); err != nil {
			r.t.Error(err)
		}
		l.mu.Unlock()
	}
}

// filesOf lists the files of a directory with their sizes.
func filesOf(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err == nil {
			all[path] = st.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDisk: what memory evicts is found, also by the next process; the least recently used entries go first, in this
// process and the next; and the files are as many and as large as the statistics say.
func TestDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		cfg := Config{Dir: filepath.Join(dir, "tier"), DiskCapacity: 4 * 8 << 10} // an entry of 4 KiB and its header take 8
		r := start(t, cfg)
		for n := range 4 {
			r.demote(n, 4)
			time.Sleep(time.Second) // virtual time (synctest): files have the times of their last use
		}
		if !r.has(0, 4) || r.has(9, 4) {
			t.Error("0 should be there, and 9 not")
		}
		time.Sleep(time.Second) // virtual time (synctest), as above
		r.demote(4, 4)
		if s := r.Stats()[0]; s.Entries != 4 || s.Bytes != 32<<10 || s.Evictions != 1 || s.Hits != 1 || s.Misses != 1 || s.Additions != 5 {
			t.Errorf("%+v", s)
		}
		files := filesOf(t, dir)
		if len(files) != 4 {
			t.Errorf("files %v", files)
		}
		r.check()
		r.stop()

		r = start(t, cfg)
		if s := r.Stats()[0]; s.Entries != 4 || s.Bytes != 32<<10 {
			t.Errorf("the next process: %+v", s)
		}
		r.demote(5, 4) // for 2, which was used least recently
		for n, want := range []bool{true, false, false, true, true, true} {
			if got := r.has(n, 4); got != want {
				t.Errorf("entry %d is there: %t", n, got)
			}
		}
		r.stop()

		cfg.DiskCapacity = 16 << 10
		r = start(t, cfg)
		if s := r.Stats()[0]; s.Entries != 2 || len(filesOf(t, dir)) != 2 {
			t.Errorf("with less room: %+v, files %v", s, filesOf(t, dir))
		}
		r.check()
	})
}

// TestSalts: an entry of one salt is none of another, and the directory tells neither salt nor object.
func TestSalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := start(t, Config{Dir: dir, DiskCapacity: 1 << 20})
		key := rowKey(1, "the salt of a tenant").TierKey()
		r.Demote(recordOf(key, elementsOf(1, 4)), elementsOf(1, 4))
		synctest.Wait()
		if r.Has(rowKey(1, "another").TierKey()) || !r.Has(key) || r.has(1, 4) {
			t.Error("the entry of a salt is found by another")
		}
		for path := range filesOf(t, dir) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{"tenant", string(rowKey(1, "").Digest[:])} {
				if strings.Contains(path, secret) || bytes.Contains(data, []byte(secret)) {
					t.Errorf("%s has %q", path, secret)
				}
			}
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s may be read by others: %v, %v", path, st.Mode(), err)
			}
		}
	})
}

// TestDamagedFiles: an entry which was cut, changed, emptied, exchanged, removed or refused is a miss, is removed, and is
// written again when memory evicts it again.
func TestDamagedFiles(t *testing.T) {
	for name, damage := range map[string]func(path string, whole []byte) error{
		"cut":     func(path string, whole []byte) error { return os.WriteFile(path, whole[:len(whole)-100], 0o600) },
		"one bit": func(path string, whole []byte) error { whole[300] ^= 4; return os.WriteFile(path, whole, 0o600) },
		"zeros":   func(path string, whole []byte) error { return os.WriteFile(path, make([]byte, len(whole)), 0o600) },
		"empty":   func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) },
		"longer":  func(path string, whole []byte) error { return os.WriteFile(path, append(whole, 1), 0o600) },
		"of another key": func(path string, _ []byte) error {
			return os.WriteFile(path, embcache.AppendRecord(nil, recordOf(kv.Digest{1}, elementsOf(0, 4)), elementsOf(0, 4)), 0o600)
		},
		"removed": func(path string, _ []byte) error { return os.Remove(path) },
		"refused": nil,
	} {
		for _, restarted := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{Dir: t.TempDir(), DiskCapacity: 1 << 20}
				r := start(t, cfg)
				r.demote(0, 4)
				if damage != nil {
					for path := range filesOf(t, cfg.Dir) {
						whole, err := os.ReadFile(path)
						if err = cmp.Or(err, damage(path, whole)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if restarted {
					r.stop()
					r = start(t, cfg)
				}
				key := rowKey(0, "").TierKey()
				if _, _, ok := r.Load(t.Context(), key, func(*embcache.TierRecord, []byte) bool { return damage != nil }); ok {
					t.Errorf("%s, restarted %t: it is read", name, restarted)
				}
				synctest.Wait()
				s := r.Stats()[0]
				if s.Entries != 0 || s.Bytes != 0 || s.Misses != 1 || s.Hits != 0 || len(filesOf(t, cfg.Dir)) != 0 {
					t.Errorf("%s, restarted %t: %+v, files %v", name, restarted, s, filesOf(t, cfg.Dir))
				}
				if name == "removed" == (s.Corrupt == 1) && !restarted {
					t.Errorf("%s: %+v", name, s)
				}
				r.demote(0, 4)
				if !r.has(0, 4) {
					t.Errorf("%s, restarted %t: it is not written again", name, restarted)
				}
				r.check()
			})
		}
	}
}

// failingFile fails after some bytes.
type failingFile struct {
	io.WriteCloser
	left *int
	err  error
}

func (f *failingFile) Write(b []byte) (int, error) {
	n := min(len(b), *f.left)
	*f.left -= n
	n, err := f.WriteCloser.Write(b[:n])
	if n < len(b) {
		err = cmp.Or(err, f.err)
	}
	return n, err
}

// TestFullDisk: when the disk is full, one warning says so, nothing is left of what was being written, what is there
// is still found, and writing is tried again later.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dir: t.TempDir(), DiskCapacity: 1 << 20}
		r := start(t, cfg)
		r.demote(0, 4)
		left := 5000
		r.levels[0].store.(*disk).create = func(name string) (io.WriteCloser, error) {
			f, err := createFile(name)
			return &failingFile{f, &left, syscall.ENOSPC}, err
		}
		for n := 1; n < 5; n++ {
			r.demote(n, 4)
		}
		s := r.Stats()[0]
		if s.Entries != 2 || s.WriteFailure != 1 || s.Dropped != 2 || s.WritingBytes != 0 || s.QueuedBytes != 0 || len(filesOf(t, cfg.Dir)) != 2 {
			t.Errorf("%+v, files %v", s, filesOf(t, cfg.Dir))
		}
		if !r.has(0, 4) || !r.has(1, 4) || r.has(2, 4) {
			t.Error("0 and 1 should be there, and 2 not")
		}
		time.Sleep(writePause) // virtual time (synctest): it is tried again
		r.demote(2, 4)
		if n := r.logs.count("level=WARN"); n != 1 || r.logs.count("no space left") != 1 {
			t.Errorf("%d warnings", n)
		}
		left = 1 << 20
		time.Sleep(writePause) // virtual time (synctest): and again
		r.demote(2, 4)
		if !r.has(2, 4) || r.logs.count("can be written again") != 1 {
			t.Error("it is not written again")
		}
		r.check()
	})
}

// TestQueue: what comes faster than it is written is dropped beyond the bounds of the queue, and counted; nothing waits
// for the disk; and what waits is found.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Dir: t.TempDir(), DiskCapacity: 1 << 30, QueueBytes: 10 * 4 << 10})
		hold := make(chan struct{})
		r.levels[0].store.(*disk).create = func(name string) (io.WriteCloser, error) {
			<-hold
			return createFile(name)
		}
		for n := range 25 {
			r.demote(n, 4)
			r.demote(n, 4) // twice is once
		}
		if s := r.Stats()[0]; s.QueuedBytes != 40<<10 || s.Dropped != 30 { // 15, each of them twice
			t.Errorf("%+v", s)
		}
		for n := range 25 {
			if r.has(n, 4) != (n < 10) {
				t.Errorf("entry %d is there: %t", n, n >= 10)
			}
		}
		close(hold)
		synctest.Wait()
		if s := r.Stats()[0]; s.QueuedBytes != 0 || s.Entries != 10 || s.Hits != 10 || s.Misses != 15 {
			t.Errorf("%+v", s)
		}
		r.demote(50, 100) // larger than the queue: it is written alone
		if !r.has(50, 100) {
			t.Error("a large entry is dropped")
		}
		r.check()
	})
}

// slowStore hangs in reads.
type slowStore struct {
	store
	hold chan struct{}
}

func (s slowStore) read(ctx context.Context, key kv.Digest, size int64) ([]byte, error) {
	<-s.hold
	return s.store.read(ctx, key, size)
}

// TestSlowReads: a disk which hangs is a miss in bounded time, and is left out for a while.
func TestSlowReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Dir: t.TempDir(), DiskCapacity: 1 << 20})
		r.demote(0, 4)
		hold := make(chan struct{})
		r.levels[0].store = slowStore{r.levels[0].store, hold}
		begin := time.Now()
		var waiting sync.WaitGroup
		for range 3 * maxReads {
			waiting.Go(func() {
				if r.has0() {
					t.Error("found")
				}
			})
		}
		waiting.Wait()
		if took := time.Since(begin); took != readLimit { // virtual time
			t.Errorf("%v", took)
		}
		if r.has(0, 4) || time.Since(begin) != readLimit || r.logs.count("level=WARN") != 1 {
			t.Errorf("it is asked again at once, %v, %d warnings", time.Since(begin), r.logs.count("level=WARN"))
		}
		close(hold)
		time.Sleep(readPause) // virtual time (synctest)
		if !r.has(0, 4) {
			t.Error("it is not asked again")
		}
	})
}

func (r *rig) has0() bool {
	_, _, ok := r.Load(r.t.Context(), rowKey(0, "").TierKey(), acceptAll)
	return ok
}

// TestUntil: an entry which has ended is a miss, before and after a restart.
func TestUntil(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cfg := Config{Dir: t.TempDir(), DiskCapacity: 1 << 20}
			r := start(t, cfg)
			rec := recordOf(rowKey(0, "").TierKey(), elementsOf(0, 4))
			rec.Until = time.Now().Add(time.Hour).UnixNano()
			r.Demote(rec, elementsOf(0, 4))
			synctest.Wait()
			if restarted {
				r.stop()
				r = start(t, cfg)
			}
			time.Sleep(time.Hour - time.Nanosecond) // virtual time (synctest)
			if !r.has0() {
				t.Error("it ended early")
			}
			time.Sleep(time.Nanosecond) // virtual time (synctest)
			if r.has0() {
				t.Error("it did not end")
			}
			synctest.Wait()
			if s := r.Stats()[0]; s.Expirations != 1 || s.Entries != 0 || len(filesOf(t, cfg.Dir)) != 0 {
				t.Errorf("%+v, files %v", s, filesOf(t, cfg.Dir))
			}
		})
	}
}

// TestObjectStore: what one process's disk evicts goes to the object store, where others find it; the capacity is that
// of all together; what one removes the others know is gone; and use by one keeps an entry for all.
func TestObjectStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newMemoryObjects()
		one := start(t, Config{Dir: t.TempDir(), DiskCapacity: 16 << 10, Objects: shared, ObjectCapacity: 3 * 8 << 10})
		two := start(t, Config{Objects: shared, ObjectCapacity: 3 * 8 << 10})
		for n := range 5 {
			one.demote(n, 4) // 0, 1, 2 go down
		}
		for n, want := range []bool{true, true, true, false, false} {
			if got := two.has(n, 4); got != want {
				t.Errorf("the other process has entry %d: %t", n, got)
			}
			if !one.has(n, 4) {
				t.Errorf("entry %d is nowhere", n)
			}
		}
		two.has(0, 4)
		one.demote(5, 4) // 3 goes down, for 1
		synctest.Wait()
		if s := two.Stats()[0]; s.Entries != 3 || s.Bytes != 24<<10 || two.has(1, 4) || !two.has(0, 4) || !two.has(3, 4) {
			t.Errorf("%+v", s)
		}
		if len(shared.data) != 3 {
			t.Errorf("%d objects", len(shared.data))
		}
		late := start(t, Config{Objects: shared, ObjectCapacity: 3 * 8 << 10})
		if s := late.Stats()[0]; s.Entries != 3 || !late.has(0, 4) {
			t.Errorf("a late process: %+v", s)
		}
		two.demote(0, 4) // it is there already
		if s := two.Stats()[0]; s.Additions < 4 || len(shared.data) != 3 {
			t.Errorf("%+v, %d objects", s, len(shared.data))
		}
		// One which was damaged is removed for all.
		shared.mu.Lock()
		shared.data[entryName(rowKey(0, "").TierKey())][200] ^= 1
		shared.mu.Unlock()
		if late.has(0, 4) || len(shared.data) != 2 || two.Has(rowKey(0, "").TierKey()) {
			t.Errorf("damaged: %d objects", len(shared.data))
		}
		for _, r := range []*rig{one, two, late} {
			r.check()
		}
	})
}

// TestObjectStoreFails: a store which fails or hangs costs a bounded time, and what comes meanwhile is dropped.
func TestObjectStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newMemoryObjects()
		r := start(t, Config{Objects: shared, ObjectCapacity: 1 << 20})
		r.demote(0, 4)
		shared.mu.Lock()
		shared.err = errors.New("away")
		shared.mu.Unlock()
		r.demote(1, 4)
		r.demote(2, 4)
		if s := r.Stats()[0]; r.has(0, 4) || s.WriteFailure != 1 || s.Dropped != 1 || s.Entries != 1 {
			t.Errorf("%+v", s)
		}
		shared.mu.Lock()
		shared.err, shared.hangs = nil, true
		shared.mu.Unlock()
		begin := time.Now()
		first, second := r.has0(), r.has0()
		if first || second || time.Since(begin) != readLimit { // virtual time
			t.Errorf("%v", time.Since(begin))
		}
		shared.mu.Lock()
		shared.hangs = false
		shared.mu.Unlock()
		time.Sleep(writePause) // virtual time (synctest)
		r.demote(1, 4)
		if !r.has(0, 4) || !r.has(1, 4) {
			t.Error("it is not used again")
		}
	})
}

// TestAccounts moves entries up and down at random through both tiers of two processes: after each step the statistics
// are the sums of what is there, and what is found is right.
func TestAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newMemoryObjects()
		dir := t.TempDir()
		r := start(t, Config{Dir: dir, DiskCapacity: 80 << 10, Objects: shared, ObjectCapacity: 120 << 10})
		other := start(t, Config{Objects: shared, ObjectCapacity: 120 << 10})
		state := uint64(1)
		next := func(n int) int {
			state = state*6364136223846793005 + 1442695040888963407
			return int(state>>33) % n
		}
		hits := 0
		for step := range 2000 {
			n := next(40)
			kib := 1 + n%9
			of := r
			if next(4) == 0 {
				of = other
			}
			if next(2) == 0 {
				of.demote(n, kib)
			} else if of.has(n, kib) {
				hits++
			}
			r.check()
			other.check()
			onDisk := int64(0)
			for _, size := range filesOf(t, dir) {
				onDisk += (size + 4095) / 4096 * 4096
			}
			stored := int64(0)
			for _, data := range shared.data {
				stored += (int64(len(data)) + 4095) / 4096 * 4096
			}
			for _, c := range [][2]int64{{r.Stats()[0].Bytes, onDisk}, {r.Stats()[1].Bytes, stored}, {other.Stats()[0].Bytes, stored}} {
				if c[0] != c[1] {
					t.Fatalf("step %d: %d bytes in the statistics, %d are there", step, c[0], c[1])
				}
			}
		}
		if hits < 200 || r.Stats()[0].Evictions == 0 || r.Stats()[1].Evictions == 0 {
			t.Errorf("%d hits, %+v", hits, r.Stats())
		}
	})
}

// writeForever writes entries in the process of TestKill until it is killed.
func writeForever(dir string) {
	tiers, err := Open(Config{Dir: dir, DiskCapacity: 64 << 20})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go func() { _ = tiers.Run(context.Background()) }() // until the process is killed
	for n := 0; ; n++ {
		key := rowKey(n%100, fmt.Sprint(n/100)).TierKey()
		tiers.Demote(recordOf(key, elementsOf(n, 256)), elementsOf(n, 256))
		if n%8 == 0 {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], uint64(tiers.Stats()[0].Entries))
			if _, err := os.Stdout.Write(b[:]); err != nil {
				os.Exit(1)
			}
		}
	}
}
