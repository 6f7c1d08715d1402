package batch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// blockDice is a computer of dice whose KV cache has the tokens themselves. It computes nothing after tokens which are not
// those of the request.
type blockDice struct {
	Computer
	layout engine.KVLayout
	write  func() // called by WriteTokens before it writes; nil is nothing
	mu     struct {
		sync.Mutex
		slots    []kv.Token // of all blocks
		computed int        // tokens
	}
}

// exchanging returns an engine of dice which exchanges blocks of a size.
func exchanging(t testing.TB, size int, change func(*Config)) (*Engine, *blockDice) {
	e := small(t, func(c *Config) {
		c.Card.BlockSize, c.Card.Blocks = size, 480/size
		if change != nil {
			change(c)
		}
	})
	return e, exchange(e)
}

// exchange makes e exchange blocks.
func exchange(e *Engine) *blockDice {
	size := e.cfg.Card.BlockSize
	b := &blockDice{Computer: e.computer, layout: engine.KVLayout{BlockSize: size, BlockBytes: 4 * size, Type: media.Float32, Order: "tokens", Numerics: "dice"}}
	b.mu.slots = make([]kv.Token, e.cfg.Card.Blocks*size)
	e.computer = b
	return b
}

func (b *blockDice) slot(blocks []int32, p int) *kv.Token {
	size := b.layout.BlockSize
	return &b.mu.slots[int(blocks[p/size])*size+p%size]
}

func (b *blockDice) ComputeBatch(ctx context.Context, batch *Batch) error {
	if err := b.computeTokens(batch); err != nil {
		return err
	}
	return b.Computer.ComputeBatch(ctx, batch)
}

func (b *blockDice) computeTokens(batch *Batch) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range batch.Plan.Work {
		req := batch.States[i].(*die).req
		for p := range min(w.Start, len(req.Prompt)) {
			if got := *b.slot(w.Blocks, p); got != req.Prompt[p]+1 {
				return fmt.Errorf("sequence %d: position %d has %d, want %d", w.ID, p, got, req.Prompt[p]+1)
			}
		}
		for k, token := range w.Tokens {
			*b.slot(w.Blocks, w.Start+k) = token + 1
		}
		b.mu.computed += len(w.Tokens)
	}
	return nil
}

func (b *blockDice) BlockLayout() engine.KVLayout { return b.layout }

func (b *blockDice) ReadBlocks(ctx context.Context, dst []byte, blocks []int32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range len(blocks) * b.layout.BlockSize {
		binary.LittleEndian.PutUint32(dst[4*p:], uint32(*b.slot(blocks, p)))
	}
	return ctx.Err()
}

func (b *blockDice) WriteTokens(blocks []int32, start, end int, data *engine.BlockData) error {
	if b.write != nil {
		b.write()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := start; p < end; p++ {
		*b.slot(blocks, p) = kv.Token(binary.LittleEndian.Uint32(data.Bytes[4*(p-data.First*data.Layout.BlockSize):]))
	}
	return nil
}

// blocksOf returns the blocks of a prompt as another engine of dice has computed them.
func blocksOf(prompt []kv.Token, size int) *engine.BlockData {
	b := &engine.BlockData{Layout: engine.KVLayout{BlockSize: size, BlockBytes: 4 * size, Type: media.Float32, Order: "tokens", Numerics: "dice"}}
	for p := range (len(prompt) + size - 1) / size * size {
		token := kv.Token(0)
		if p < len(prompt) {
			token = prompt[p] + 1
		}
		b.Bytes = binary.LittleEndian.AppendUint32(b.Bytes, uint32(token))
	}
	return b
}

// importing is a request which imports its prompt, and what became of it.
type importing struct {
	imp  engine.BlockImport
	stop context.CancelFunc
	rec  *enginetest.Recorder
	mu   struct {
		sync.Mutex
		events []string
		ended  bool
		err    error
	}
}

func (g *importing) note(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.events = append(g.mu.events, fmt.Sprintf(format, args...))
}

func (g *importing) BlocksReserved(held int) { g.note("reserved, %d held", held) }
func (g *importing) BlocksReclaimed()        { g.note("reclaimed") }

// expect waits until nothing happens, and compares what has happened since the last call.
func (g *importing) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.mu.events, want) {
		t.Errorf("%s: %q, want %q", when, g.mu.events, want)
	}
	g.mu.events = nil
}

