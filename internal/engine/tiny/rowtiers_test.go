package tiny

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/embtier"
	"penstock/internal/engine"
)

// openTiers opens a disk tier, which runs until the returned function is called or the test ends.
func openTiers(t *testing.T, dir string) (*embtier.Tiers, func()) {
	t.Helper()
	tiers, err := embtier.Open(embtier.Config{Dir: dir, DiskCapacity: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = tiers.Run(ctx) }) // it returns nil
	stop := sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return tiers, stop
}

// pictureBytes is the size of the rows of a picture of 56 by 84 pixels.
const pictureBytes = 6 * 32 * elementBytes

// tiered returns a change of a configuration which gives it memory for one picture, and tiers.
func tiered(tiers RowTiers) func(*Config) {
	return func(c *Config) { c.EmbeddingCache, c.Tiers = new(pictureBytes), tiers }
}

// TestRowsOfTiers: rows which memory evicted come up again, bit for bit, also in the next process; nothing is encoded
// twice; and what a salt has shown costs another one an encoding.
func TestRowsOfTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		tiers, stop := openTiers(t, dir)
		e := seeing(t, tiered(tiers))
		own := seeing(t, nil)
		ran := encodes(t, e)
		var pictures []media.Object
		var want [][]float32
		for i := range 5 {
			pictures = append(pictures, noise(media.Image, uint64(i), 56, 84, 3))
			want = append(want, rowsOf(t, own, &pictures[i], "", 6))
		}
		show := func(what string) {
			t.Helper()
			for i := range pictures {
				if got := rowsOf(t, e, &pictures[i], "a", 6); !slices.Equal(got, want[i]) {
					t.Errorf("%s: picture %d has other rows", what, i)
				}
				synctest.Wait()
			}
		}
		show("first")
		ran("first", 5)
		show("again")
		ran("again", 0)
		if s := tiers.Stats()[0]; s.Hits != 5 || s.Misses != 5 || s.Entries != 5 || s.Additions != 5 {
			t.Errorf("%+v", s)
		}
		if s := e.EncoderStats().Cache; s.Misses != 10 || s.Hits != 0 || s.Evictions != 9 || s.Entries != 1 {
			t.Errorf("%+v", s)
		}
		rowsOf(t, e, &pictures[0], "b", 6)
		ran("another salt", 1)
		synctest.Wait()
		stop()

		tiers, _ = openTiers(t, dir)
		e = seeing(t, tiered(tiers))
		ran = encodes(t, e)
		show("the next process")
		ran("the next process", 0)
		rowsOf(t, e, &pictures[1], "b", 6)
		ran("another salt in the next process", 1)
	})
}

// TestEncoderHasTiers: an encode worker answers from a tier without reading the object; without an entry it asks for the
// object.
func TestEncoderHasTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiers, _ := openTiers(t, t.TempDir())
		e := encoding(t, tiered(tiers))
		var pictures []media.Object
		for i := range 3 {
			pictures = append(pictures, noise(media.Image, uint64(i), 56, 84, 3))
		}
		want := map[int][]byte{}
		for i := range pictures[:2] {
			got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{ID: "r"}, &pictures[i])
			if err != nil || got.Cached {
				t.Fatal(err, got.Cached)
			}
			want[i] = slices.Clone(got.Rows.Data)
			got.Release()
			synctest.Wait()
		}
		for i, o := range pictures {
			o.Tensor = media.Tensor{}
			got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{ID: "r", CachedOnly: true}, &o)
			if i == 2 {
				if fault.CodeOf(err) != fault.NotFound {
					t.Errorf("of what is nowhere: %v", err)
				}
				continue
			}
			if err != nil || !got.Cached || !slices.Equal(got.Rows.Data, want[i]) {
				t.Fatalf("picture %d: %v", i, err)
			}
			got.Release()
			synctest.Wait()
		}
		if s := e.EncoderStats(); s.Encoded != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestHolderHasTiers: an engine gives others what it has in a tier alone, from its memory then, and encodes nothing.
func TestHolderHasTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiers, _ := openTiers(t, t.TempDir())
		e := seeing(t, tiered(tiers))
		var pictures []media.Object
		var want [][]float32
		for i := range 2 { // the second evicts the first
			pictures = append(pictures, noise(media.Image, uint64(i), 56, 84, 3))
			want = append(want, rowsOf(t, e, &pictures[i], "a", 6))
			synctest.Wait()
		}
		was := e.EncoderStats()
		for range 2 {
			for i, o := range pictures {
				o.Tensor = media.Tensor{}
				got, err := e.HeldRows(t.Context(), &engine.EncodeRequest{ID: "r", Namespace: "a"}, &o)
				if err != nil || !got.Cached || !slices.Equal(got.Rows.Data, littleBytes(want[i])) {
					t.Fatalf("picture %d: %v", i, err)
				}
				got.Release()
				synctest.Wait()
				if _, err := e.HeldRows(t.Context(), &engine.EncodeRequest{ID: "r", Namespace: "b"}, &o); fault.CodeOf(err) != fault.NotFound {
					t.Errorf("another salt: %v", err)
				}
			}
		}
		if s := e.EncoderStats(); s.Encoded != was.Encoded || s.Cache.Hits != was.Cache.Hits || s.Cache.Misses != was.Cache.Misses {
			t.Errorf("%+v, before %+v", s, was)
		}
		expectNoPins(t, e.EncoderStats())
	})
}

