package batch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/core/pool"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// memPool is a pool in memory, for blocks of dice of 8 tokens.
type memPool struct {
	bytes  []byte
	memory pool.Memory
	cfg    pool.Config
}

// newMemPool returns a pool with room for so many blocks.
func newMemPool(t testing.TB, blocks int) *memPool {
	t.Helper()
	layout := engine.KVLayout{BlockSize: 8, BlockBytes: 32, Type: media.Float32, Order: "tokens", Numerics: "dice"}
	p := &memPool{cfg: layout.PoolConfig()}
	for size := 4096; ; size += 256 {
		p.bytes = make([]byte, size)
		memory, err := pool.MapBytes(p.bytes)
		if err != nil {
			t.Fatal(err)
		}
		p.memory = memory
		if pool.Format(memory, p.cfg, 99) != nil {
			continue // not one block fits
		}
		if v, err := pool.Open(memory, p.cfg); err == nil && v.Blocks() >= blocks {
			return p
		}
	}
}

// poolView is a process's view of a memPool.
type poolView struct {
	worker kv.Worker
	mu     sync.Mutex
	view   *pool.View
	// held, if not nil, is called before each use of the pool.
	held func()
	// left, if not nil, is called after each use of the pool.
	left func()
}

func (v *poolView) Use(use func(*pool.View, kv.Mono) error) error {
	if v.held != nil {
		v.held()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.left != nil {
		defer v.left()
	}
	return use(v.view, 0)
}

// attach returns the view of a worker; of worker 0, one which has no lease.
func (p *memPool) attach(t testing.TB, id kv.WorkerID) *poolView {
	t.Helper()
	v, err := pool.Open(p.memory, p.cfg)
	if err == nil && id > 0 {
		err = v.Join(0, kv.Worker{ID: id})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &poolView{view: v, worker: kv.Worker{ID: id}}
}

// check walks the directory, in which nothing may be held.
func (p *memPool) check(t testing.TB) {
	t.Helper()
	if err := p.attach(t, 0).view.Check(); err != nil {
		t.Error(err)
	}
	p.checkUnheld(t)
}

// checkUnheld checks that no block is being written or read.
func (p *memPool) checkUnheld(t testing.TB) {
	t.Helper()
	if s := p.attach(t, 0).view.Stats(); s.InTransit+s.Pinned != 0 {
		t.Errorf("the pool has %+v", s)
	}
}

// evict evicts a block of a sequence.
func (p *memPool) evict(t testing.TB, req *engine.Request, block int) {
	t.Helper()
	p.damage(t, req, block, func(v *pool.View, ref pool.BlockRef) { _ = v.Verify(ref) })
}

// damage changes the bytes of a block of a sequence, and calls then.
func (p *memPool) damage(t testing.TB, req *engine.Request, block int, then ...func(*pool.View, pool.BlockRef)) {
	t.Helper()
	v := p.attach(t, 99).view
	defer v.Leave()
	before, blocks := kv.Digest{}, []paged.FullBlock(nil)
	blocks, err := paged.AppendFullBlocks(blocks, &paged.Sequence{Salt: req.Salt, Tokens: req.Prompt, Media: req.Media}, 8)
	if err != nil {
		t.Fatal(err)
	}
	for i := range blocks {
		c := contentOf(&blocks[i], pool.DigestSalt(req.Salt))
		c.ParentIdentity = before
		if before, err = v.Identify(&c); err != nil {
			t.Fatal(err)
		}
		if i < block {
			continue
		}
		found, ok := v.Acquire(&c)
		if !ok {
			t.Fatalf("block %d is not in the pool", i)
		}
		p.bytes[v.BlockAt(found.Ref)]++
		for _, f := range then {
			f(v, found.Ref)
		}
		v.Release(found.Ref)
		return
	}
}

// testPoolID names the pools of tests.
const testPoolID kv.PoolID = 7

// pooled returns an engine of dice with blocks of 8 tokens which shares a pool.
func pooled(t testing.TB, m *poolView, change func(*Config)) (*Engine, *blockDice) {
	t.Helper()
	e, b := exchanging(t, 8, change)
	usePool(t, e, m)
	return e, b
}

func usePool(t testing.TB, e *Engine, m *poolView) {
	t.Helper()
	if err := e.UsePool(m, testPoolID, m.worker); err != nil {
		t.Fatal(err)
	}
}

// steppedPooled is pooled with a gate in front of each step.
func steppedPooled(t testing.TB, m *poolView, change func(*Config)) (*Engine, *blockDice, *gate) {
	t.Helper()
	e, b := exchanging(t, 8, change)
	g := closed(e)
	e.computer = exchangeOf{b, g}
	usePool(t, e, m)
	return e, b, g
}

// startGenerating generates in the background. The channel gets the error.
func startGenerating(ctx context.Context, e *Engine, req *engine.Request) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := enginetest.Generate(ctx, e, req)
		ended <- err
	}()
	return ended
}