func startImport(t *testing.T, ctx context.Context, e *Engine, req *engine.Request) *importing {
	t.Helper()
	g := &importing{rec: enginetest.NewRecorder(req)}
	imp, err := e.OpenImport(req, g)
	if err != nil {
		t.Fatal(err)
	}
	g.imp = imp
	ctx, g.stop = context.WithCancel(ctx)
	go func() {
		err := imp.Generate(ctx, g.rec.Sink)
		g.mu.Lock()
		g.mu.ended, g.mu.err = true, err
		g.mu.Unlock()
	}()
	t.Cleanup(g.stop)
	return g
}

// expectAnswer waits for the end, and compares the answer with one of an engine alone.
func (g *importing) expectAnswer(t *testing.T, when string, want []enginetest.Choice, cached int) {
	t.Helper()
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mu.ended || g.mu.err != nil {
		t.Errorf("%s: ended %v: %v", when, g.mu.ended, g.mu.err)
		return
	}
	got := slices.Clone(g.rec.Choices)
	if got[0].Cached != cached {
		t.Errorf("%s: %d tokens are reported as cached, want %d", when, got[0].Cached, cached)
	}
	got[0].Cached = want[0].Cached
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: not the answer of one engine (-want +got):\n%s", when, diff)
	}
}

// answerOf is the answer of an engine which imports nothing.
func answerOf(t *testing.T, req *engine.Request) []enginetest.Choice {
	e := small(t, nil)
	return enginetest.MustGenerate(t, enginetest.Start(t, e), e, req)
}

func expectComputed(t *testing.T, b *blockDice, when string, want int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.computed != want {
		t.Errorf("%s: %d tokens are computed, want %d", when, b.mu.computed, want)
	}
	b.mu.computed = 0
}

// TestImport: blocks which another engine has computed, of any size, count as computed. What they bring is neither
// computed nor counted as cached, and later requests find it.
func TestImport(t *testing.T) {
	for _, from := range []int{4, 8, 16} {
		t.Run(fmt.Sprint(from), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testImport(t, from) })
		})
	}
}

func testImport(t *testing.T, from int) {
	req := greedy(1, 45, 5)
	want := answerOf(t, req)
	e, b := exchanging(t, 8, nil)
	ctx := enginetest.Start(t, e)
	g := startImport(t, ctx, e, req)
	g.expect(t, "at first", "reserved, 0 held")
	enginetest.MustGenerate(t, ctx, e, greedy(2, 20, 3)) // others go on
	expectComputed(t, b, "of the other", 22)
	if l := e.Load(); l.UsedBlocks != 6 || l.Encoding != 1 || l.PrefillTokens != 5 {
		t.Errorf("the load is %+v", l)
	}
	if err := g.imp.ImportBlocks(ctx, blocksOf(req.Prompt, from), 12); err != nil {
		t.Fatal(err)
	}
	g.expectAnswer(t, "imported", want, 12)
	expectComputed(t, b, "of the imported one", 5+4)
	if n, err := e.CountCached(ctx, req); n != 40 || err != nil {
		t.Errorf("%d tokens are cached, want 40: %v", n, err)
	}

	// A prompt which shares 32 tokens.
	next := greedy(1, 45, 5)
	next.Prompt[35]++
	want = answerOf(t, next)
	g = startImport(t, ctx, e, next)
	g.expect(t, "with hits", "reserved, 32 held")
	data := blocksOf(next.Prompt, from)
	data.First = 32 / from
	data.Bytes = data.Bytes[4*32 : 4*48/from*from]
	if err := g.imp.ImportBlocks(ctx, data, 0); err != nil {
		t.Fatal(err)
	}
	g.expectAnswer(t, "with hits", want, 32)
	expectComputed(t, b, "of the one with hits", 5+4)

	// All is there: nothing can be imported.
	g = startImport(t, ctx, e, next)
	g.expectAnswer(t, "with all blocks", want, 40)
	g.expect(t, "with all blocks", "reserved, 40 held")
	short := startImport(t, ctx, e, greedy(3, 8, 2))
	short.expectAnswer(t, "a short prompt", answerOf(t, greedy(3, 8, 2)), 0)
	short.expect(t, "a short prompt", "reserved, 0 held")
	expectIdle(t, e)
}

