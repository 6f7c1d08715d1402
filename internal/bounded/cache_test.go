package bounded

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestCache compares the cache with a list.
func TestCache(t *testing.T) {
	const limit = 100
	c := NewCache[int](limit, func(v int) int { return v })
	type entry struct{ key, value int }
	var all []entry // the most recently used first
	draw := rand.New(rand.NewPCG(1, 2))
	for step := range 5000 {
		key := draw.IntN(30)
		at := slices.IndexFunc(all, func(e entry) bool { return e.key == key })
		switch draw.IntN(4) {
		case 0:
			c.Remove(key)
			if at >= 0 {
				all = slices.Delete(all, at, at+1)
			}
		case 1:
			v := draw.IntN(limit + 10)
			c.Put(key, v)
			if at >= 0 {
				all = slices.Delete(all, at, at+1)
			}
			all = slices.Insert(all, 0, entry{key, v})
		default:
			v, ok := c.Get(key)
			if ok != (at >= 0) || ok && v != all[at].value {
				t.Fatalf("step %d: %d, %t; want place %d of %v", step, v, ok, at, all)
			}
			if ok {
				e := all[at]
				all = slices.Insert(slices.Delete(all, at, at+1), 0, e)
			}
		}
		sum := 0
		for _, e := range all {
			sum += e.value
		}
		for ; sum > limit; all = all[:len(all)-1] {
			sum -= all[len(all)-1].value
		}
		if c.Used() != sum || c.Len() != len(all) {
			t.Fatalf("step %d: %d in %d entries, want %d in %d", step, c.Used(), c.Len(), sum, len(all))
		}
	}
}
