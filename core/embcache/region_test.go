package embcache

import (
	"math"
	"testing"

	"penstock/core/splitmix"
)

// TestClasses: classes ascend with sizes, and the sizes of one differ by less than an eighth.
func TestClasses(t *testing.T) {
	first := Unit // of the class
	for size := 2 * Unit; size < 5000*Unit; size += Unit {
		was, is := classOf(size-Unit), classOf(size)
		if is != was && is != was+1 {
			t.Fatalf("%d units have class %d, one fewer %d", size/Unit, is, was)
		}
		if is != was {
			first = size
		}
		if size*classesPerDoubling >= first*(classesPerDoubling+1) {
			t.Errorf("%d and %d units have class %d", first/Unit, size/Unit, is)
		}
	}
	if got := classOf(math.MaxInt / Unit * Unit); got >= classCount {
		t.Errorf("class %d of %d", got, classCount)
	}
}

// TestFragmentation measures how much of a full region entries fill, on average over every reservation after
// the first hundred evictions. The package's documentation has the figures.
func TestFragmentation(t *testing.T) {
	const capacity = 1 << 28
	for _, c := range []struct {
		name     string
		min, max float64 // bytes
		want     float64 // share
		worst    float64 // share
	}{
		{"one size", 300_000, 300_000, 0.99, 0.99},
		{"1/1024 to 1/16", capacity / 1024, capacity / 16, 0.91, 0.6},
		{"1/65536 to 1/64", capacity / 65536, capacity / 64, 0.98, 0.9},
	} {
		cache, drawn := New(capacity), uint64(0)
		uniform := func() float64 {
			drawn++
			return float64(splitmix.Mix(drawn*splitmix.Step)>>11) / (1 << 53)
		}
		sum, count, lowest := 0.0, 0, 1.0
		for range 20_000 {
			item := Item{Bytes: int(c.min * math.Pow(c.max/c.min, uniform()))}
			item.Key.Digest[0], item.Key.Digest[1], item.Key.Digest[2] = byte(drawn), byte(drawn>>8), byte(drawn>>16)
			if drawn%3 == 0 { // use one of the older entries again
				key := item.Key
				key.Digest[0]++
				if e, ok := cache.Get(&key, 0); ok {
					cache.Release(e.Ref)
				}
			}
			e, refused, _ := cache.Reserve(&item, 0, nil)
			if refused != NotRefused {
				t.Fatalf("%s: %v", c.name, refused)
			}
			cache.Commit(e.Ref, nil)
			cache.Release(e.Ref)
			if s := cache.Stats(); s.Evictions > 100 {
				share := float64(s.Bytes) / capacity
				sum, count, lowest = sum+share, count+1, min(lowest, share)
			}
		}
		mean := sum / float64(count)
		t.Logf("%s: filled %.3f on average, %.3f at least", c.name, mean, lowest)
		if mean < c.want || lowest < c.worst {
			t.Errorf("%s: filled %.3f on average and %.3f at least, want %.2f and %.2f", c.name, mean, lowest, c.want, c.worst)
		}
	}
}

// TestTooLarge: no size is too large to be compared with the region's.
func TestTooLarge(t *testing.T) {
	for _, c := range []struct{ capacity, bytes int }{
		{0, 0}, {Unit - 1, 1}, {3 * Unit, 3*Unit + 1}, {3*Unit + 1, 3*Unit + 1}, {3 * Unit, math.MaxInt}, {3 * Unit, math.MaxInt - Unit},
	} {
		cache := New(c.capacity)
		if _, refused, _ := cache.Reserve(&Item{Bytes: c.bytes}, 0, nil); refused != TooLarge {
			t.Errorf("%d bytes in %d: %v", c.bytes, c.capacity, refused)
		}
	}
}

// hit returns a cache of n entries, and a function which gets and releases one after the other.
func hit(n int) (*RowCache, func() bool) {
	c := New(n * 4 * Unit)
	keys := make([]RowKey, n)
	for i := range keys {
		keys[i] = RowKey{Salt: "tenant-0123456789abcdef", Kind: 1, Encoder: "penstock-tiny f32 avx2 0123456789abcdef0123456789abcdef", Type: 1}
		keys[i].Digest[0], keys[i].Digest[1] = byte(i), byte(i>>8)
		e, _, _ := c.Reserve(&Item{Key: keys[i], Bytes: 3 * Unit}, 0, nil)
		c.Commit(e.Ref, nil)
		c.Release(e.Ref)
	}
	i := 0
	return c, func() bool {
		key := keys[i*7919%n]
		i++
		e, ok := c.Get(&key, 1)
		if ok {
			c.Release(e.Ref)
		}
		return ok
	}
}

// TestHitAllocatesNothing: neither a hit nor a miss allocates.
func TestHitAllocatesNothing(t *testing.T) {
	c, get := hit(1000)
	other := RowKey{Salt: "another"}
	if n := testing.AllocsPerRun(1000, func() {
		if !get() || c.Contains(&other, 1) {
			t.Error("not what it was filled with")
		}
		if _, ok := c.Get(&other, 1); ok {
			t.Error("a hit for another salt")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPinsAreChecked: what is not held cannot be released or committed.
func TestPinsAreChecked(t *testing.T) {
	c := New(10 * Unit)
	e, _, _ := c.Reserve(&Item{Bytes: 1}, 0, nil)
	c.Commit(e.Ref, nil)
	for _, misuse := range []struct {
		name string
		do   func()
	}{
		{"commit twice", func() { c.Commit(e.Ref, nil) }},
		{"of no entry", func() { c.Release(Ref{index: 7}) }},
		{"no pin", func() { c.Release(Ref{}) }},
		{"released", func() { c.Release(e.Ref); c.Release(e.Ref) }},
		{"of an older one", func() { c.Remove(&RowKey{}, nil); c.Reserve(&Item{Bytes: 1}, 0, nil); c.Release(e.Ref) }},
	} {
		panicked := func() (p bool) {
			defer func() { p = recover() != nil }()
			misuse.do()
			return false
		}()
		if !panicked {
			t.Errorf("%s: accepted", misuse.name)
		}
	}
}

// BenchmarkHit gets and releases entries of a cache of 4,096.
func BenchmarkHit(b *testing.B) {
	_, get := hit(4096)
	b.ReportAllocs()
	for b.Loop() {
		if !get() {
			b.Fatal("a miss")
		}
	}
}

// BenchmarkReserve replaces entries of a full cache of 4,096.
func BenchmarkReserve(b *testing.B) {
	c, _ := hit(4096)
	out := make([]Change, 0, 16)
	item := Item{Bytes: 3 * Unit}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		item.Key.Digest[2], item.Key.Digest[3], item.Key.Digest[4] = byte(i), byte(i>>8), byte(i>>16)
		e, _, changes := c.Reserve(&item, 0, out[:0])
		c.Commit(e.Ref, changes)
		c.Release(e.Ref)
	}
}