// stepUntil lets the engine make steps until done.
func (g *gate) stepUntil(done func() bool) {
	for !done() {
		g.Leave <- struct{}{}
		synctest.Wait()
		select {
		case <-g.Enter:
		default:
		}
		synctest.Wait()
	}
}

func expectPool(t *testing.T, e *Engine, when string, want PoolStats) {
	t.Helper()
	synctest.Wait()
	if got := e.PoolStats(); got != want {
		t.Errorf("%s: %+v, want %+v", when, got, want)
	}
}

// expectChoice compares an answer with the answer of an engine alone, and how many tokens of its prompt were cached.
func expectChoice(t *testing.T, ctx context.Context, e *Engine, req *engine.Request, cached int) {
	t.Helper()
	want, got := answerOf(t, req), enginetest.MustGenerate(t, ctx, e, req)
	if got[0].Cached != cached {
		t.Errorf("%d tokens are reported as cached, want %d", got[0].Cached, cached)
	}
	for i := range got {
		got[i].Cached = want[i].Cached
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not the answer of one engine (-want +got):\n%s", diff)
	}
}

// TestPool: what one engine has computed, of prompts and of answers, another one fetches, after what it has itself.
func TestPool(t *testing.T) { synctest.Test(t, testPool) }

func testPool(t *testing.T) {
	p := newMemPool(t, 60)
	first, a := pooled(t, p.attach(t, 1), nil)
	second, b := pooled(t, p.attach(t, 2), nil)
	ctx := enginetest.Start(t, first)
	enginetest.Start(t, second)
	req := greedy(1, 45, 20)
	expectChoice(t, ctx, first, req, 0)
	expectPool(t, first, "of 64 computed tokens", PoolStats{Stored: 8})
	expectComputed(t, a, "at first", 45+19)

	expectChoice(t, ctx, second, req, 40)
	expectComputed(t, b, "of the second", 5+19)
	expectPool(t, second, "the second", PoolStats{Fetched: 5})
	expectChoice(t, ctx, second, req, 40) // by its own cache
	expectPool(t, second, "again", PoolStats{Fetched: 5})
	expectIdle(t, second)

	// A third one goes on with the answer, of which the last block is not full.
	third, c := pooled(t, p.attach(t, 3), nil)
	enginetest.Start(t, third)
	again := greedy(1, 45, 20)
	again.Attempt, again.Generated = 2, [][]kv.Token{answerOf(t, req)[0].Tokens[:13]}
	expectChoice(t, ctx, third, again, 45)
	expectComputed(t, c, "of the third", 58-56+6)
	expectPool(t, third, "the third", PoolStats{Fetched: 7})

	// Another salt is another prefix.
	salted := greedy(1, 45, 2)
	salted.Salt.Namespace = "tenant"
	expectChoice(t, ctx, third, salted, 0)
	synctest.Wait()

	// A prompt which shares 2 blocks with what the engine has, and 3 more with what the pool has.
	fourth, d := pooled(t, p.attach(t, 4), nil)
	enginetest.Start(t, fourth)
	enginetest.MustGenerate(t, ctx, fourth, greedy(1, 17, 1))
	synctest.Wait()
	expectPool(t, fourth, "of the beginning", PoolStats{Fetched: 2})
	enginetest.MustGenerate(t, ctx, fourth, greedy(2, 30, 1))
	expectComputed(t, d, "of the beginning", 1+30)
	p.evict(t, req, 0) // the pool lacks what the engine has
	expectChoice(t, ctx, fourth, req, 40)
	expectPool(t, fourth, "of the rest", PoolStats{Fetched: 5, Stored: 3})
	expectChoice(t, ctx, fourth, salted, 40)
	expectPool(t, fourth, "of another salt", PoolStats{Fetched: 10, Stored: 3})
	for _, e := range []*Engine{first, second, third, fourth} {
		expectIdle(t, e)
	}
	p.check(t)
}

// TestPoolDamaged: a block which is not what was stored is computed, and so are those after it.
func TestPoolDamaged(t *testing.T) { synctest.Test(t, testPoolDamaged) }