func expectIdle(t *testing.T, e *Engine) {
	t.Helper()
	synctest.Wait()
	if l := e.Load(); l.Running+l.Waiting+l.UsedBlocks != 0 {
		t.Errorf("at the end: %+v", l)
	}
}

// TestImportRefused: blocks which do not fit change nothing. Without blocks the engine computes the prompt, in what it has
// reserved, and blocks which come later are refused.
func TestImportRefused(t *testing.T) { synctest.Test(t, testImportRefused) }

func testImportRefused(t *testing.T) {
	req := greedy(1, 45, 5)
	want := answerOf(t, req)
	e, b := exchanging(t, 8, nil)
	ctx := enginetest.Start(t, e)
	g := startImport(t, ctx, e, req)
	g.expect(t, "at first", "reserved, 0 held")
	other := blocksOf(req.Prompt, 8)
	other.Layout.Numerics = "others"
	short := blocksOf(req.Prompt, 8)
	short.Bytes = short.Bytes[:4*32]
	for _, test := range []struct {
		data *engine.BlockData
		want fault.Code
	}{{other, fault.Conflict}, {short, fault.Invalid}} {
		if err := g.imp.ImportBlocks(ctx, test.data, 0); fault.CodeOf(err) != test.want {
			t.Errorf("%v, want %v", err, test.want)
		}
	}
	expectComputed(t, b, "of refused blocks", 0)
	g.imp.PrefillLocal()
	g.imp.PrefillLocal()
	g.expectAnswer(t, "local", want, 0)
	expectComputed(t, b, "locally", 45+4)
	if err := g.imp.ImportBlocks(ctx, blocksOf(req.Prompt, 8), 0); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("after the end: %v", err)
	}

	// Before the engine has the request.
	again := greedy(4, 45, 5)
	early := &importing{rec: enginetest.NewRecorder(again)}
	imp, err := e.OpenImport(again, early)
	if err != nil {
		t.Fatal(err)
	}
	imp.PrefillLocal()
	synctest.Wait()
	if err := imp.ImportBlocks(ctx, blocksOf(again.Prompt, 8), 0); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("before the start: %v", err)
	}
	if err := imp.Generate(ctx, early.rec.Sink); err != nil {
		t.Error(err)
	}
	early.expect(t, "local from the beginning")
	expectIdle(t, e)

	plain := small(t, nil)
	if _, err := plain.OpenImport(req, g); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("an engine without blocks: %v", err)
	}
	if err := plain.PrefillBlocks(ctx, req, nil); fault.CodeOf(err) != fault.Unimplemented || plain.BlockLayout() != (engine.KVLayout{}) {
		t.Errorf("an engine without blocks: %v", err)
	}
}

// TestImportReplaced: an import which has written its blocks does not end the fetch which has taken its place meanwhile.
func TestImportReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		req := greedy(1, 45, 5)
		want := answerOf(t, req)
		e, b := exchanging(t, 8, nil)
		ctx := enginetest.Start(t, e)
		g := startImport(t, ctx, e, req)
		g.expect(t, "at first", "reserved, 0 held")
		if err := e.callLoop(ctx, func(l *loop) error {
			c, imp := l.onlyChoice(t)
			c.request.imp = newImport(e, req, nil)
			c.request.imp.lead = c
			err := l.finishImport(imp, 0)
			c.request.imp = imp
			return err
		}); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("of another import: %v", err)
		}
		g.importAfter(t, ctx, req, 0)
		g.expectAnswer(t, "after all", want, 0)
		expectComputed(t, b, "after all", 5+4)
		expectIdle(t, e)
	})
}