// TestStrangeEntries: an entry of another shape or grid is none, leaves its tier, and costs an encoding. One with another
// number of rows than a prompt has tokens stays: it is the prompt which is wrong.
func TestStrangeEntries(t *testing.T) {
	for name, edit := range map[string]func(r *embcache.TierRecord, elements []byte) []byte{
		"grid":    func(r *embcache.TierRecord, b []byte) []byte { r.Shape.Grid = [3]int{1, 2, 12}; return b },
		"width":   func(r *embcache.TierRecord, b []byte) []byte { r.Shape.Width, r.Shape.Rows = 64, 3; return b },
		"type":    func(r *embcache.TierRecord, b []byte) []byte { r.Type = 2; return b },
		"layers":  func(r *embcache.TierRecord, b []byte) []byte { r.Shape.Layers = 2; return b },
		"shorter": func(_ *embcache.TierRecord, b []byte) []byte { return b[:len(b)-4] },
		"no rows": func(r *embcache.TierRecord, _ []byte) []byte { r.Shape.Rows = 0; return nil },
		"right":   nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			tiers, stop := openTiers(t, dir)
			e := seeing(t, tiered(tiers))
			o := noise(media.Image, 1, 56, 84, 3)
			elements := littleBytes(rowsOf(t, e, &o, "", 6))
			r := embcache.TierRecord{
				Key: keyIn(e, &o).TierKey(), Type: uint8(media.Float32), Shape: embcache.Shape{Layers: 1, Rows: 6, Width: 32, Grid: [3]int{1, 4, 6}},
			}
			if edit != nil {
				elements = edit(&r, elements)
			}
			tiers.Demote(&r, elements)
			synctest.Wait()
			stop()
			tiers, _ = openTiers(t, dir)
			e = seeing(t, tiered(tiers))
			ran := encodes(t, e)
			if r, ok := e.cpu.encoders.raiseRows(t.Context(), &rowRequest{object: &o, pads: 5}, keyIn(e, &o)); ok {
				t.Errorf("%s: %d rows for a prompt with 5 tokens", name, len(r.rows)/32)
			}
			rowsOf(t, e, &o, "", 6)
			synctest.Wait()
			runs, entries := uint64(1), 0
			if edit == nil {
				runs, entries = 0, 1
			}
			ran(name, runs)
			if s := tiers.Stats()[0]; s.Entries != entries || s.Corrupt != uint64(1-entries) {
				t.Errorf("%s: %+v", name, s)
			}
		})
	}
}

func keyIn(e *Engine, o *media.Object) *embcache.RowKey {
	key := e.cpu.encoders.rows.keyOf(o, "")
	return &key
}

// TestURLEndsInTiers: rows of an object known by its URL end with the URL's period in tiers too.
func TestURLEndsInTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiers, _ := openTiers(t, t.TempDir())
		e := seeing(t, func(c *Config) { tiered(tiers)(c); c.URLTTL = time.Hour })
		ran := encodes(t, e)
		o, other := noise(media.Image, 1, 56, 84, 3), noise(media.Image, 2, 56, 84, 3)
		o.Source, o.Identity = "https://example.com/cat.png", media.ByURL
		o.Key = media.URLKey(o.Source, 7) // of a frontend with other periods
		_, end := media.URLPeriod(o.Source, time.Now().UnixNano(), time.Hour)
		rowsOf(t, e, &o, "", 6)
		rowsOf(t, e, &other, "", 6)
		synctest.Wait()
		ran("two pictures", 2)
		time.Sleep(time.Until(time.Unix(0, end)) - time.Microsecond) // virtual time (synctest)
		rowsOf(t, e, &o, "", 6)
		synctest.Wait()
		ran("in the last moment", 0)
		rowsOf(t, e, &other, "", 6)
		synctest.Wait()
		time.Sleep(time.Microsecond) // virtual time (synctest)
		rowsOf(t, e, &o, "", 6)
		ran("after the period", 1)
	})
}

// checkingTiers checks what is given to it: all elements of an entry are its digest's first byte.
type checkingTiers struct {
	demoted, wrong atomic.Int64
}

func (c *checkingTiers) Has(kv.Digest) bool { return false }

func (c *checkingTiers) Load(context.Context, kv.Digest, func(*embcache.TierRecord, []byte) bool) (r embcache.TierRecord, elements []byte, ok bool) {
	return r, nil, false
}

func (c *checkingTiers) Demote(r *embcache.TierRecord, elements []byte) {
	runtime.Gosched() // others store meanwhile
	c.demoted.Add(1)
	for _, b := range elements {
		if b != byte(r.Shape.Grid[0]) {
			c.wrong.Add(1)
			return
		}
	}
}

// TestDemotedRows: what goes down is what was stored, while other rows are stored at the same time.
func TestDemotedRows(t *testing.T) {
	tiers := &checkingTiers{}
	e := seeing(t, func(c *Config) { c.EmbeddingCache, c.Tiers = new(20*pictureBytes), tiers })
	s := e.cpu.encoders.rows
	var running sync.WaitGroup
	for worker := range 4 {
		running.Go(func() {
			for n := range 2000 {
				fill := byte(1 + (n+worker)%250)
				rows := make([]float32, 32*(1+(n*7+worker)%48))
				for i, b := range bytesOf(rows) {
					_ = b
					bytesOf(rows)[i] = fill
				}
				key := embcache.RowKey{Digest: kv.Digest{byte(n), byte(n >> 8), byte(worker), 1}}
				r := s.storeRows(&key, &media.Object{}, rows, [3]int{int(fill)})
				s.releaseRows(&r)
			}
		})
	}
	running.Wait()
	if tiers.wrong.Load() > 0 || tiers.demoted.Load() < 1000 {
		t.Errorf("%d of %d entries went down with other rows", tiers.wrong.Load(), tiers.demoted.Load())
	}
}
