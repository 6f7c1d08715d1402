package encoder

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/internal/embregion"
	"penstock/internal/engine"
)

// fixedRegions are regions all of which have all rows.
type fixedRegions struct {
	mapped atomic.Pointer[[]string]         // by SetRegions
	read   atomic.Pointer[[]string]         // by the last ReadRows
	want   atomic.Pointer[embregion.Wanted] // of the last ReadRows
}

func (r *fixedRegions) SetRegions(addrs []string) { r.mapped.Store(&addrs) }

func (r *fixedRegions) ReadRows(addrs []string, want *embregion.Wanted, into func([3]int) []byte) (embregion.Found, bool) {
	r.read.Store(&addrs)
	r.want.Store(want)
	copy(into([3]int{1, 2, 4}), content)
	return embregion.Found{Grid: [3]int{1, 2, 4}, Digest: 7}, true
}

// TestReadsRegions: the regions of all workers that may hold rows are mapped, but the engine's own, and regions of
// other encoders. Rows are read in the regions of holders alone, without a message to any worker.
func TestReadsRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, func(c *Config) { c.AskHolders = true })
		defer f.end()
		f.client.ExcludeWorker(5)
		at := func(region string, role engine.Role, encoder string) func(*engine.Card) {
			return func(c *engine.Card) {
				c.Role, c.EmbeddingEvents, c.EmbeddingRegion, c.Encoder = role, true, region, encoder
			}
		}
		f.add(1, at("one", engine.RoleAggregated, "weights"), good)
		f.add(2, at("two", engine.RoleEncode, "weights"), good)
		f.add(3, at("", engine.RoleAggregated, "weights"), good)
		f.add(4, at("four", engine.RoleAggregated, "other"), good)
		f.add(5, at("five", engine.RoleAggregated, "weights"), good)
		if got := *f.regions.mapped.Load(); !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("mapped are %v", got)
		}
		key := jobOf(1).Key
		for _, c := range []struct {
			holders []kv.WorkerID
			read    []string
		}{
			{nil, nil}, {[]kv.WorkerID{3, 4, 5}, nil}, {[]kv.WorkerID{2}, []string{"two"}}, {[]kv.WorkerID{1, 2, 3, 5}, []string{"one", "two"}},
		} {
			f.holders.ids = c.holders
			f.regions.read.Store(new([]string))
			into := make([]byte, len(content))
			found, ok := f.client.ReadShared(&key, 2, 1, func([3]int) []byte { return into })
			if got := *f.regions.read.Load(); !slices.Equal(got, c.read) || ok != (c.read != nil) {
				t.Errorf("held by %v: read %v: %t", c.holders, got, ok)
			}
			if ok && (found.Digest != 7 || string(into) != string(content)) {
				t.Errorf("%+v, %q", found, into)
			}
		}
		want := embregion.Wanted{Key: key.TierKey(), Kind: key.Kind, Type: key.Type, Rows: 2, Width: 1, Bytes: 8}
		if got := *f.regions.want.Load(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if asked := f.askedWorkers(); len(asked) > 0 {
			t.Errorf("asked %v", asked)
		}
	})
}