// TestImportReclaimed: when an older request needs the blocks, the watcher knows before anything is computed in them. The
// prompt is computed here later, and blocks which come are refused.
func TestImportReclaimed(t *testing.T) { synctest.Test(t, testImportReclaimed) }

func testImportReclaimed(t *testing.T) {
	older, req := greedy(1, 30, 20), greedy(2, 40, 5)
	wantOlder, want := answerOf(t, older), answerOf(t, req)
	e, b := exchanging(t, 8, func(c *Config) { c.Card.Blocks = 10 })
	var g *importing
	e.computer = planWatch{b, func(p *paged.Step) {
		if len(p.Preempted) > 0 {
			g.note("preempted")
		}
	}}
	ctx := enginetest.Start(t, e)
	g = startImport(t, ctx, e, older)
	g.expect(t, "the older one", "reserved, 0 held")
	first := g
	g = startImport(t, ctx, e, req)
	g.expect(t, "at first", "reserved, 0 held")
	first.imp.PrefillLocal()
	first.expectAnswer(t, "the older one", wantOlder, 0)
	g.expectAnswer(t, "the other", want, 0)
	g.expect(t, "while the older one grows", "reclaimed", "preempted")
	if err := g.imp.ImportBlocks(ctx, blocksOf(req.Prompt, 8), 0); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("after that: %v", err)
	}
	expectIdle(t, e)
}

// TestImportBesideBatches: blocks are written while a batch is computed. A plan which takes them away is not computed before
// the write ends.
func TestImportBesideBatches(t *testing.T) { synctest.Test(t, testImportBesideBatches) }

func testImportBesideBatches(t *testing.T) {
	req := greedy(2, 40, 5)
	want := answerOf(t, req)
	e, b := exchanging(t, 8, nil)
	g := closed(e)
	e.computer = exchangeOf{b, g}
	writes := 0
	b.write = func() { writes++ }
	ctx := enginetest.Start(t, e)
	imp := startImport(t, ctx, e, req)
	imp.expect(t, "at first", "reserved, 0 held")
	other := startImport(t, ctx, e, greedy(3, 20, 2))
	other.imp.PrefillLocal()
	<-g.Enter // in a batch
	imported := make(chan error, 1)
	go func() { imported <- imp.imp.ImportBlocks(ctx, blocksOf(req.Prompt, 8), 0) }()
	synctest.Wait()
	if writes != 1 || len(imported) > 0 {
		t.Errorf("%d writes during a batch, and the import has ended: %v", writes, len(imported) > 0)
	}
	g.Leave <- struct{}{}
	g.Open(t)
	if err := <-imported; err != nil {
		t.Error(err)
	}
	imp.expectAnswer(t, "imported", want, 0)

	// The older one grows while the other's blocks are written.
	older := greedy(1, 30, 20)
	wantOlder := answerOf(t, older)
	e, b = exchanging(t, 8, func(c *Config) { c.Card.Blocks = 10 })
	written := false
	e.computer = planWatch{b, func(p *paged.Step) {
		if len(p.Preempted) > 0 && !written {
			t.Error("the plan is computed while blocks are written which it has given away")
		}
	}}
	ctx = enginetest.Start(t, e)
	first := startImport(t, ctx, e, older)
	first.expect(t, "the older one", "reserved, 0 held")
	imp = startImport(t, ctx, e, req)
	imp.expect(t, "the other", "reserved, 0 held")
	b.write = func() {
		time.Sleep(time.Second)
		written = true
	}
	go func() { imported <- imp.imp.ImportBlocks(ctx, blocksOf(req.Prompt, 8), 0) }()
	synctest.Wait()
	first.imp.PrefillLocal()
	if err := <-imported; fault.CodeOf(err) != fault.Conflict {
		t.Errorf("its blocks were taken away: %v", err)
	}
	first.expectAnswer(t, "the older one", wantOlder, 0)
	imp.expectAnswer(t, "the other", want, 0)
	imp.expect(t, "the other", "reclaimed")
	expectIdle(t, e)

	// A request ends while its blocks are written.
	written = false
	imp = startImport(t, ctx, e, greedy(4, 40, 5))
	imp.expect(t, "at first", "reserved, 0 held")
	go func() { imported <- imp.imp.ImportBlocks(ctx, blocksOf(greedy(4, 40, 5).Prompt, 8), 0) }()
	synctest.Wait()
	imp.stop()
	synctest.Wait()
	if e.Load().UsedBlocks == 0 && !written {
		t.Error("blocks are free while they are written")
	}
	if err := <-imported; fault.CodeOf(err) != fault.Conflict {
		t.Errorf("the request has ended: %v", err)
	}
	expectIdle(t, e)
}

