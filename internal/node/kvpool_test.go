package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/pool"
	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/node/engines"
	"penstock/internal/node/planes"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	poolfile "penstock/internal/plane/xfer/pool"
)

// newPoolProcess returns the process of up whose two workers have a pool.
func newPoolProcess(t *testing.T, pool string, settings ...string) *process {
	t.Helper()
	cfg, err := config.Load("", append(settings, "PENSTOCK_POOL="+pool, "PENSTOCK_KV_CACHE_BLOCKS=64"), config.NoFlags(config.Up))
	if err != nil {
		t.Fatal(err)
	}
	model, err := engines.OpenLocal(t.Context(), cfg, engines.MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	return &process{
		cfg: cfg, log: slog.New(slog.DiscardHandler), metrics: obs.NewMetrics(), model: model,
		planes: &planes.Set{Events: bus.NewMemBus(), Registry: disco.NewMemRegistry(), RPC: rpc.NewMemPlane()},
	}
}

// answer serves a request of 100 tokens, and returns its answer and how many of its tokens were cached.
func answer(t *testing.T, ctx context.Context, e engine.Engine) (tokens []kv.Token, cached int) {
	t.Helper()
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 4, IgnoreEOS: true}}
	for i := range kv.Token(100) {
		req.Prompt = append(req.Prompt, 300+i)
	}
	if err := e.Generate(ctx, req, func(d *engine.Delta) error {
		tokens, cached = append(tokens, d.Tokens...), cached+d.Cached
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return tokens, cached
}

// makePool makes the pool of the workers of p, whose leases do not end while a slow machine does not renew them.
func makePool(t *testing.T, p *process, path string, size int) {
	t.Helper()
	layout := p.model.Engines[0].(poolEngine).BlockLayout()
	cfg := layout.PoolConfig()
	cfg.Lease = time.Hour
	f, err := poolfile.Open(t.Context(), path, size, cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestPoolOfWorkers: the workers of a process share the pool which the settings name: they own it while they run, and the
// second one fetches what the first one has computed. Another process with another size, or another model, does not start.
func TestPoolOfWorkers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	p := newPoolProcess(t, "0="+path+":16MiB")
	defer p.closePools()
	makePool(t, p, path, 16<<20)
	if _, err := p.newWorkers(); err != nil {
		t.Fatal(err)
	}
	first, second := p.model.Engines[0].Card().Pool, p.model.Engines[1].Card().Pool
	if first == nil || second == nil || *first != *second || len(first.Generation) != 16 {
		t.Errorf("the cards have the pools %+v and %+v", first, second)
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the workers are too slow, or do not do it"))
	defer stop()
	runs := p.poolRunners()
	for _, e := range p.model.Engines {
		runs = append(runs, e.Run)
	}
	for _, run := range runs {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	// A request before the engine is an owner stores nothing, so each one waits for that.
	for _, u := range p.pools {
		if err := backoff.Poll(ctx, time.Millisecond, u.isOwner); err != nil {
			t.Fatalf("worker %d does not join the pool: %v", u.worker.ID, err)
		}
	}
	want, cached := answer(t, ctx, p.model.Engines[0])
	if err := backoff.Poll(ctx, time.Millisecond, func() bool { return p.poolStats().Stored == 6 }); err != nil || cached != 0 {
		t.Fatalf("%v, %d tokens were cached: %+v", err, cached, p.poolStats())
	}
	got, cached := answer(t, ctx, p.model.Engines[1])
	if !slices.Equal(got, want) || cached != 96 || p.poolStats() != (batch.PoolStats{Stored: 6, Fetched: 6}) {
		t.Errorf("the second worker says %v, the first %v: %d tokens were cached, %+v", got, want, cached, p.poolStats())
	}

	for _, c := range []struct{ size, setting, what string }{
		{"32MiB", "PENSTOCK_WORKERS=2", "give all workers its size, or remove it"},
		{"16MiB", "PENSTOCK_KV_CACHE_BLOCK_SIZE=32", "give each its own pool"},
	} {
		other := newPoolProcess(t, "0="+path+":"+c.size, c.setting)
		_, err := other.newWorkers()
		other.closePools()
		var wrong *config.SettingError
		if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), "pool: ") || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// isOwner reports whether the worker has joined the pool.
func (u *poolUse) isOwner() (is bool) {
	_ = u.file.Use(func(v *pool.View, _ kv.Mono) error {
		is = v.IsOwner()
		return nil
	})
	return is
}

// lossWatcher is an engine which is told when its pool is lost.
type lossWatcher struct {
	poolEngine
	lost chan struct{}
}

func (e lossWatcher) PoolLost() { close(e.lost) }

// TestPoolLost: the engine of a worker learns that its pool is lost, and the worker goes on without it.
func TestPoolLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool")
	p := newPoolProcess(t, "0="+path+":16MiB")
	defer p.closePools()
	if _, err := p.newWorkers(); err != nil {
		t.Fatal(err)
	}
	u := p.pools[0]
	e := lossWatcher{u.engine, make(chan struct{})}
	u.engine = e
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the engine does not learn that its pool is lost"))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- u.run(ctx) }()
	if err := awaitClosed(ctx, e.lost); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("the worker has ended: %v", err)
	default:
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
