//go:build linux

package tiny

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/backoff"
	"penstock/internal/embregion"
	"penstock/internal/engine"
	"penstock/internal/plane/xfer"
)

// neighbours reads the regions of other engines, as the coordinator of a worker does.
type neighbours struct {
	readers *embregion.Readers
	addrs   []string
	asked   atomic.Int64
}

// ReadShared implements SharedRows.
func (n *neighbours) ReadShared(key *embcache.RowKey, rows, width int, into func(grid [3]int) []byte) (embregion.Found, bool) {
	n.asked.Add(1)
	want := &embregion.Wanted{Key: key.TierKey(), Kind: key.Kind, Type: key.Type, Rows: rows, Width: width, Bytes: elementBytes * rows * width}
	return n.readers.ReadRows(n.addrs, want, into)
}

// HasEncoders implements RemoteEncoders.
func (n *neighbours) HasEncoders() bool { return true }

// HasHolder implements RemoteEncoders.
func (n *neighbours) HasHolder(*embcache.RowKey) bool { return false }

// EncodeObject implements RemoteEncoders: no message is sent for what a region has.
func (n *neighbours) EncodeObject(context.Context, *engine.EncodeJob) (grid [3]int, err error) {
	return grid, errors.New("asked for rows")
}

// shareRows returns a change of a configuration after which others can read the embedding cache of the engine.
func shareRows(t testing.TB) func(*Config) { return shareRowsBy(t, nil) }

// shareRowsBy is shareRows, with the clock by which leases of readers end.
func shareRowsBy(t testing.TB, now func() time.Time) func(*Config) {
	t.Helper()
	return func(c *Config) {
		c.Region = func() *embregion.Owner {
			o, err := embregion.NewOwner(embregion.OwnerConfig{Now: now})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = o.Run(ctx) }) // readers notice if it fails
			t.Cleanup(func() {
				cancel()
				running.Wait()
				if err := o.Close(); err != nil {
					t.Error(err)
				}
			})
			return o
		}
	}
}

