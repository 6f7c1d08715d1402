//go:build linux

package embregion

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/splitmix"
	"penstock/internal/backoff"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/xfer"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		runChild(role)
		return
	}
	fixturetest.RunTests(m)
}

const testWidth = 16

// rowsOf returns the rows of key n, as many as that key has.
func rowsOf(n int) []byte {
	random := splitmix.Source(splitmix.Mix(uint64(n) + 1))
	b := make([]byte, 4*testWidth*countRows(n))
	for at := 0; at < len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], random.Next())
	}
	return b
}

// countRows returns the number of rows of key n: most are small, and some take several chunks.
func countRows(n int) int {
	if n%8 == 0 {
		return 4200 + 20*n
	}
	return 1 + 37*n
}

func keyOf(n int, salt string) (key embcache.RowKey) {
	key = embcache.RowKey{Salt: salt, Kind: uint8(media.Image), Encoder: "e", Type: uint8(media.Float32)}
	binary.LittleEndian.PutUint64(key.Digest[:], uint64(n)+1)
	return key
}

func gridOf(n int) [3]int { return [3]int{1, 2, 2 * countRows(n)} }

func wantedOf(n int, salt string) *Wanted {
	key := keyOf(n, salt)
	rows := countRows(n)
	return &Wanted{Key: key.TierKey(), Kind: key.Kind, Type: key.Type, Rows: rows, Width: testWidth, Bytes: 4 * testWidth * rows}
}

// store is an embedding cache in a region: what engines have around an Owner.
type store struct {
	owner  *Owner
	cache  *embcache.RowCache
	memory []byte
}

func newStore(owner *Owner, capacity int) *store {
	return &store{owner, embcache.New(capacity), owner.Allocate(capacity)}
}

// put keeps the rows of key n, and reports whether there is room.
func (s *store) put(n int, salt string) bool {
	rows := rowsOf(n)
	item := &embcache.Item{Key: keyOf(n, salt), Bytes: len(rows), Shape: embcache.Shape{Layers: 1, Rows: countRows(n), Width: testWidth, Grid: gridOf(n)}}
	var pins []embcache.Ref
	for _, key := range s.owner.AppendLeased(nil) {
		if e, ok := s.cache.Pin(&key, 1); ok {
			pins = append(pins, e.Ref)
		}
	}
	e, refused, changes := s.cache.Reserve(item, 1, nil)
	for _, pin := range pins {
		s.cache.Release(pin)
	}
	if refused == embcache.InUse {
		e, refused, changes = s.cache.Reserve(item, 1, changes)
	}
	if refused != embcache.NotRefused {
		return false
	}
	s.apply(changes, 0)
	digest := xfer.CopyDigest(s.memory[e.Slot.Offset:], rows)
	s.apply(s.cache.Commit(e.Ref, nil), digest)
	s.cache.Release(e.Ref)
	return true
}

func (s *store) remove(n int, salt string) {
	key := keyOf(n, salt)
	s.apply(s.cache.Remove(&key, nil), 0)
}

func (s *store) apply(changes []embcache.Change, digest xfer.Digest) {
	for i := range changes {
		if c := &changes[i]; c.Cause == embcache.Added {
			s.owner.AddEntry(&Added{Item: &c.Item, Slot: c.Slot, Digest: digest})
		} else {
			s.owner.RemoveEntry(c.Slot)
		}
	}
}

// runOwner runs an owner until the test ends, or the returned function is called.
func runOwner(t *testing.T) (*Owner, func()) {
	t.Helper()
	o, err := NewOwner(OwnerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = o.Run(ctx) }) // readers notice if it fails
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return o, stop
}

// runReaders runs readers of regions until the test ends, and returns when all are mapped.
func runReaders(t *testing.T, addrs ...string) *Readers {
	t.Helper()
	r := NewReaders(ReadersConfig{})
	r.SetRegions(addrs)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) }) // it says nothing but that ctx has ended
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if n := r.Stats().Regions; n != 0 {
			t.Errorf("%d regions are mapped at the end", n)
		}
	})
	awaitRegions(t, r, len(addrs))
	return r
}