// planWatch shows each plan before it is computed.
type planWatch struct {
	*blockDice
	watch func(*paged.Step)
}

func (w planWatch) ComputeBatch(ctx context.Context, b *Batch) error {
	w.watch(b.Plan)
	return w.blockDice.ComputeBatch(ctx, b)
}

// exchangeOf is a gate before a computer with blocks.
type exchangeOf struct {
	*blockDice
	gate *gate
}

func (x exchangeOf) ComputeBatch(ctx context.Context, b *Batch) error {
	return x.gate.ComputeBatch(ctx, b)
}

// TestImportCancelled: the end of a request frees what is reserved, and so does that of the engine.
func TestImportCancelled(t *testing.T) { synctest.Test(t, testImportCancelled) }

func testImportCancelled(t *testing.T) {
	e, _ := exchanging(t, 8, nil)
	ctx := enginetest.Start(t, e)
	g := startImport(t, ctx, e, greedy(1, 45, 5))
	g.expect(t, "at first", "reserved, 0 held")
	g.stop()
	expectIdle(t, e)
	if err := g.imp.ImportBlocks(ctx, blocksOf(greedy(1, 45, 5).Prompt, 8), 0); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("after the end: %v", err)
	}

	run, stop := context.WithCancel(t.Context())
	last, _ := exchanging(t, 8, nil)
	ended := make(chan error, 1)
	go func() { ended <- last.Run(run) }()
	g = startImport(t, ctx, last, greedy(1, 45, 5))
	g.expect(t, "at first", "reserved, 0 held")
	stop()
	synctest.Wait()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if g.mu.err == nil || fault.CodeOf(g.mu.err) != fault.Unavailable {
		t.Errorf("the engine has stopped: %v", g.mu.err)
	}
	g.imp.PrefillLocal()
	if err := g.imp.ImportBlocks(ctx, blocksOf(greedy(1, 45, 5).Prompt, 8), 0); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("the engine has stopped: %v", err)
	}
	if _, err := last.CountCached(ctx, greedy(1, 45, 5)); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("the engine has stopped: %v", err)
	}
}

// TestCallBeforeRun: a call waits for the loop, or for the end of its context or of the engine.
func TestCallBeforeRun(t *testing.T) { synctest.Test(t, testCallBeforeRun) }

func testCallBeforeRun(t *testing.T) {
	e, _ := exchanging(t, 8, nil)
	ctx, stop := context.WithCancel(t.Context())
	got := make(chan error, 2)
	go func() {
		_, err := e.CountCached(ctx, greedy(1, 45, 5))
		got <- err
	}()
	synctest.Wait()
	stop()
	if err := <-got; !errors.Is(err, context.Canceled) || len(e.mu.calls) != 0 {
		t.Errorf("%v, %d calls wait", err, len(e.mu.calls))
	}
	go func() {
		_, err := e.CountCached(t.Context(), greedy(1, 45, 5))
		got <- err
	}()
	synctest.Wait()
	enginetest.Start(t, e)
	if err := <-got; err != nil {
		t.Error(err)
	}

	// One which waits when the engine stops.
	last, b := exchanging(t, 8, nil)
	g := closed(last)
	last.computer = exchangeOf{b, g}
	run, stop := context.WithCancel(t.Context())
	go func() { got <- last.Run(run) }()
	go func() {
		got <- last.Generate(t.Context(), greedy(1, 20, 2), enginetest.NewRecorder(greedy(1, 20, 2)).Sink)
	}()
	<-g.Enter
	go func() {
		_, err := last.CountCached(t.Context(), greedy(1, 45, 5))
		got <- err
	}()
	synctest.Wait()
	stop()
	g.Leave <- struct{}{}
	unavailable := 0
	for range 3 {
		if err := <-got; fault.CodeOf(err) == fault.Unavailable {
			unavailable++
		} else if err != nil {
			t.Error(err)
		}
	}
	if unavailable != 2 {
		t.Errorf("%d calls say that the engine has stopped, want 2", unavailable)
	}
}

