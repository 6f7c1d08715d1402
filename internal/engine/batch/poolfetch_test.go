package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// hangFrom makes a view hang at its use n, counted from 1, and at all later ones, until the returned function is called.
func (v *poolView) hangFrom(n int64) (release func()) {
	var uses atomic.Int64
	gate := make(chan struct{})
	v.held = func() {
		if uses.Add(1) >= n {
			<-gate
		}
	}
	return func() { close(gate) }
}

// computed puts a request of 45 tokens into a pool, which another engine has computed.
func computed(t *testing.T, p *memPool) (context.Context, *engine.Request) {
	t.Helper()
	e, _ := pooled(t, p.attach(t, 1), nil)
	ctx := enginetest.Start(t, e)
	req := greedy(1, 45, 5)
	expectChoice(t, ctx, e, req, 0)
	synctest.Wait()
	return ctx, req
}

// TestPoolHangs: a pool which does not answer holds a request up for a bounded time, and the ones after it not at all. What
// was fetched before is used. When it answers again, it is used again.
func TestPoolHangs(t *testing.T) {
	for name, c := range map[string]struct {
		from    int64 // the first use which hangs
		fetched int   // blocks
		left    int   // tokens of the request which are computed
	}{
		"look-up": {from: 1, left: 45 + 4},
		"fetch":   {from: 4, fetched: 2, left: 45 - 16 + 4},
		"release": {from: 7, fetched: 5, left: 5 + 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newMemPool(t, 60)
				ctx, req := computed(t, p)
				view := p.attach(t, 2)
				e, b := pooled(t, view, nil)
				enginetest.Start(t, e)
				synctest.Wait()
				release := view.hangFrom(c.from)

				begin := time.Now()
				expectChoice(t, ctx, e, req, 8*c.fetched)
				if d := time.Since(begin); d > 2*poolPatience {
					t.Errorf("the request has taken %v", d)
				}
				expectComputed(t, b, "of the request", c.left)
				begin = time.Now()
				expectChoice(t, ctx, e, greedy(2, 45, 5), 0)
				if d := time.Since(begin); d > 0 {
					t.Errorf("the next request has waited for %v", d)
				}
				expectComputed(t, b, "of the next one", 49)
				if s := e.PoolStats(); s.Fetched != uint64(c.fetched) || s.Abandoned != 2 {
					t.Errorf("%+v", s)
				}
				release()
				synctest.Wait()
				expectChoice(t, ctx, e, greedy(3, 45, 5), 0)
				synctest.Wait()
				other, _ := pooled(t, p.attach(t, 3), nil)
				enginetest.Start(t, other)
				expectChoice(t, ctx, other, greedy(3, 45, 5), 40)
				if s := e.PoolStats(); s.Abandoned != 2 {
					t.Errorf("after all: %+v", s)
				}
				expectIdle(t, e)
				p.check(t)
			})
		})
	}
}

// TestPoolSlow: a slow pool is waited for as long as it does something.
func TestPoolSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		ctx, req := computed(t, p)
		view := p.attach(t, 2)
		e, _ := pooled(t, view, nil)
		enginetest.Start(t, e)
		var uses atomic.Int64
		view.held = func() {
			if uses.Add(1) <= 7 { // a look-up, five blocks, and their release
				time.Sleep(poolPatience * 3 / 5) // the time of an access; the clock is a fake one
			}
		}
		expectChoice(t, ctx, e, req, 40)
		expectPool(t, e, "of a slow pool", PoolStats{Fetched: 5})
		expectIdle(t, e)
		p.check(t)
	})
}

// TestPoolHangsAtEnd: an engine ends though its pool does not answer.
func TestPoolHangsAtEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		view := p.attach(t, 1)
		e, _ := pooled(t, view, nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		release := view.hangFrom(2) // the first one is the look-up
		enginetest.MustGenerate(t, ctx, e, greedy(1, 45, 5))
		synctest.Wait()
		begin := time.Now()
		stop()
		if err := <-ended; err != nil || time.Since(begin) > 2*poolPatience {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		release()
		synctest.Wait()
		p.check(t)
	})
}