func testPoolDamaged(t *testing.T) {
	p := newMemPool(t, 60)
	first, _ := pooled(t, p.attach(t, 1), nil)
	second, b := pooled(t, p.attach(t, 2), nil)
	ctx := enginetest.Start(t, first)
	enginetest.Start(t, second)
	req := greedy(1, 45, 4)
	req.Choices = 2
	expectChoice(t, ctx, first, req, 0)
	synctest.Wait()
	p.damage(t, req, 2)
	expectChoice(t, ctx, second, req, 16)
	expectComputed(t, b, "with a damaged block", 45-16+2*3+5)
	expectPool(t, second, "with a damaged block", PoolStats{Fetched: 2, Damaged: 1, Stored: 1})
	third, b := pooled(t, p.attach(t, 3), nil)
	enginetest.Start(t, third)
	p.damage(t, req, 0)
	expectChoice(t, ctx, third, req, 0)
	expectComputed(t, b, "with a damaged first block", 45+2*3+5)
	expectPool(t, third, "with a damaged first block", PoolStats{Damaged: 1, Stored: 1})
	expectIdle(t, third)
	p.check(t)
}

// TestPoolFull: a pool without room evicts what was used least recently, and an engine without access to it, or whose
// lease has ended, serves as one without a pool.
func TestPoolFull(t *testing.T) { synctest.Test(t, testPoolFull) }

func testPoolFull(t *testing.T) {
	p := newMemPool(t, 6)
	room := uint64(p.attach(t, 0).view.Blocks())
	first, _ := pooled(t, p.attach(t, 1), nil)
	ctx := enginetest.Start(t, first)
	expectChoice(t, ctx, first, greedy(1, 41, 1), 0)
	expectPool(t, first, "at first", PoolStats{Stored: 5})
	expectChoice(t, ctx, first, greedy(2, 41, 1), 0)
	expectPool(t, first, "with more than there is room for", PoolStats{Stored: 10, Evicted: 10 - room})
	none, b := pooled(t, p.attach(t, 0), nil)
	enginetest.Start(t, none)
	expectChoice(t, ctx, none, greedy(2, 41, 1), 0)
	expectPool(t, none, "without access", PoolStats{Dropped: 5})
	expectComputed(t, b, "without access", 41)

	prompt := paged.Sequence{Tokens: greedy(2, 41, 1).Prompt}
	if none.pool.lookUp(ctx, prompt) != nil {
		t.Error("an engine without access looks up blocks")
	}
	ended, end := context.WithCancel(ctx)
	end()
	if first.pool.lookUp(ctx, prompt) == nil || first.pool.lookUp(ended, prompt) != nil {
		t.Error("a request which has ended looks up blocks, or one which has not does not")
	}

	// What was fetched is evicted last to first.
	again, b := pooled(t, p.attach(t, 3), nil)
	enginetest.Start(t, again)
	expectChoice(t, ctx, again, greedy(2, 41, 1), 40)
	enginetest.MustGenerate(t, ctx, again, greedy(3, 9+8*int(room-5), 1))
	expectPool(t, again, "with a new prompt", PoolStats{Fetched: 5, Stored: 1 + room - 5, Evicted: 1 + room - 5})
	last, c := pooled(t, p.attach(t, 4), nil)
	enginetest.Start(t, last)
	expectChoice(t, ctx, last, greedy(2, 41, 1), 32)
	expectComputed(t, b, "of the new prompt", 1+9+8*int(room-5))
	expectComputed(t, c, "of the last block", 9)
	expectPool(t, last, "the last block", PoolStats{Fetched: 4, Stored: 1, Evicted: 1})

	lost := p.attach(t, 2)
	second, b := pooled(t, lost, nil)
	enginetest.Start(t, second)
	looked := 0
	lost.held = func() { // after the look-up
		if looked++; looked == 2 {
			lost.view.Leave()
		}
	}
	expectChoice(t, ctx, second, greedy(2, 41, 1), 0)
	expectComputed(t, b, "with a lease which has ended", 41)
	expectPool(t, second, "with a lease which has ended", PoolStats{Dropped: 5})
	expectIdle(t, second)
	p.check(t)
}

// TestPoolReclaimed: when an older request needs the blocks of one which fetches, nothing is written to them any more.
func TestPoolReclaimed(t *testing.T) { synctest.Test(t, testPoolReclaimed) }