func awaitRegions(t *testing.T, r *Readers, n int) {
	t.Helper()
	if err := backoff.Poll(t.Context(), time.Millisecond, func() bool { return r.Stats().Regions == n }); err != nil {
		t.Fatalf("%d regions are mapped, want %d: %v", r.Stats().Regions, n, err)
	}
}

// reader reads rows and compares them.
type reader struct {
	of    *Readers
	addrs []string
	into  []byte
}

// read reads the rows of key n, and reports whether it was a hit; wrong rows are an error.
func (r *reader) read(n int, salt string) (hit bool, err error) {
	want := wantedOf(n, salt)
	r.into = slices.Grow(r.into[:0], want.Bytes)[:want.Bytes]
	found, hit := r.of.ReadRows(r.addrs, want, func([3]int) []byte { return r.into })
	if hit && (found.Grid != gridOf(n) || found.Digest != xfer.DigestOf(r.into) || !bytes.Equal(r.into, rowsOf(n))) {
		return true, errors.New("the rows are not those of the key")
	}
	return hit, nil
}

// TestReadRows: a reader finds what the owner lists, by its whole key and shape, and nothing else. What was removed,
// replaced or evicted, or ends, is a miss.
func TestReadRows(t *testing.T) {
	o, stop := runOwner(t)
	s := newStore(o, 4<<20)
	r := &reader{of: runReaders(t, o.Addr()), addrs: []string{"elsewhere", o.Addr()}}
	expect := func(what string, n int, salt string, hit bool) {
		t.Helper()
		if got, err := r.read(n, salt); got != hit || err != nil {
			t.Errorf("%s: a hit: %t, want %t; %v", what, got, hit, err)
		}
	}
	expect("nothing is there", 1, "a", false)
	for n := range 20 {
		s.put(n, "a")
	}
	for n := range 20 {
		expect("all are there", n, "a", true)
	}
	expect("another salt", 1, "b", false)
	s.put(1, "a")
	expect("replaced", 1, "a", true)
	s.remove(1, "a")
	expect("removed", 1, "a", false)
	s.put(1, "a")
	expect("there again", 1, "a", true)
	for name, change := range map[string]func(*Wanted){
		"another kind":   func(w *Wanted) { w.Kind++ },
		"another type":   func(w *Wanted) { w.Type++ },
		"more rows":      func(w *Wanted) { w.Rows++ },
		"another width":  func(w *Wanted) { w.Width, w.Rows = w.Width*2, w.Rows/2 },
		"another size":   func(w *Wanted) { w.Bytes-- },
		"another key":    func(w *Wanted) { w.Key[31]++ },
		"no room for it": func(w *Wanted) {},
		"an unknown key": func(w *Wanted) { w.Key = kv.Digest{} },
	} {
		want := wantedOf(1, "a")
		change(want)
		into := make([]byte, want.Bytes)
		if name == "no room for it" {
			into = nil
		}
		if found, ok := r.of.ReadRows(r.addrs, want, func([3]int) []byte { return into }); ok {
			t.Errorf("%s: %+v", name, found)
		}
	}
	item := embcache.Item{Key: keyOf(1, "a"), Shape: embcache.Shape{Layers: 1, Rows: countRows(1), Width: testWidth, Grid: gridOf(1)}}
	e, _ := s.cache.Pin(&item.Key, 1)
	for _, c := range []struct {
		until time.Time
		hit   bool
	}{{time.Now().Add(time.Hour), true}, {time.Now().Add(-time.Nanosecond), false}} {
		o.RemoveEntry(e.Slot)
		o.AddEntry(&Added{Item: &item, Slot: e.Slot, Digest: xfer.DigestOf(rowsOf(1)), Until: c.until.UnixNano()})
		expect("until "+c.until.String(), 1, "a", c.hit)
	}
	o.RemoveEntry(e.Slot)
	o.AddEntry(&Added{Item: &item, Slot: e.Slot, Digest: 1})
	expect("other bytes than were listed", 1, "a", false)
	if s := r.of.Stats(); s.Hits != 23 || s.Regions != 1 || s.Misses != 13 {
		t.Errorf("%+v", s)
	}
	stop()
	awaitRegions(t, r.of, 0)
	expect("the owner has ended", 2, "a", false)
}