// TestPoolUsersWait: no more requests than maxPoolUsers use the pool at once, and the others wait for a bounded
// time.
func TestPoolUsersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 4)
		e, _ := pooled(t, p.attach(t, 1), nil)
		for range maxPoolUsers {
			e.pool.users <- struct{}{}
		}
		begin, called := time.Now(), false
		if e.pool.runBeside(new(atomic.Int64), func() { called = true }) || called || time.Since(begin) != poolPatience {
			t.Errorf("called: %v, after %v", called, time.Since(begin))
		}
		<-e.pool.users
		if !e.pool.runBeside(new(atomic.Int64), func() { called = true }) || !called || len(e.pool.users) != maxPoolUsers-1 {
			t.Errorf("called: %v; %d users", called, len(e.pool.users))
		}
	})
}

// TestPoolPatienceAfterLine: the time for which a request waits for its turn does not count as time in which the pool does
// nothing.
func TestPoolPatienceAfterLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := pooled(t, newMemPool(t, 4).attach(t, 1), nil)
		for range maxPoolUsers {
			e.pool.users <- struct{}{}
		}
		time.AfterFunc(poolPatience*9/10, func() { <-e.pool.users })
		slow := func() { time.Sleep(poolPatience * 9 / 10) } // the time of an access; the clock is a fake one
		if !e.pool.runBeside(new(atomic.Int64), slow) || e.PoolStats().Abandoned != 0 || e.pool.stuck.Load() != 0 {
			t.Errorf("%+v, %d uses are stuck", e.PoolStats(), e.pool.stuck.Load())
		}
	})
}

// refusing is a computer which takes no tokens from a position on.
type refusing struct {
	*blockDice
	from int
}

var errRefused = errors.New("refused")

func (c *refusing) WriteTokens(blocks []int32, start, end int, data *engine.BlockData) error {
	if start >= c.from {
		return errRefused
	}
	return c.blockDice.WriteTokens(blocks, start, end, data)
}

// TestPoolRefusedBlock: a block which the computer refuses is computed, and so are the blocks after it.
func TestPoolRefusedBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		ctx, req := computed(t, p)
		e, b := exchanging(t, 8, nil)
		e.computer = &refusing{b, 24}
		usePool(t, e, p.attach(t, 2))
		enginetest.Start(t, e)
		expectChoice(t, ctx, e, req, 24)
		expectComputed(t, b, "after a refused block", 45-24+4)
		expectPool(t, e, "after a refused block", PoolStats{Fetched: 3})
		expectIdle(t, e)
		p.check(t)
	})
}

// onlyChoice returns the only choice of an engine and what it imports, in the loop.
func (l *loop) onlyChoice(t *testing.T) (*choiceSequence, *blockImport) {
	t.Helper()
	if len(l.scheduled) != 1 {
		t.Errorf("%d choices are scheduled", len(l.scheduled))
	}
	for _, c := range l.scheduled {
		return c, c.request.imp
	}
	return nil, nil
}

// TestPoolRefusedImport: if the scheduler refuses the tokens which were fetched, the engine computes them.
func TestPoolRefusedImport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		ctx, req := computed(t, p)
		view := p.attach(t, 2)
		e, b := pooled(t, view, nil)
		enginetest.Start(t, e)
		release := view.hangFrom(2)
		ended := startGenerating(ctx, e, req)
		synctest.Wait() // it fetches
		if err := e.callLoop(ctx, func(l *loop) error {
			_, imp := l.onlyChoice(t)
			imp.fetch.written.Store(48) // more than is reserved for the import
			l.finishFetch(imp)
			return nil
		}); err != nil {
			t.Error(err)
		}
		release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		expectComputed(t, b, "after a refused import", 45+4)
		if s := e.PoolStats(); s.Fetched != 0 {
			t.Errorf("%+v", s)
		}
		expectIdle(t, e)
		p.check(t)
	})
}