// TestPrefillBlocks: the blocks of a prompt stay as they are until use returns, whatever is computed meanwhile, and are
// released then, once. They stay cached.
func TestPrefillBlocks(t *testing.T) { synctest.Test(t, testPrefillBlocks) }

func testPrefillBlocks(t *testing.T) {
	e, b := exchanging(t, 8, func(c *Config) { c.Card.Blocks = 12 })
	ctx := enginetest.Start(t, e)
	req := greedy(1, 45, 5)
	req.Generated = [][]kv.Token{{1, 2, 3}}
	all := slices.Concat(req.Prompt, req.Generated[0])
	used := errors.New("used")
	err := e.PrefillBlocks(ctx, req, func(h engine.HeldBlocks) error {
		expectComputed(t, b, "of the prompt", 48)
		for i := range 4 { // they need all other blocks
			enginetest.MustGenerate(t, ctx, e, greedy(10+i, 40, 6))
		}
		if l := e.Load(); l.UsedBlocks != 6 || l.Running+l.Waiting != 0 {
			t.Errorf("the load is %+v", l)
		}
		data := blocksOf(all, 8)
		got := make([]byte, 4*8*5)
		if err := h.ReadBlocks(ctx, got, 1, 6); err != nil || !slices.Equal(got, data.Bytes[4*8:]) || h.Cached() != 0 {
			t.Errorf("%v, %d cached: the blocks are %v, want %v", err, h.Cached(), got, data.Bytes)
		}
		for _, wrong := range [][3]int{{-1, 1, 2}, {0, 7, 7}, {2, 1, 0}, {0, 1, 2}} {
			if err := h.ReadBlocks(ctx, make([]byte, 32*wrong[2]), wrong[0], wrong[1]); fault.CodeOf(err) != fault.Invalid {
				t.Errorf("%v: %v", wrong, err)
			}
		}
		return used
	})
	if err != used {
		t.Errorf("the error is %v, want that of use", err)
	}
	expectIdle(t, e)
	err = e.PrefillBlocks(ctx, req, func(h engine.HeldBlocks) error {
		if h.Cached() != 40 {
			t.Errorf("%d tokens are cached, want 40", h.Cached())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	req.Done = []bool{true}
	if err := e.PrefillBlocks(ctx, req, nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("nothing to compute: %v", err)
	}
	expectIdle(t, e)
}

// TestHeldBlocksAreNotPreempted: requests which need the blocks wait until they are released.
func TestHeldBlocksAreNotPreempted(t *testing.T) { synctest.Test(t, testHeldBlocksAreNotPreempted) }

func testHeldBlocksAreNotPreempted(t *testing.T) {
	e, _ := exchanging(t, 8, func(c *Config) { c.Card.Blocks = 8 })
	ctx := enginetest.Start(t, e)
	req, other := greedy(1, 45, 5), greedy(2, 14, 20)
	want := answerOf(t, other)
	var g *importing
	err := e.PrefillBlocks(ctx, req, func(h engine.HeldBlocks) error {
		g = startImport(t, ctx, e, other)
		g.imp.PrefillLocal()
		synctest.Wait() // it has 2 blocks, and waits for a third
		if l := e.Load(); l.UsedBlocks != 6 || l.Waiting != 1 || l.Running != 0 || l.Preemptions == 0 {
			t.Errorf("the load is %+v", l)
		}
		got := make([]byte, 4*8*6)
		if err := h.ReadBlocks(ctx, got, 0, 6); err != nil || !slices.Equal(got[:4*45], blocksOf(req.Prompt, 8).Bytes[:4*45]) {
			t.Errorf("%v: the blocks are %v", err, got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	g.expectAnswer(t, "the other", want, 0)
	expectIdle(t, e)
}

// TestPrefillBlocksEnds: a context which ends, before or while blocks are held, releases them, and so does a batch which
// fails.
func TestPrefillBlocksEnds(t *testing.T) { synctest.Test(t, testPrefillBlocksEnds) }

func testPrefillBlocksEnds(t *testing.T) {
	e, b := exchanging(t, 8, nil)
	g := closed(e)
	e.computer = exchangeOf{b, g}
	ctx := enginetest.Start(t, e)
	short, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- e.PrefillBlocks(short, greedy(1, 45, 5), func(engine.HeldBlocks) error { return errors.New("used") })
	}()
	synctest.Wait()
	stop()
	gateOnce(t, g)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("in the batch: %v", err)
	}
	expectIdle(t, e)

	short, stop = context.WithCancel(ctx)
	go func() {
		ended <- e.PrefillBlocks(short, greedy(1, 45, 5), func(engine.HeldBlocks) error {
			<-short.Done()
			return short.Err()
		})
	}()
	gateOnce(t, g)
	if l := e.Load(); l.UsedBlocks != 6 {
		t.Errorf("the load is %+v", l)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("held: %v", err)
	}
	expectIdle(t, e)
}

func gateOnce(t *testing.T, g *gate) {
	t.Helper()
	<-g.Enter
	g.Leave <- struct{}{}
	synctest.Wait()
}

// TestImportWithMedia: media whose tokens are imported are not encoded. They are, if the prompt is computed here after
// all, and the request is accepted then.
func TestImportWithMedia(t *testing.T) { synctest.Test(t, testImportWithMedia) }

func testImportWithMedia(t *testing.T) {
	plain := small(t, nil)
	plainCtx := enginetest.Start(t, plain)
	req := showing(greedy(1, 40, 5), 4, 20)
	want := enginetest.MustGenerate(t, plainCtx, plain, req)

	e, m := mediaEngine(t, nil)
	exchangeMedia(e, m)
	ctx := enginetest.Start(t, e)
	g := startImport(t, ctx, e, req)
	g.expect(t, "at first", "reserved, 0 held")
	if err := g.imp.ImportBlocks(ctx, blocksOf(req.Prompt, 4), 0); err != nil {
		t.Fatal(err)
	}
	g.expectAnswer(t, "imported", want, 0)
	m.mu.Lock()
	if asked := m.mu.asked[1]; len(asked) != 2 || slices.Min(asked) != 36 {
		t.Errorf("media are encoded with %v tokens ready, want 36 twice", asked)
	}
	m.mu.Unlock()

	req = showing(greedy(2, 40, 5), 4, 20)
	want = enginetest.MustGenerate(t, plainCtx, plain, req)
	g = startImport(t, ctx, e, req)
	g.expect(t, "at first", "reserved, 0 held")
	g.imp.PrefillLocal()
	synctest.Wait()
	m.mu.Lock()
	if asked := m.mu.asked[2]; len(asked) != 3 || asked[2] != 0 {
		t.Errorf("media are encoded with %v tokens ready, want none at last", asked)
	}
	m.mu.Unlock()
	if g.rec.Accepted {
		t.Error("it is accepted before its media are encoded")
	}
	m.encode(paged.RangeID{Seq: 2, Index: 0}, paged.RangeID{Seq: 2, Index: 1})
	g.expectAnswer(t, "local", want, 0)
	expectIdle(t, e)
}

// exchangeMedia makes an engine of media exchange blocks.
func exchangeMedia(e *Engine, m *mediaDice) { e.computer = mediaExchange{m, exchange(e)} }

type mediaExchange struct {
	MediaComputer
	*blockDice
}

func (x mediaExchange) ComputeBatch(ctx context.Context, b *Batch) error {
	return x.blockDice.ComputeBatch(ctx, b)
}

func (x mediaExchange) StartRequest(ctx context.Context, req *engine.Request, stops []kv.Token) ([]State, error) {
	return x.blockDice.StartRequest(ctx, req, stops)
}