// TestChangesDuringCopy: what changes between a copy and its check is a miss; what does not is a hit.
func TestChangesDuringCopy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*store)
		hit    bool
	}{
		"nothing":          {func(*store) {}, true},
		"another is added": {func(s *store) { s.put(3, "") }, true},
		"replaced":         {func(s *store) { s.put(1, "") }, false},
		"removed":          {func(s *store) { s.remove(1, "") }, false},
		"closed":           {func(s *store) { _ = s.owner.Close() }, false},
		"written over": {func(s *store) {
			s.remove(1, "")
			clear(s.memory)
		}, false},
	} {
		o, _ := runOwner(t)
		s := newStore(o, 1<<20)
		s.put(1, "")
		r := runReaders(t, o.Addr())
		v := r.beginRead(o.Addr())
		v.copied = func() { c.change(s) }
		want := wantedOf(1, "")
		into := make([]byte, want.Bytes)
		if _, hit := v.readAndLeave(want, func([3]int) []byte { return into }); hit != c.hit {
			t.Errorf("%s: a hit: %t", name, hit)
		}
	}
}

// stopClock has an owner and a reader see the same time from now on, so that no lease ends by itself.
func stopClock(o *Owner, v *view) (now time.Time) {
	now = time.Now()
	o.now = func() time.Time { return now }
	v.now = o.now
	return now
}

// TestLeases: an entry which is being copied is leased, in its generation, until the copy ends; a lease without an end
// holds for MaxLease alone, and no value of its words for longer. With all leases taken, copies go on without.
func TestLeases(t *testing.T) {
	o, _ := runOwner(t)
	s := newStore(o, 1<<20)
	s.put(1, "a")
	r := runReaders(t, o.Addr())
	v := r.beginRead(o.Addr())
	defer v.reading.Done()
	now := stopClock(o, v)
	leased := func(what string, n int) {
		t.Helper()
		keys := o.AppendLeased(nil)
		if len(keys) != n || n > 0 && keys[0] != keyOf(1, "a") {
			t.Errorf("%s: leased are %+v", what, keys)
		}
	}
	want := wantedOf(1, "a")
	into := make([]byte, want.Bytes)
	v.copied = func() { leased("while copying", 1) }
	if _, ok := v.read(want, func([3]int) []byte { return into }); !ok {
		t.Error("a miss")
	}
	leased("after the copy", 0)
	slot, _, generation, _ := v.find(want)
	for what, c := range map[string]struct {
		slot, generation uint64
		until            time.Duration
		holds            int
	}{
		"a lease":            {uint64(slot) + 1, generation, MaxLease / 2, 1},
		"over":               {uint64(slot) + 1, generation, -time.Nanosecond, 0},
		"for too long":       {uint64(slot) + 1, generation, 2 * MaxLease, 0},
		"for ever":           {uint64(slot) + 1, generation, 1 << 62, 0},
		"another generation": {uint64(slot) + 1, generation + 2, MaxLease / 2, 0},
		"an empty slot":      {uint64(slot^1) + 1, generation, MaxLease / 2, 0},
		"no slot":            {1 << 40, generation, MaxLease / 2, 0},
		"none":               {0, generation, MaxLease / 2, 0},
	} {
		v.notes.word(wordLeaseGeneration).Store(c.generation)
		v.notes.word(wordLeaseUntil).Store(uint64(now.Add(c.until).UnixNano()))
		v.notes.word(wordLeased).Store(c.slot)
		leased(what, c.holds)
	}
	v.notes.word(wordLeased).Store(0)
	v.copied = nil
	for i := range v.leases {
		v.leases[i].Store(true)
	}
	if _, ok := v.read(want, func([3]int) []byte { return into }); !ok {
		t.Error("without a lease: a miss")
	}
}