// TestPoolDropsContents: what was looked up for a fetch is dropped when it ends, or when there is nothing to fetch.
func TestPoolDropsContents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		ctx, req := computed(t, p)
		e, _, g := steppedPooled(t, p.attach(t, 2), nil)
		enginetest.Start(t, e)
		for _, when := range []string{"after the fetch", "without a fetch"} {
			ended := startGenerating(ctx, e, req)
			<-g.Enter
			checked := make(chan error, 1)
			go func() {
				checked <- e.callLoop(ctx, func(l *loop) error {
					_, imp := l.onlyChoice(t)
					if imp.fetch.contents.Load() != nil || imp.fetch.pooled != nil {
						t.Errorf("%s: what was looked up is kept", when)
					}
					return nil
				})
			}()
			synctest.Wait() // it waits for the loop
			g.stepUntil(func() bool { return len(checked)+len(ended) == 2 })
			if err := errors.Join(<-checked, <-ended); err != nil {
				t.Error(err)
			}
		}
		g.Open(t)
		expectIdle(t, e)
		p.check(t)
	})
}

// TestPoolCancelSkipped: without evictions since the last step the loop looks at no pending copy.
func TestPoolCancelSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		e, _ := pooled(t, p.attach(t, 1), func(c *Config) { c.Card.Blocks = 12 })
		ctx := enginetest.Start(t, e)
		job := &storeJob{block: 11, over: make(chan bool, 1)} // whose block is not registered
		job.over <- false
		if err := e.callLoop(ctx, func(*loop) error {
			e.pool.pending = append(e.pool.pending, job)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		enginetest.MustGenerate(t, ctx, e, greedy(1, 40, 1))
		if job.hasEnded() {
			t.Error("a copy was looked at, and nothing was evicted")
		}
		enginetest.MustGenerate(t, ctx, e, greedy(2, 90, 1))
		if !job.hasEnded() {
			t.Error("a copy of an evicted block was not cancelled")
		}
		synctest.Wait()
		p.check(t)
	})
}

// TestPoolKeepsHeldPrefix: a prefix which an engine has itself, and uses, does not age in the pool: the blocks which follow
// it there would be of no use to others.
func TestPoolKeepsHeldPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 12)
		first, b := pooled(t, p.attach(t, 1), nil)
		ctx := enginetest.Start(t, first)
		expectChoice(t, ctx, first, greedy(1, 41, 1), 0)
		synctest.Wait()
		for seed := range 10 {
			enginetest.MustGenerate(t, ctx, first, greedy(10+seed, 17, 1))
			expectChoice(t, ctx, first, greedy(1, 41, 1), 40)
			synctest.Wait()
		}
		expectComputed(t, b, "of all", 41+10*(17+1))
		if s := first.PoolStats(); s.Evicted == 0 {
			t.Errorf("the test tested nothing: %+v", s)
		}
		second, _ := pooled(t, p.attach(t, 2), nil)
		enginetest.Start(t, second)
		expectChoice(t, ctx, second, greedy(1, 41, 1), 40)
		expectIdle(t, second)
		p.check(t)
	})
}

// TestPoolKeepsLongPrompt: the last block of a prompt is evicted first, also of one which is looked up in parts.
func TestPoolKeepsLongPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, lookUpChunk+8)
		view := p.attach(t, 1)
		room := view.view.Blocks()
		e, _ := pooled(t, view, func(c *Config) {
			c.Card.Blocks, c.Card.ContextLength = 2*room, 16*room
		})
		ctx := enginetest.Start(t, e)
		req := greedy(1, 8*room+1, 1)
		enginetest.MustGenerate(t, ctx, e, req)
		expectPool(t, e, "of a long prompt", PoolStats{Stored: uint64(room)})
		look := func() []bool { return e.pool.lookUp(ctx, paged.Sequence{Tokens: req.Prompt}).pooled }
		look()
		enginetest.MustGenerate(t, ctx, e, greedy(2, 9, 1))
		expectPool(t, e, "of a short one", PoolStats{Stored: uint64(room) + 1, Evicted: 1})
		if gone := slices.Index(look(), false); gone != room-1 {
			t.Errorf("block %d of %d was evicted", gone, room)
		}
		expectIdle(t, e)
		p.check(t)
	})
}

