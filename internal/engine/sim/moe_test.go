package sim

import (
	"maps"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/internal/engine/enginetest"
)

// TestLabels checks that every stored block has a label, the same one in changes and descriptions and in all
// engines.
func TestLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moe := MoE{Layers: 60, Experts: 256, Groups: 8}
		told := func(describe bool) map[kv.SeqHash]kv.MoELabel {
			e := small(t, func(c *Config) { c.MoE, c.Blocks = moe, 1000 })
			ctx := enginetest.Start(t, e)
			labels := map[kv.SeqHash]kv.MoELabel{}
			watch := func() {
				go func() {
					_ = e.WatchKV(ctx, func(events []kv.Event) error { // ends with the test
						for _, ev := range events {
							if len(ev.Labels) != len(ev.Blocks) {
								t.Errorf("%d labels for %d blocks", len(ev.Labels), len(ev.Blocks))
							}
							name := ev.Parent
							for i, b := range ev.Blocks {
								name = kv.ExtendSeq(name, ev.Start+uint32(i), b)
								labels[name] = ev.Labels[i]
							}
						}
						return nil
					})
				}()
				synctest.Wait()
			}
			if !describe {
				watch()
			}
			for i := range 20 {
				enginetest.MustGenerate(t, ctx, e, request(i/2, 60+i, 12))
			}
			if describe {
				watch()
			}
			synctest.Wait()
			return labels
		}
		changes, description := told(false), told(true)
		if len(changes) < 150 || !maps.Equal(changes, description) {
			t.Errorf("%d labels in changes, %d in a description, or they differ", len(changes), len(description))
		}
		experts, layers := map[uint32]bool{}, map[uint32]bool{}
		for _, l := range changes {
			experts[l.Expert], layers[l.Layer] = true, true
			if !l.IsValid() || l.Layer >= 60 || l.Expert >= 256 || l.Group != l.Expert/32 {
				t.Fatalf("label %+v", l)
			}
		}
		if len(experts) < 60 || len(layers) < 30 {
			t.Errorf("%d blocks have %d experts and %d layers", len(changes), len(experts), len(layers))
		}
	})
}