func testPoolReclaimed(t *testing.T) {
	p := newMemPool(t, 60)
	first, _ := pooled(t, p.attach(t, 1), nil)
	ctx := enginetest.Start(t, first)
	older, req := greedy(1, 30, 20), greedy(2, 40, 5)
	expectChoice(t, ctx, first, req, 0)

	view, slow := p.attach(t, 2), make(chan struct{})
	e, _, g := steppedPooled(t, view, func(c *Config) { c.Card.Blocks = 10 })
	var blocked atomic.Bool
	view.held = func() {
		if blocked.Load() {
			<-slow
		}
	}
	enginetest.Start(t, e)
	start := func(req *engine.Request) chan error {
		ended, want, rec := make(chan error, 1), answerOf(t, req), enginetest.NewRecorder(req)
		go func() {
			err := e.Generate(ctx, req, rec.Sink)
			if diff := cmp.Diff(want, rec.Choices); err == nil && diff != "" {
				err = fmt.Errorf("not the answer of one engine (-want +got):\n%s", diff)
			}
			ended <- err
		}()
		return ended
	}
	olderEnded := start(older)
	<-g.Enter
	ended := start(req)
	synctest.Wait() // it has looked up its blocks
	blocked.Store(true)
	g.Leave <- struct{}{}
	<-g.Enter
	synctest.Wait() // it fetches
	g.Leave <- struct{}{}
	g.Open(t)
	if err := <-olderEnded; err != nil {
		t.Error(err)
	}
	if l := e.Load(); l.Preemptions == 0 {
		t.Error("the test tested nothing: no blocks were reclaimed")
	}
	close(slow)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	synctest.Wait()
	if s := e.PoolStats(); s.Fetched != 0 {
		t.Errorf("%+v", s)
	}
	expectIdle(t, e)
	p.check(t)
}

// TestPoolBehind: a slow pool holds up no batch. What waits is bounded, and a block which is evicted meanwhile is not
// copied.
func TestPoolBehind(t *testing.T) { synctest.Test(t, testPoolBehind) }

func testPoolBehind(t *testing.T) {
	p := newMemPool(t, 60)
	slow, uses, gate := p.attach(t, 1), 0, make(chan struct{})
	e, b := pooled(t, slow, func(c *Config) { c.Card.Blocks = 12 })
	e.pool.jobs = make(chan *storeJob, 9)
	ctx := enginetest.Start(t, e)
	var mu sync.Mutex
	slow.held = func() {
		mu.Lock()
		uses++
		n := uses
		mu.Unlock()
		if n > 1 { // the first one is the look-up of a request
			<-gate
		}
	}
	serve := func(req *engine.Request) {
		mu.Lock()
		uses = 0
		mu.Unlock()
		expectChoice(t, ctx, e, req, 0)
	}
	serve(greedy(1, 9, 1))
	expectPool(t, e, "with one which is being copied", PoolStats{})
	serve(greedy(2, 80, 1))
	expectPool(t, e, "with nine which wait", PoolStats{Dropped: 1})
	serve(greedy(3, 90, 1)) // it evicts those, and has no room for its own
	expectPool(t, e, "with evicted ones", PoolStats{Dropped: 1 + 11})
	close(gate)
	expectPool(t, e, "after all", PoolStats{Dropped: 1 + 11 + 1 + 9}) // all were evicted
	expectComputed(t, b, "of all", 9+80+90)
	p.check(t)
	enginetest.MustGenerate(t, ctx, e, greedy(4, 20, 1))
	expectPool(t, e, "of another", PoolStats{Dropped: 22, Stored: 2})
	p.check(t)
}

// TestPoolStorm: engines with few blocks, which share a pool with few blocks that is damaged now and then, give the
// answers of an engine alone to requests which end in all ways. The computer refuses blocks which are not of the prefix.
func TestPoolStorm(t *testing.T) {
	var all PoolStats
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			all.Add(stormPool(t, seed))
		})
	}
	if all.Stored < 200 || all.Fetched < 20 || all.Damaged < 5 || all.Evicted < 100 {
		t.Errorf("the test tested little: %+v", all)
	}
}