// TestPoolAfterPreemption: a request which was preempted, and whose blocks were evicted meanwhile, fetches them: of its
// prompt and of its answer.
func TestPoolAfterPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		e, b, g := steppedPooled(t, p.attach(t, 1), func(c *Config) { c.Card.Blocks = 9 })
		ctx := enginetest.Start(t, e)
		older, newer := greedy(1, 30, 36), greedy(2, 12, 20)
		type ending struct {
			got []enginetest.Choice
			err error
		}
		start := func(req *engine.Request) chan ending {
			ended := make(chan ending, 1)
			go func() {
				got, err := enginetest.Generate(ctx, e, req)
				ended <- ending{got, err}
			}()
			synctest.Wait()
			return ended
		}
		ends := []chan ending{start(older)}
		<-g.Enter
		ends = append(ends, start(newer))
		g.stepUntil(func() bool { return len(ends[0])+len(ends[1]) == 2 })
		g.Open(t)
		for i, req := range []*engine.Request{older, newer} {
			end := <-ends[i]
			if want := answerOf(t, req); end.err != nil || len(end.got) != 1 || !slices.Equal(want[0].Tokens, end.got[0].Tokens) {
				t.Errorf("request %d: %v, %v, want %v", i, end.got, end.err, want)
			}
		}
		if l := e.Load(); l.Preemptions == 0 {
			t.Error("the test tested nothing: no request was preempted")
		}
		expectComputed(t, b, "of both", 30+35+12+19)
		expectPool(t, e, "of both", PoolStats{Stored: 11, Fetched: 3})
		expectIdle(t, e)
		p.check(t)
	})
}

// pooledImport starts the import of req at an engine whose pool has the first tokens, which another one has computed.
func pooledImport(t *testing.T, p *memPool, req *engine.Request, tokens int, change func(*Config)) (context.Context, *Engine, *blockDice, *poolView) {
	t.Helper()
	prefill, _ := pooled(t, p.attach(t, 1), nil)
	ctx := enginetest.Start(t, prefill)
	enginetest.MustGenerate(t, ctx, prefill, &engine.Request{Attempt: 1, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true}, Prompt: req.Prompt[:tokens+1]})
	synctest.Wait()
	view := p.attach(t, 2)
	e, b := pooled(t, view, change)
	enginetest.Start(t, e)
	return ctx, e, b, view
}

// importAfter imports the blocks of a prompt after the first held tokens, and no others.
func (g *importing) importAfter(t *testing.T, ctx context.Context, req *engine.Request, held int) {
	t.Helper()
	data := blocksOf(req.Prompt, 8)
	data.First, data.Bytes = held/8, data.Bytes[4*held:4*(len(req.Prompt)-1)/32*32]
	if err := g.imp.ImportBlocks(ctx, data, 0); err != nil {
		t.Error(err)
	}
}

// TestPoolImport: what is in the pool of a request whose prompt another engine computes is fetched, and only the rest is
// moved.
func TestPoolImport(t *testing.T) {
	for _, tokens := range []int{8, 24, 40} {
		synctest.Test(t, func(t *testing.T) {
			p, req := newMemPool(t, 60), greedy(1, 45, 5)
			want := answerOf(t, req)
			ctx, e, b, _ := pooledImport(t, p, req, tokens, nil)
			if n, err := e.CountCached(ctx, req); n != tokens || err != nil {
				t.Errorf("%d tokens are cached, of which %d are in the pool: %v", n, tokens, err)
			}
			g := startImport(t, ctx, e, req)
			g.expect(t, "of the pool", fmt.Sprint("reserved, ", tokens, " held"))
			if tokens < 40 {
				if err := g.imp.ImportBlocks(ctx, blocksOf(req.Prompt[:8], 8), 0); err == nil {
					t.Error("a block was imported which was fetched")
				}
				g.importAfter(t, ctx, req, tokens)
			}
			g.expectAnswer(t, "after all", want, tokens)
			expectComputed(t, b, "after all", 5+4)
			expectPool(t, e, "after all", PoolStats{Fetched: uint64(tokens / 8), Stored: uint64(6 - tokens/8)})
			if n, err := e.CountCached(ctx, req); n != 40 || err != nil {
				t.Errorf("%d tokens are cached: %v", n, err)
			}
			expectIdle(t, e)
			p.check(t)
		})
	}
}

