package encoder

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestAsksHolders: a worker which serves requests and holds the rows is asked for them alone, without the object, and
// before encode workers, unless one of these holds them too. One which has evicted them is a miss, and is asked again for
// others; one which hangs costs a bounded time. The engine's own worker, and workers of other encoders, are not asked.
func TestAsksHolders(t *testing.T) {
	serving := func(c *engine.Card) { c.Role, c.EmbeddingEvents = engine.RoleAggregated, true }
	hang := func(ctx context.Context, _ *engine.EncodeRequest) (*engine.Encoded, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, c := range map[string]struct {
		holder  handler
		edit    func(*engine.Card) // of the holder's card
		cfg     func(*Config)
		holders []kv.WorkerID
		asked   []kv.WorkerID
		again   []kv.WorkerID // for the next object
		took    time.Duration
	}{
		"holds":               {holder: good, holders: []kv.WorkerID{1}, asked: []kv.WorkerID{1}, again: []kv.WorkerID{1}},
		"evicted":             {holder: failing(fault.NotFound), holders: []kv.WorkerID{1}, asked: []kv.WorkerID{1, 2}, again: []kv.WorkerID{1, 2}},
		"fails":               {holder: failing(fault.Internal), holders: []kv.WorkerID{1}, asked: []kv.WorkerID{1, 2}, again: []kv.WorkerID{2}},
		"an earlier build":    {holder: failing(fault.Unimplemented), holders: []kv.WorkerID{1}, asked: []kv.WorkerID{1, 2}, again: []kv.WorkerID{2}},
		"hangs":               {holder: hang, holders: []kv.WorkerID{1}, asked: []kv.WorkerID{1, 2}, again: []kv.WorkerID{2}, took: 5 * time.Second},
		"holds nothing":       {holder: good, asked: []kv.WorkerID{2}, again: []kv.WorkerID{2}},
		"an encoder holds it": {holder: good, holders: []kv.WorkerID{1, 2}, asked: []kv.WorkerID{2}, again: []kv.WorkerID{2}},
		"many hold it":        {holder: good, holders: []kv.WorkerID{1, 7, 8, 9}, asked: []kv.WorkerID{1}, again: []kv.WorkerID{1}},
		"the own worker":      {holder: good, holders: []kv.WorkerID{5}, asked: []kv.WorkerID{2}, again: []kv.WorkerID{2}},
		"other encoder":       {holder: good, edit: func(c *engine.Card) { c.Encoder = "other" }, holders: []kv.WorkerID{1}, asked: []kv.WorkerID{2}, again: []kv.WorkerID{2}},
		"no events":           {holder: good, edit: func(c *engine.Card) { c.EmbeddingEvents = false }, holders: []kv.WorkerID{1}, asked: []kv.WorkerID{2}, again: []kv.WorkerID{2}},
		"switched off":        {holder: good, cfg: func(c *Config) { c.AskHolders = false }, holders: []kv.WorkerID{1}, asked: []kv.WorkerID{2}, again: []kv.WorkerID{2}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, func(cfg *Config) {
				cfg.AskHolders = true
				if c.cfg != nil {
					c.cfg(cfg)
				}
			})
			defer f.end()
			f.holders.ids = c.holders
			f.client.ExcludeWorker(5)
			f.add(1, func(card *engine.Card) {
				serving(card)
				if c.edit != nil {
					c.edit(card)
				}
			}, func(ctx context.Context, req *engine.EncodeRequest) (*engine.Encoded, error) {
				if o := &req.Objects[0]; !req.CachedOnly || o.Source != "" || !o.Tensor.IsZero() || req.Namespace != "s" {
					t.Errorf("%s: the holder is asked %+v", name, req)
				}
				return c.holder(ctx, req)
			})
			f.add(5, serving, good)
			f.add(2, nil, good)
			asks := len(c.asked) > 0 && c.asked[0] == 1
			if job := jobOf(1); f.client.HasHolder(&job.Key) != (asks || name == "an encoder holds it") {
				t.Errorf("%s: has a holder: %t", name, !asks)
			}
			begin := time.Now()
			for i, want := range [][]kv.WorkerID{c.asked, c.again} {
				job := jobOf(byte(i))
				_, err := f.client.EncodeObject(t.Context(), job)
				if got := f.askedWorkers(); err != nil || !slices.Equal(got, want) || string(job.Into) != string(content) {
					t.Errorf("%s, object %d: asked %v, want %v; %v", name, i, got, want, err)
				}
			}
			if took := time.Since(begin); took != c.took { // virtual time
				t.Errorf("%s: it took %v", name, took)
			}
			listed := slices.Contains([]string{"other encoder", "no events", "switched off"}, name)
			if n := len(*f.holders.listed.Load()); (n == 0) != listed {
				t.Errorf("%s: %d workers are listed", name, n)
			}
		})
	}
}

// TestOnlyHolders: without encode workers the rows come from a holder, or the engine encodes.
func TestOnlyHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, func(c *Config) { c.AskHolders = true })
		defer f.end()
		serves := good
		f.add(1, func(c *engine.Card) { c.Role, c.EmbeddingEvents = engine.RoleAggregated, true }, func(ctx context.Context, req *engine.EncodeRequest) (*engine.Encoded, error) {
			return serves(ctx, req)
		})
		job := jobOf(1)
		if _, err := f.client.EncodeObject(t.Context(), job); f.client.HasEncoders() || f.client.HasHolder(&job.Key) || fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("held by no worker: %v", err)
		}
		f.holders.ids = []kv.WorkerID{1}
		if _, err := f.client.EncodeObject(t.Context(), job); err != nil || f.client.HasEncoders() || !f.client.HasHolder(&job.Key) {
			t.Errorf("held: %v", err)
		}
		serves = failing(fault.NotFound)
		if _, err := f.client.EncodeObject(t.Context(), job); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("evicted: %v", err)
		}
	})
}