func stormPool(t *testing.T, seed uint64) (sum PoolStats) {
	p := newMemPool(t, 24)
	var engines []*Engine
	var ctx context.Context
	for id := range 3 {
		e, _ := pooled(t, p.attach(t, kv.WorkerID(1+id)), func(c *Config) { c.Card.Blocks, c.MaxSeqs, c.TokenBudget = 26, 6, 24 })
		engines, ctx = append(engines, e), enginetest.Start(t, e)
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	var sent sync.WaitGroup
	for i := range 60 {
		family := rng.IntN(4)
		req := greedy(family, 20+rng.IntN(100), 1+rng.IntN(20))
		if rng.IntN(2) > 0 {
			req.Prompt[len(req.Prompt)*2/3] = kv.Token(rng.IntN(vocab))
		}
		req.ID, req.Choices = fmt.Sprint("request-", i), 1+rng.IntN(2)
		want := answerOf(t, req)
		e, after := engines[rng.IntN(len(engines))], rng.IntN(40)
		sent.Go(func() {
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			deltas, rec := 0, enginetest.NewRecorder(req)
			err := e.Generate(ctx, req, func(d *engine.Delta) error {
				if deltas++; deltas > after {
					stop()
				}
				return rec.Sink(d)
			})
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.Errorf("seed %d, request %d: %v", seed, i, err)
				return
			}
			for c := range rec.Choices {
				rec.Choices[c].Cached = want[c].Cached
			}
			if diff := cmp.Diff(want, rec.Choices); diff != "" {
				t.Errorf("seed %d, request %d: not the answer of one engine (-want +got):\n%s", seed, i, diff)
			}
		})
		if i%6 == 0 {
			synctest.Wait()
			for at := len(p.bytes) - 24*64; at < len(p.bytes); at += 64 {
				p.bytes[at]++ // of a block
			}
		}
	}
	sent.Wait()
	synctest.Wait()
	for _, e := range engines {
		expectIdle(t, e)
		sum.Add(e.PoolStats())
	}
	p.checkUnheld(t)
	return sum
}

// TestPoolQueue: a long request with one block in the pool keeps its place in the queue, though short ones always arrive
// which fit beside the running ones.
func TestPoolQueue(t *testing.T) { synctest.Test(t, testPoolQueue) }

func testPoolQueue(t *testing.T) {
	p := newMemPool(t, 60)
	first, _ := pooled(t, p.attach(t, 1), nil)
	ctx := enginetest.Start(t, first)
	enginetest.MustGenerate(t, ctx, first, greedy(1, 9, 1))
	expectPool(t, first, "of one block", PoolStats{Stored: 1})
	e, _, g := steppedPooled(t, p.attach(t, 2), func(c *Config) { c.Card.Blocks = 10 })
	enginetest.Start(t, e)

	var sent sync.WaitGroup
	start := func(n int) {
		sent.Go(func() {
			if _, err := enginetest.Generate(ctx, e, greedy(100+n, 9, 4)); err != nil {
				t.Error(err)
			}
		})
	}
	start(0)
	<-g.Enter
	long, ended := greedy(1, 71, 1), make(chan []enginetest.Choice, 1)
	for n := 1; len(ended) == 0; n++ {
		if n > 60 {
			t.Error("the long request was not served in 60 steps")
			break
		}
		start(n)
		synctest.Wait() // it is in the inbox
		if n == 4 {     // as many run as ever will
			sent.Go(func() {
				got, err := enginetest.Generate(ctx, e, long)
				if err != nil {
					t.Error(err)
				}
				ended <- got
			})
			synctest.Wait()
		}
		g.Leave <- struct{}{}
		<-g.Enter
		synctest.Wait()
	}
	g.Leave <- struct{}{}
	g.Open(t)
	sent.Wait()
	want := answerOf(t, long)
	want[0].Cached = 8
	if diff := cmp.Diff(want, <-ended); diff != "" {
		t.Errorf("not the answer of one engine (-want +got):\n%s", diff)
	}
	expectIdle(t, e)
	p.check(t)
}

// TestPoolPending: what is known of copies is bounded, also while no block is evicted.
func TestPoolPending(t *testing.T) { synctest.Test(t, testPoolPending) }

func testPoolPending(t *testing.T) {
	p := newMemPool(t, 60)
	e, _ := pooled(t, p.attach(t, 1), nil)
	e.pool.jobs = make(chan *storeJob, 8)
	ctx := enginetest.Start(t, e)
	for seed := range 8 {
		enginetest.MustGenerate(t, ctx, e, greedy(seed, 49, 1))
		synctest.Wait()
	}
	if n := len(e.pool.pending); n > 16 {
		t.Errorf("%d copies are pending, and none waits", n)
	}
	if s := e.PoolStats(); s.Stored != 48 {
		t.Errorf("%+v", s)
	}
}