// TestPoolImportHangs: what a pool which hangs has not given is moved, and the pool writes nothing any more.
func TestPoolImportHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, req := newMemPool(t, 60), greedy(1, 45, 5)
		want := answerOf(t, req)
		ctx, e, b, view := pooledImport(t, p, req, 24, nil)
		release := view.hangFrom(3) // after the look-up and a block
		g := startImport(t, ctx, e, req)
		g.expect(t, "while it hangs")
		if n := e.HealthReport().Progress; n != 1 {
			t.Errorf("%d units of progress, and one block is fetched", n)
		}
		time.Sleep(2 * poolPatience) // the fetch is given up; the clock is a fake one
		g.expect(t, "of a pool which hangs", "reserved, 8 held")
		b.write = func() { t.Error("the pool writes to a block which is moved") }
		release()
		synctest.Wait()
		b.write = nil
		g.importAfter(t, ctx, req, 8)
		g.expectAnswer(t, "after all", want, 8)
		expectComputed(t, b, "after all", 5+4)
		if s := e.PoolStats(); s.Fetched != 1 || s.Abandoned != 1 {
			t.Errorf("%+v", s)
		}
		expectIdle(t, e)
		p.check(t)
	})
}

// TestPoolImportEnds: an import may end while blocks are looked up or fetched for it. The engine computes the others, and
// the watcher hears nothing.
func TestPoolImportEnds(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, e *Engine, g *importing){
		"local": func(_ context.Context, _ *Engine, g *importing) { g.imp.PrefillLocal() },
		"moved too early": func(ctx context.Context, _ *Engine, g *importing) {
			if err := g.imp.ImportBlocks(ctx, blocksOf(greedy(1, 45, 5).Prompt, 8), 0); err == nil {
				t.Error("blocks were imported too early")
			}
			g.imp.PrefillLocal()
		},
	} {
		for _, c := range []struct {
			hangs  int64 // at which use of the pool
			tokens int
		}{{1, 24}, {3, 24}, {3, 40}} {
			t.Run(fmt.Sprint(name, " ", c), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, req := newMemPool(t, 60), greedy(1, 45, 5)
					want := answerOf(t, req)
					ctx, e, b, view := pooledImport(t, p, req, c.tokens, nil)
					release := view.hangFrom(c.hangs)
					g := startImport(t, ctx, e, req)
					synctest.Wait() // it looks up or fetches
					end(ctx, e, g)
					synctest.Wait()
					release()
					g.expectAnswer(t, "after all", want, c.tokens)
					expectComputed(t, b, "after all", 45-c.tokens+4)
					g.expect(t, "after all")
					expectIdle(t, e)
					p.check(t)
				})
			})
		}
	}
}

// TestPoolImportEndsReclaimed: the watcher of an import which is over does not hear either that its blocks are taken away
// during the fetch.
func TestPoolImportEndsReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, req := newMemPool(t, 60), greedy(2, 40, 5)
		want := answerOf(t, req)
		ctx, e, _, view := pooledImport(t, p, req, 24, func(c *Config) { c.Card.Blocks = 10 })
		older := startImport(t, ctx, e, greedy(1, 30, 20))
		older.expect(t, "the older one", "reserved, 0 held")
		release := view.hangFrom(3)
		g := startImport(t, ctx, e, req)
		synctest.Wait() // it fetches
		g.imp.PrefillLocal()
		older.imp.PrefillLocal()
		synctest.Wait()
		if e.Load().Preemptions != 1 {
			t.Error("the test tested nothing: no request was preempted")
		}
		release()
		g.expectAnswer(t, "after all", want, 0)
		g.expect(t, "after all")
		expectIdle(t, e)
		p.check(t)
	})
}

// TestPoolPrefillBlocks: what is in the pool of a prompt which is computed for another engine is not computed again.
func TestPoolPrefillBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, req := newMemPool(t, 60), greedy(1, 45, 5)
		ctx, e, b, _ := pooledImport(t, p, req, 24, nil)
		if err := e.PrefillBlocks(ctx, req, func(h engine.HeldBlocks) error {
			got := make([]byte, 5*32)
			err := h.ReadBlocks(ctx, got, 0, 5)
			if !slices.Equal(got, blocksOf(req.Prompt[:40], 8).Bytes) || h.Cached() != 24 {
				t.Errorf("%d tokens are cached, and the blocks have %v", h.Cached(), got)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		expectComputed(t, b, "after 24 tokens of the pool", 45-24)
		expectPool(t, e, "after 24 tokens of the pool", PoolStats{Fetched: 3, Stored: 2})
		expectIdle(t, e)
		p.check(t)
	})
}