// TestLeaseSparesEntry: the owner evicts another entry than one which is being copied, and evicts that too if there is no
// other.
func TestLeaseSparesEntry(t *testing.T) {
	o, _ := runOwner(t)
	const n = 5
	one := len(rowsOf(n))
	s := newStore(o, 2*(one+64))
	r := &reader{of: runReaders(t, o.Addr()), addrs: []string{o.Addr()}}
	s.put(n, "a")
	s.put(n, "b")
	v := r.of.beginRead(o.Addr())
	defer v.reading.Done()
	stopClock(o, v)
	want := wantedOf(n, "a")
	v.copied = func() { s.put(n, "c") }
	if _, ok := v.read(want, func([3]int) []byte { return make([]byte, one) }); !ok {
		t.Error("an entry was evicted while it was copied")
	}
	v.copied = nil
	for salt, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if hit, err := r.read(n, salt); hit != want || err != nil {
			t.Errorf("salt %s: a hit: %t, %v", salt, hit, err)
		}
	}
}

// TestFullBucket: more entries than a bucket has slots: the newest are found, and the others are no longer listed.
func TestFullBucket(t *testing.T) {
	o, _ := runOwner(t)
	s := newStore(o, 1<<20)
	all := map[int][]int{} // by bucket
	bucket := -1
	saltOf := func(i int) string {
		return string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
	}
	for i := range 4000 {
		key := keyOf(1, saltOf(i))
		digest := key.TierKey()
		at := o.mu.layout.bucketOf(&digest)
		if all[at] = append(all[at], i); len(all[at]) == bucketSlots+3 {
			bucket = at
			break
		}
	}
	r := &reader{of: runReaders(t, o.Addr()), addrs: []string{o.Addr()}}
	for _, i := range all[bucket] {
		s.put(1, saltOf(i))
	}
	for place, i := range all[bucket] {
		if hit, err := r.read(1, saltOf(i)); hit != (place >= 3) || err != nil {
			t.Errorf("entry %d of the bucket: a hit: %t, %v", place, hit, err)
		}
		s.remove(1, saltOf(i))
		if hit, _ := r.read(1, saltOf(i)); hit {
			t.Errorf("entry %d of the bucket was removed", place)
		}
	}
	if len(o.mu.byOffset) != 0 {
		t.Errorf("%d entries are left", len(o.mu.byOffset))
	}
}

// TestReadWhileWritten: readers copy while the owner adds, replaces, evicts and removes as fast as it can. No hit has
// other rows than those of its key.
func TestReadWhileWritten(t *testing.T) {
	o, _ := runOwner(t)
	s := newStore(o, 1<<20)
	r := runReaders(t, o.Addr())
	const keys = 24
	var readers sync.WaitGroup
	hits := make([]int, 3)
	for i := range hits {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			one := &reader{of: r, addrs: []string{o.Addr()}}
			for n := 0; n < 3000 || hits[i] == 0; n++ { // the writer may get a CPU late
				hit, err := one.read(rng.IntN(keys), "")
				if err != nil {
					t.Error(err)
					return
				}
				if hit {
					hits[i]++
				}
			}
		})
	}
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		rng := rand.New(rand.NewPCG(7, 7))
		for {
			select {
			case <-done:
				return
			default:
			}
			if n := rng.IntN(keys); rng.IntN(8) == 0 {
				s.remove(n, "")
			} else {
				s.put(n, "")
			}
		}
	})
	readers.Wait()
	close(done)
	writer.Wait()
	t.Logf("hits: %v, %+v", hits, r.Stats())
	if err := s.cache.Check(); err != nil {
		t.Error(err)
	}
	if slices.Min(hits) == 0 || r.Stats().Misses == 0 {
		t.Errorf("hits: %v, %+v", hits, r.Stats())
	}
}

