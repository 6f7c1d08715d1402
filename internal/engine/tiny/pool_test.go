package tiny

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/core/pool"
	"penstock/internal/backoff"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/engine/enginetest"
	poolfile "penstock/internal/plane/xfer/pool"
)

// attachPool makes e use the pool at a path as a worker; as worker 0 it gets no lease.
func attachPool(t *testing.T, e *Engine, id kv.WorkerID, path string, size int) {
	t.Helper()
	layout := e.BlockLayout()
	cfg := layout.PoolConfig()
	cfg.Lease = time.Hour
	f, err := poolfile.Open(t.Context(), path, size, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if id > 0 {
		err = f.Use(func(p *pool.View, now kv.Mono) error { return p.Join(now, kv.Worker{ID: id}) })
	}
	if err == nil {
		err = e.UsePool(f, 7, kv.Worker{ID: id})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitPool waits until an engine has done what ok wants with its pool.
func awaitPool(t *testing.T, e *Engine, ok func(batch.PoolStats) bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	if err := backoff.Poll(ctx, time.Millisecond, func() bool { return ok(e.PoolStats()) }); err != nil {
		t.Fatalf("the engine has not done with its pool what it should: %v: %+v", err, e.PoolStats())
	}
}

// countFull returns how many blocks of 16 tokens requests fill with different tokens, of prompts and answers.
func countFull(t *testing.T, requests []*engine.Request, answers [][]enginetest.Choice) uint64 {
	t.Helper()
	names := map[kv.SeqHash]bool{}
	for i, req := range requests {
		for _, c := range answers[i] {
			// K and V of the last token are not computed.
			tokens := append(req.Prompt[:len(req.Prompt):len(req.Prompt)], c.Tokens...)
			blocks, err := paged.AppendFullBlocks(nil, &paged.Sequence{Salt: req.Salt, Tokens: tokens, Media: req.Media}, 16)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range blocks {
				names[b.Name] = true
			}
		}
	}
	return uint64(len(names))
}

// TestPool: two engines share a pool file. The second one computes the last block of a prompt alone, and gives the same
// tokens and log-probabilities as one engine, also of prompts with pictures, and so does one which finds other bytes there.
func TestPool(t *testing.T) {
	open := longNetwork(t)
	requests := longPrompts(t, 8)
	reference := open(func(c *Config) { c.Reuse, c.BlockSize, c.Blocks = paged.Off, 16, 400 })
	want, _ := alone(t, enginetest.Start(t, reference), reference, requests)
	path := filepath.Join(t.TempDir(), "pool")
	shared := func(id kv.WorkerID) (*Engine, *spy, context.Context) {
		e := open(func(c *Config) { c.BlockSize, c.Blocks = 16, 1600 })
		layout := e.BlockLayout()
		attachPool(t, e, id, path, 1<<20+2000*(layout.BlockBytes+1024))
		return spied(t, e)
	}
	first, _, ctx := shared(1)
	got, _ := alone(t, ctx, first, requests)
	same(t, "the first", want, got)
	full := countFull(t, requests, want)
	awaitPool(t, first, func(s batch.PoolStats) bool { return s == batch.PoolStats{Stored: full} })

	second, spy, ctx := shared(2)
	for i, req := range requests {
		computed, encoded := spy.computed.Load(), second.EncoderStats().Encoded
		got, cached, err := run(ctx, second, req)
		if err != nil {
			t.Fatalf("%s: %v", req.ID, err)
		}
		same(t, req.ID, want[i:i+1], [][]enginetest.Choice{got})
		most := int64(req.Choices * 16)
		for _, c := range got {
			most += int64(len(c.Tokens) - 1)
		}
		end := (len(req.Prompt) - 1) / 16 * 16
		if n := spy.computed.Load() - computed; n > most || cached != end*req.Choices {
			t.Errorf("%s: the second engine computed %d of %d tokens and had %d, and at most %d and %d are expected", req.ID, n, len(req.Prompt), cached, most, end*req.Choices)
		}
		if last := len(req.Media) - 1; last >= 0 && req.Media[last].End <= end && second.EncoderStats().Encoded != encoded {
			t.Errorf("%s: the second engine encoded a picture whose tokens it does not compute", req.ID)
		}
	}
	if s := second.PoolStats(); s.Fetched < 200 || s.Damaged+s.Dropped+s.Stored != 0 {
		t.Errorf("the second: %+v", s)
	}

	third, spy, ctx := shared(3)
	bytes, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := len(bytes) / 4; at < len(bytes); at += 4096 {
		bytes[at] ^= 0x55
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes[len(bytes)/4:], int64(len(bytes)/4)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	got, _ = alone(t, ctx, third, requests)
	same(t, "with damaged blocks", want, got)
	if s := third.PoolStats(); s.Damaged == 0 || spy.computed.Load() < 3000 {
		t.Errorf("with damaged blocks: %+v, %d tokens were computed", s, spy.computed.Load())
	}
}

// TestPoolScarce: engines give the tokens of one engine alone beside a pool which has room for few of their blocks, and
// without access to it.
func TestPoolScarce(t *testing.T) {
	open := longNetwork(t)
	requests := longPrompts(t, 8)
	reference := open(func(c *Config) { c.Reuse, c.BlockSize, c.Blocks = paged.Off, 16, 400 })
	want, _ := alone(t, enginetest.Start(t, reference), reference, requests)
	path := filepath.Join(t.TempDir(), "pool")
	for id := range kv.WorkerID(3) { // worker 0 has no access
		e := open(func(c *Config) { c.BlockSize, c.Blocks = 16, 400 })
		layout := e.BlockLayout()
		attachPool(t, e, id, path, 1<<18+40*layout.BlockBytes)
		_, _, ctx := spied(t, e)
		got := together(t, ctx, e, requests, id == 1)
		same(t, "together", want, got)
		if id == 0 {
			if s := e.PoolStats(); s.Stored+s.Fetched+s.Evicted != 0 {
				t.Errorf("without access: %+v", s)
			}
			continue
		}
		awaitPool(t, e, func(s batch.PoolStats) bool { return s.Evicted > 10 })
	}
}

// TestPoolOfAnotherProcessor: an engine which prepares pictures in another way takes no blocks from a pool, or from a
// prefill worker.
func TestPoolOfAnotherProcessor(t *testing.T) {
	config := func(c *Config) { c.BlockSize, c.Blocks = 16, 100 }
	colours := builtinColours()
	colours.Mean[0]++
	first, other := longNetwork(t)(config), colouredNetwork(t, colours)(config)
	path := filepath.Join(t.TempDir(), "pool")
	attachPool(t, first, 1, path, 1<<20)
	attachPool(t, longNetwork(t)(config), 2, path, 1<<20)

	layout, from := other.BlockLayout(), first.BlockLayout()
	f, err := poolfile.Open(t.Context(), path, 1<<20, layout.PoolConfig())
	if fault.CodeOf(err) != fault.Conflict {
		t.Errorf("the pool: %v", err)
		if err == nil {
			f.Close()
		}
	}
	if err := layout.CheckWriter(&from); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("the prefill worker: %v", err)
	}
}