// readRegions returns a reader of the regions of engines, which have kept rows.
func readRegions(t testing.TB, owners ...*Engine) *neighbours {
	t.Helper()
	n := &neighbours{readers: embregion.NewReaders(embregion.ReadersConfig{})}
	for _, e := range owners {
		n.addrs = append(n.addrs, e.Region().Addr())
	}
	n.readers.SetRegions(n.addrs)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = n.readers.Run(ctx) }) // it says nothing but that ctx has ended
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	if err := backoff.Poll(t.Context(), time.Millisecond, func() bool { return n.readers.Stats().Regions == len(owners) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSharedRows: an engine copies what another one on its host has kept, bit for bit and without asking it, into its own
// cache, from which a third one copies it. What is of another salt, absent or evicted it encodes.
func TestSharedRows(t *testing.T) {
	const one = 6 * 32 * elementBytes // bytes of a picture's rows
	owner := seeing(t, func(c *Config) { shareRows(t)(c); cacheOf(2 * one)(c) })
	first, second := noise(media.Image, 1, 56, 84, 3), noise(media.Image, 2, 56, 84, 3)
	want := rowsOf(t, owner, &first, "a", 6)
	n := readRegions(t, owner)
	e := seeing(t, func(c *Config) { shareRows(t)(c); c.Shared, c.Remote = n, n })
	ran, ownerRan := encodes(t, e), encodes(t, owner)
	was := owner.EncoderStats()
	for range 2 {
		if got := rowsOf(t, e, &first, "a", 6); !slices.Equal(got, want) {
			t.Error("other rows")
		}
	}
	ran("held by another", 0)
	if s := n.readers.Stats(); s.Hits != 1 || s.Misses != 0 || n.asked.Load() != 1 || owner.EncoderStats() != was {
		t.Errorf("%+v, asked %d times; the owner: %+v, before %+v", s, n.asked.Load(), owner.EncoderStats(), was)
	}
	if s := e.EncoderStats().Cache; s.Entries != 1 || s.Hits != 1 || s.Misses != 1 {
		t.Errorf("%+v", s)
	}
	expectNoPins(t, e.EncoderStats())
	third := seeing(t, func(c *Config) { c.Shared = readRegions(t, e) })
	thirdRan := encodes(t, third)
	if got := rowsOf(t, third, &first, "a", 6); !slices.Equal(got, want) {
		t.Error("the third engine: other rows")
	}
	thirdRan("held by the second", 0)
	rowsOf(t, e, &first, "b", 6)
	ran("another salt", 1)
	rowsOf(t, e, &second, "a", 6)
	ran("held by none", 1)
	ownerRan("the owner", 0)
	for seed := range uint64(3) {
		o := noise(media.Image, 10+seed, 56, 84, 3)
		rowsOf(t, owner, &o, "a", 6)
	}
	fourth := seeing(t, func(c *Config) { c.Shared, c.EmbeddingCache = n, new(0) })
	fourthRan := encodes(t, fourth)
	rowsOf(t, fourth, &first, "a", 6)
	fourthRan("evicted", 1)
	o := noise(media.Image, 12, 56, 84, 3)
	kept := rowsOf(t, owner, &o, "a", 6)
	if got := rowsOf(t, fourth, &o, "a", 6); !slices.Equal(got, kept) {
		t.Error("without a cache of its own: other rows")
	}
	fourthRan("without a cache of its own", 0)
}

// TestSharedRowsOfAnotherShape: rows of a grid which the object cannot have are not used, and leave no pin; nor are those
// of a key which says nothing.
func TestSharedRowsOfAnotherShape(t *testing.T) {
	owner := seeing(t, shareRows(t))
	o := noise(media.Image, 1, 56, 84, 3)
	key := owner.cpu.encoders.rows.keyOf(&o, "")
	r := owner.cpu.encoders.rows.storeRows(&key, &o, make([]float32, 6*32), [3]int{1, 2, 12}) // 4 × 6 patches are right
	owner.cpu.encoders.rows.releaseRows(&r)
	n := readRegions(t, owner)
	e := seeing(t, func(c *Config) { c.Shared = n })
	ran := encodes(t, e)
	rowsOf(t, e, &o, "", 6)
	ran("another grid", 1)
	o.Key.Digest = [32]byte{}
	rowsOf(t, e, &o, "", 6)
	ran("without a digest", 1)
	if s := n.readers.Stats(); s.Hits != 0 || s.Misses != 1 {
		t.Errorf("%+v", s)
	}
	expectNoPins(t, e.EncoderStats())
}

// TestRowsStayWhileCopied: what another process copies is not evicted while it has a lease, which it writes as
// docs/format/embedding-region.md says, unless nothing else can be.
func TestRowsStayWhileCopied(t *testing.T) {
	const one = 6 * 32 * elementBytes
	now := time.Unix(1e9, 0) // the clock stands still: no lease ends while the test is slow
	owner := seeing(t, func(c *Config) { shareRowsBy(t, func() time.Time { return now })(c); cacheOf(2 * one)(c) })
	objects := make([]media.Object, 4)
	for i := range objects {
		objects[i] = noise(media.Image, uint64(i), 56, 84, 3)
	}
	rowsOf(t, owner, &objects[0], "", 6)
	rowsOf(t, owner, &objects[1], "", 6)
	readRegions(t, owner) // until it listens
	region, err := xfer.OpenRegion(t.Context(), owner.Region().Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	s := owner.cpu.encoders.rows
	kept := func() (is [4]bool) {
		for i := range objects {
			key := s.keyOf(&objects[i], "")
			is[i] = s.hasRows(&key)
		}
		return is
	}
	lease := func(i int) {
		key := s.keyOf(&objects[i], "")
		name := key.TierKey()
		slot := (bytes.Index(region.Bytes, name[:]) - 8 - 4096) / 128
		word := func(of []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&of[at])) }
		word(region.Notes, 64*i+16).Store(uint64(now.Add(embregion.MaxLease).UnixNano()))
		word(region.Notes, 64*i+8).Store(word(region.Bytes, 4096+128*slot).Load())
		word(region.Notes, 64*i).Store(uint64(slot) + 1)
	}
	lease(0)
	rowsOf(t, owner, &objects[2], "", 6)
	if got := kept(); got != [4]bool{true, false, true, false} {
		t.Errorf("kept are %v while the first is copied", got)
	}
	lease(2)
	rowsOf(t, owner, &objects[3], "", 6)
	if got := kept(); !got[3] || got[0] == got[2] {
		t.Errorf("kept are %v; both others were being copied", got)
	}
	expectNoPins(t, owner.EncoderStats())
}

// TestHitOfRegionAllocatesNothing: a hit is as cheap in memory which others read.
func TestHitOfRegionAllocatesNothing(t *testing.T) {
	e := seeing(t, shareRows(t))
	o := noise(media.Image, 1, 56, 84, 3)
	rowsOf(t, e, &o, "salt", 6)
	s := e.cpu.encoders
	if n := testing.AllocsPerRun(100, func() {
		r, err := s.encodedRows(t.Context(), &e.cpu.content, &rowRequest{object: &o, namespace: "salt", pads: 6})
		if err != nil || r.pin == (embcache.Ref{}) {
			t.Error("not from the cache")
		}
		s.rows.releaseRows(&r)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestEncoderReadsSharedRows: an encoder for other workers copies what a worker on its host has kept, also for a request
// which came without the object, into its own cache, and encodes nothing. It encodes what none holds.
func TestEncoderReadsSharedRows(t *testing.T) {
	owner := seeing(t, shareRows(t))
	picture, sound := noise(media.Image, 1, 56, 84, 3), noise(media.Audio, 2, 3000)
	want := map[*media.Object][]float32{&picture: rowsOf(t, owner, &picture, "a", 6), &sound: rowsOf(t, owner, &sound, "a", 5)}
	n := readRegions(t, owner)
	e := encoding(t, func(c *Config) { c.Shared = n })
	ask := func(o media.Object, namespace string, cachedOnly bool) (*engine.EncodedObject, error) {
		if cachedOnly { // the size alone comes
			o.Size, o.Tensor = sizeOf(&o, &o.Tensor), media.Tensor{}
		}
		return e.EncodeObject(t.Context(), &engine.EncodeRequest{ID: "r", Namespace: namespace, CachedOnly: cachedOnly}, &o)
	}
	for o, rows := range want {
		for _, cachedOnly := range []bool{o == &picture, false} {
			got, err := ask(*o, "a", cachedOnly)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Cached || !bytes.Equal(got.Rows.Data, littleBytes(rows)) {
				t.Errorf("kind %v, cached only %t: cached %t, other rows %t", o.Kind, cachedOnly, got.Cached, !bytes.Equal(got.Rows.Data, littleBytes(rows)))
			}
			got.Release()
		}
	}
	if s := e.EncoderStats(); s.Encoded != 0 || s.Cache.Entries != 2 || n.readers.Stats().Hits != 2 {
		t.Errorf("%+v, %+v", s, n.readers.Stats())
	}
	missed := e.EncoderStats().Cache.Misses
	if _, err := ask(picture, "b", true); fault.CodeOf(err) != fault.NotFound || e.EncoderStats().Cache.Misses != missed {
		t.Errorf("another salt, without the object: %v, %+v", err, e.EncoderStats().Cache)
	}
	got, err := ask(picture, "b", false)
	if err != nil || got.Cached || e.EncoderStats().Encoded != 1 {
		t.Fatalf("another salt: %v, %+v", err, e.EncoderStats())
	}
	got.Release()
	expectNoPins(t, e.EncoderStats())
}