// TestSetRegions: regions which are no longer wanted are unmapped, regions of other hosts are left out, and the number
// of all is bounded.
func TestSetRegions(t *testing.T) {
	var addrs []string
	for range 3 {
		o, _ := runOwner(t)
		newStore(o, 1<<16).put(1, "")
		addrs = append(addrs, o.Addr())
	}
	r := runReaders(t, addrs...)
	r.SetRegions([]string{addrs[1], addrs[1], "", "0000000000000000/penstock-xfer-1"})
	awaitRegions(t, r, 1)
	if v := r.beginRead(addrs[1]); v == nil {
		t.Error("the wanted region is not mapped")
	} else {
		v.reading.Done()
	}
	r.SetRegions(nil)
	awaitRegions(t, r, 0)
	few := NewReaders(ReadersConfig{Regions: 2})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = few.Run(ctx) }) // it says nothing but that ctx has ended
	defer running.Wait()
	defer cancel()
	few.SetRegions(addrs[1:])
	awaitRegions(t, few, 2)
	few.SetRegions(addrs)
	few.SetRegions(addrs[:2]) // one goes, and there is room for another
	if err := backoff.Poll(t.Context(), time.Millisecond, func() bool {
		few.mu.Lock()
		defer few.mu.Unlock()
		return len(few.mu.views) == 2 && few.mu.views[addrs[0]] != nil && few.mu.views[addrs[1]] != nil
	}); err != nil {
		t.Error(err)
	}
}

// FuzzRegion: whatever a region and its slots hold, a reader stays within it, and a hit has the digest of its slot.
func FuzzRegion(f *testing.F) {
	f.Add(goodRegion(f))
	f.Add([]byte("pensrows"))
	f.Fuzz(func(t *testing.T, b []byte) {
		region := make([]byte, roundPage(len(b)+1)) // aligned, as mappings are
		copy(region, b)
		v, err := newView(region, make([]byte, xfer.NotesSize))
		if err != nil {
			return
		}
		for slot := range v.layout.slots {
			w, _, ok := loadSlot(v.memory, slot)
			if !ok || w.length == 0 || w.length > 1<<20 {
				continue
			}
			want := &Wanted{
				Kind: uint8(w.kind), Type: uint8(w.kind >> 8), Rows: int(uint32(w.shape)), Width: int(w.shape >> 32), Bytes: int(w.length),
			}
			for i, word := range w.key {
				binary.NativeEndian.PutUint64(want.Key[8*i:], word)
			}
			into := make([]byte, want.Bytes)
			if found, ok := v.read(want, func([3]int) []byte { return into }); ok && found.Digest != xfer.DigestOf(into) {
				t.Errorf("slot %d: a hit with other bytes", slot)
			}
		}
	})
}

// goodRegion returns a copy of a region with two entries.
func goodRegion(t testing.TB) []byte {
	o, err := NewOwner(OwnerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(o, 1<<14)
	s.put(1, "a")
	s.put(2, "a")
	b := bytes.Clone(o.mu.memory)
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGoodRegion: the region which FuzzRegion begins with is one.
func TestGoodRegion(t *testing.T) {
	v, err := newView(goodRegion(t), make([]byte, xfer.NotesSize))
	if err != nil {
		t.Fatal(err)
	}
	want := wantedOf(2, "a")
	if _, ok := v.read(want, func([3]int) []byte { return make([]byte, want.Bytes) }); !ok {
		t.Error("a miss")
	}
}

// BenchmarkReadRows copies rows out of a region, beside a plain loop of copy and digest.
func BenchmarkReadRows(b *testing.B) {
	o, err := NewOwner(OwnerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	s := newStore(o, 16<<20)
	const n = 16
	s.put(n, "")
	v, err := newView(o.mu.memory, make([]byte, xfer.NotesSize))
	if err != nil {
		b.Fatal(err)
	}
	want := wantedOf(n, "")
	into, source := make([]byte, want.Bytes), rowsOf(n)
	b.Run("region", func(b *testing.B) {
		b.SetBytes(int64(want.Bytes))
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := v.read(want, func([3]int) []byte { return into }); !ok {
				b.Fatal("a miss")
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(int64(want.Bytes))
		for b.Loop() {
			xfer.CopyDigest(into, source)
		}
	})
	if err := o.Close(); err != nil {
		b.Fatal(err)
	}
}
