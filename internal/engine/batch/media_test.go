package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// mediaDice is a computer of dice which encodes media beside its batches, as the test says.
type mediaDice struct {
	dice
	wake func()
	mu   struct {
		sync.Mutex
		asked   map[paged.SeqID][]int // ready tokens of each StartEncoding
		stopped []paged.SeqID
		done    []paged.RangeID
		rows    map[int]bool // starts of ranges which are encoded at once
		wrong   error        // work which could not be computed
	}
	finished map[paged.RangeID]bool // owned by the loop
	gate     *enginetest.Gate       // of computations; nil is open
}

func mediaEngine(t *testing.T, change func(*Config)) (*Engine, *mediaDice) {
	e := small(t, change)
	m := &mediaDice{wake: e.Wake, finished: map[paged.RangeID]bool{}}
	m.mu.asked, m.mu.rows = map[paged.SeqID][]int{}, map[int]bool{}
	e.computer = m
	return e, m
}

func (m *mediaDice) UnfinishedRanges(s State) (all []paged.TokenRange) {
	for _, x := range s.(*die).req.Media {
		all = append(all, paged.TokenRange{Start: x.Start, End: x.End})
	}
	return all
}

func (m *mediaDice) StartEncoding(id paged.SeqID, s State, ready int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.asked[id] = append(m.mu.asked[id], ready)
	for i, x := range s.(*die).req.Media {
		if x.End > ready && m.mu.rows[x.Start] {
			m.mu.done = append(m.mu.done, paged.RangeID{Seq: id, Index: i})
		}
	}
}

func (m *mediaDice) StopEncoding(id paged.SeqID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.stopped = append(m.mu.stopped, id)
}

func (m *mediaDice) AppendEncoded(dst []paged.RangeID) []paged.RangeID {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.mu.done {
		m.finished[r] = true
	}
	dst, m.mu.done = append(dst, m.mu.done...), nil
	return dst
}

// ComputeBatch fails for tokens of a range which was not finished.
func (m *mediaDice) ComputeBatch(ctx context.Context, b *Batch) error {
	if m.gate != nil {
		m.gate.AwaitLeave()
	}
	for i, w := range b.Plan.Work {
		for k, r := range m.UnfinishedRanges(b.States[i]) {
			if r.Start < w.Start+len(w.Tokens) && r.End > w.Start && !m.finished[paged.RangeID{Seq: w.ID, Index: k}] {
				return fmt.Errorf("sequence %d: tokens %d+%d are not encoded", w.ID, w.Start, len(w.Tokens))
			}
		}
	}
	return m.dice.ComputeBatch(ctx, b)
}

// encode finishes ranges.
func (m *mediaDice) encode(all ...paged.RangeID) {
	m.mu.Lock()
	m.mu.done = append(m.mu.done, all...)
	m.mu.Unlock()
	m.wake()
}

// showing adds media to a request, each of 8 tokens from its start on.
func showing(req *engine.Request, starts ...int) *engine.Request {
	for _, at := range starts {
		req.Media = append(req.Media, kv.Media{Hash: uint64(len(req.Prompt)), Start: at, End: at + 8})
	}
	return req
}

func expectLoad(t *testing.T, e *Engine, when string, running, waiting, encoding, ready, active, used int) {
	t.Helper()
	synctest.Wait()
	want := engine.Load{Running: running, Waiting: waiting, Encoding: encoding, Ready: ready, Active: active, UsedBlocks: used}
	l := e.Load()
	got := engine.Load{Running: l.Running, Waiting: l.Waiting, Encoding: l.Encoding, Ready: l.Ready, Active: l.Active, UsedBlocks: l.UsedBlocks}
	if got != want {
		t.Errorf("%s: %+v, want %+v", when, got, want)
	}
}

// TestEncodingBesideBatches: a request whose media are being encoded is in the load, with all its blocks, while texts
// are served; it goes on where the tokens are computable, and its answer is that of an engine which encodes nothing.
func TestEncodingBesideBatches(t *testing.T) { synctest.Test(t, testEncodingBesideBatches) }

func testEncodingBesideBatches(t *testing.T) {
	plain := small(t, nil)
	plainCtx := enginetest.Start(t, plain)
	req := showing(greedy(1, 40, 5), 4, 20)
	want := enginetest.MustGenerate(t, plainCtx, plain, req)

	e, m := mediaEngine(t, nil)
	ctx := enginetest.Start(t, e)
	result := make(chan error, 1)
	var got []enginetest.Choice
	go func() {
		var err error
		got, err = enginetest.Generate(ctx, e, req)
		result <- err
	}()
	expectLoad(t, e, "both are being encoded", 0, 1, 1, 0, 0, 10)
	before := e.HealthReport().Progress
	enginetest.MustGenerate(t, ctx, e, greedy(2, 30, 4))
	m.encode(paged.RangeID{Seq: 1, Index: 1})
	expectLoad(t, e, "the second one is encoded", 0, 1, 1, 0, 0, 10)
	m.encode(paged.RangeID{Seq: 1, Index: 1}, paged.RangeID{Seq: 7, Index: 0}, paged.RangeID{Seq: 1, Index: 5}) // nothing of that is there
	expectLoad(t, e, "nothing new", 0, 1, 1, 0, 0, 10)
	if n := e.HealthReport().Progress - before; n != 4+1 {
		t.Errorf("progress of four batches and an object is %d", n)
	}
	m.encode(paged.RangeID{Seq: 1, Index: 0})
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got[0].Tokens, want[0].Tokens) {
		t.Errorf("%v, want %v", got[0].Tokens, want[0].Tokens)
	}
	expectLoad(t, e, "at the end", 0, 0, 0, 0, 0, 0)
	if !slices.Equal(m.mu.asked[1], []int{0, 0}) || !slices.Equal(m.mu.stopped, []paged.SeqID{1}) || len(m.mu.asked[2]) != 0 {
		t.Errorf("asked for %v, stopped %v", m.mu.asked, m.mu.stopped)
	}
}

// TestAbortWhileEncoding: a request which leaves while its media are being encoded frees everything, although the loop
// has nothing to compute.
func TestAbortWhileEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, m := mediaEngine(t, nil)
		ctx := enginetest.Start(t, e)
		leaving, leave := context.WithCancel(ctx)
		result := make(chan error, 1)
		go func() {
			_, err := enginetest.Generate(leaving, e, showing(greedy(1, 40, 5), 4))
			result <- err
		}()
		expectLoad(t, e, "encoding", 0, 1, 1, 0, 0, 10)
		leave()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		expectLoad(t, e, "after it has left", 0, 0, 0, 0, 0, 0)
		if !slices.Equal(m.mu.stopped, []paged.SeqID{1}) {
			t.Errorf("stopped %v", m.mu.stopped)
		}
		m.encode(paged.RangeID{Seq: 1, Index: 0}) // too late
		enginetest.MustGenerate(t, ctx, e, greedy(2, 30, 4))
	})
}

// TestEncodedAtOnce: what is encoded when it is asked for does not wait for another event, also if that turns out when
// the sequence is admitted: blocks which were cached when it came are gone.
func TestEncodedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, m := mediaEngine(t, func(c *Config) { c.Card.Blocks, c.Card.ContextLength = 30, 120 })
		ctx := enginetest.Start(t, e)
		m.mu.rows[0] = true
		first := showing(greedy(1, 40, 2), 0)
		enginetest.MustGenerate(t, ctx, e, first)
		if !slices.Equal(m.mu.asked[1], []int{0, 0}) {
			t.Errorf("asked for %v", m.mu.asked)
		}

		// It comes again, and waits behind others which need its cached blocks.
		m.gate = enginetest.NewGate()
		results := make(chan error, 3)
		ask := func(req *engine.Request) {
			go func() {
				_, err := enginetest.Generate(ctx, e, req)
				results <- err
			}()
			synctest.Wait()
		}
		ask(greedy(2, 100, 8))
		ask(greedy(3, 100, 8))
		ask(first)
		<-m.gate.Enter
		m.gate.Leave <- struct{}{}
		synctest.Wait() // the loop has all three
		<-e.wake        // and must not depend on what woke it before
		m.gate.Open(t)
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if asked := m.mu.asked[4]; len(asked) != 2 || asked[0] != 36 || asked[1] >= 8 {
			t.Errorf("asked for %v", m.mu.asked)
		}
		expectLoad(t, e, "at the end", 0, 0, 0, 0, 0, 0)
	})
}

// discardingDice is mediaDice which gives up what was computed, and whose encoders may fail.
type discardingDice struct {
	*mediaDice
	fails map[paged.SeqID]error // under mu of mediaDice
}

func (d *discardingDice) RestartEncoding(id paged.SeqID, s State, ready int) {
	for k := range s.(*die).req.Media {
		delete(d.finished, paged.RangeID{Seq: id, Index: k})
	}
	d.StartEncoding(id, s, ready)
}

func (d *discardingDice) AppendFailed(dst []FailedSequence) []FailedSequence {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, err := range d.fails {
		dst = append(dst, FailedSequence{id, err})
	}
	clear(d.fails)
	return dst
}

func discardingEngine(t *testing.T, change func(*Config)) (*Engine, *discardingDice) {
	e, m := mediaEngine(t, change)
	d := &discardingDice{m, map[paged.SeqID]error{}}
	e.computer = d
	return e, d
}

// TestAcceptedWhenEncoded: a request is accepted when all is encoded which it needs, and can fail until then. What the KV
// cache has it does not need.
func TestAcceptedWhenEncoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := discardingEngine(t, nil)
		ctx := enginetest.Start(t, e)
		var accepted bool
		ask := func(req *engine.Request) chan error {
			accepted = false
			result := make(chan error, 1)
			go func() {
				result <- e.Generate(ctx, req, func(d *engine.Delta) error {
					accepted = accepted || d.Accepted
					return nil
				})
			}()
			synctest.Wait()
			return result
		}
		req := showing(greedy(1, 40, 5), 4, 20)
		result := ask(req)
		d.encode(paged.RangeID{Seq: 1, Index: 0})
		if synctest.Wait(); accepted || len(result) > 0 {
			t.Errorf("one of two is encoded, accepted: %t", accepted)
		}
		d.encode(paged.RangeID{Seq: 1, Index: 1})
		if err := <-result; err != nil || !accepted {
			t.Errorf("both are encoded, accepted: %t, %v", accepted, err)
		}
		if err := <-ask(req); err != nil || !accepted {
			t.Errorf("both are cached, accepted: %t, %v", accepted, err)
		}

		cause := errors.New("no rows")
		result = ask(showing(greedy(2, 40, 5), 4))
		d.mu.Lock()
		d.fails[3] = cause
		d.mu.Unlock()
		e.Wake()
		if err := <-result; !errors.Is(err, cause) || accepted {
			t.Errorf("a failure, accepted: %t, %v", accepted, err)
		}
		expectLoad(t, e, "at the end", 0, 0, 0, 0, 0, 0)
		if len(d.mu.stopped) != 3 {
			t.Errorf("stopped %v", d.mu.stopped)
		}
	})
}

// TestAcceptedAfterAdmission: a request whose objects are all cached when it comes is not accepted before it has its blocks:
// the cached ones may be evicted, and then its media may fail.
func TestAcceptedAfterAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := discardingEngine(t, func(c *Config) { c.Card.Blocks, c.Card.ContextLength = 30, 120 })
		ctx := enginetest.Start(t, e)
		d.mu.rows[0] = true
		first := showing(greedy(1, 40, 2), 0)
		enginetest.MustGenerate(t, ctx, e, first)

		d.mu.Lock()
		d.mu.rows[0] = false
		d.mu.Unlock()
		d.gate = enginetest.NewGate()
		texts := make(chan error, 2)
		for seed := range 2 {
			go func() {
				_, err := enginetest.Generate(ctx, e, greedy(2+seed, 100, 8))
				texts <- err
			}()
			synctest.Wait()
		}
		var accepted bool
		result := make(chan error, 1)
		go func() {
			result <- e.Generate(ctx, first, func(d *engine.Delta) error {
				accepted = accepted || d.Accepted
				return nil
			})
		}()
		synctest.Wait()
		d.gate.Open(t)
		for range 2 {
			if err := <-texts; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		d.mu.Lock()
		asked := d.mu.asked[4]
		d.mu.Unlock()
		if len(asked) != 3 || asked[0] != 36 || asked[1] >= 8 || asked[2] >= 8 || accepted { // the second time while it waits
			t.Errorf("asked for %v, accepted: %t", asked, accepted)
		}
		cause := errors.New("no rows")
		d.mu.Lock()
		d.fails[4] = cause
		d.mu.Unlock()
		e.Wake()
		if err := <-result; !errors.Is(err, cause) || accepted {
			t.Errorf("it failed, accepted: %t, %v", accepted, err)
		}
	})
}

// TestPassedOverIsEncodedAgain: a sequence which waits with one object encoded and the other in the KV cache, from which
// that one is evicted, has both encoded again. It computes neither before.
func TestPassedOverIsEncodedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := discardingEngine(t, func(c *Config) { c.Card.Blocks, c.Card.ContextLength = 30, 120 })
		ctx := enginetest.Start(t, e)
		d.mu.rows[4] = true
		turn := showing(greedy(1, 40, 2), 4)
		enginetest.MustGenerate(t, ctx, e, turn)
		d.mu.Lock()
		d.mu.rows[4] = false
		d.mu.Unlock()

		d.gate = enginetest.NewGate()
		results := make(chan error, 3)
		ask := func(req *engine.Request) {
			go func() {
				_, err := enginetest.Generate(ctx, e, req)
				results <- err
			}()
			synctest.Wait()
		}
		ask(greedy(2, 16, 3)) // 4 blocks
		<-d.gate.Enter
		next := showing(greedy(1, 108, 2), 4, 80) // 27 blocks, of which 10 are cached
		next.Media[0].Hash = turn.Media[0].Hash
		ask(next)
		ask(showing(greedy(3, 96, 2), 4)) // 24 blocks
		expectAsked := func(when string, want ...int) {
			t.Helper()
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			if !slices.Equal(d.mu.asked[3], want) {
				t.Errorf("%s it has asked for %v, want %v", when, d.mu.asked[3], want)
			}
		}
		d.gate.Leave <- struct{}{}
		<-d.gate.Enter
		expectAsked("when it waits", 40)
		d.encode(paged.RangeID{Seq: 3, Index: 1})
		d.gate.Leave <- struct{}{}
		<-d.gate.Enter
		expectAsked("when the first object is evicted", 40, 4)
		d.gate.Open(t)
		d.gate.Leave <- struct{}{}
		d.encode(paged.RangeID{Seq: 4, Index: 0})
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		d.encode(paged.RangeID{Seq: 3, Index: 0})
		expectLoad(t, e, "one object is encoded", 0, 1, 1, 0, 0, 27)
		d.encode(paged.RangeID{Seq: 3, Index: 1})
		if err := <-results; err != nil {
			t.Error(err)
		}
		expectLoad(t, e, "at the end", 0, 0, 0, 0, 0, 0)
	})
}

// TestPreemptedWhileEncoding: a sequence which is preempted while its object is being encoded does not give that up, also if
// an object is evicted meanwhile which was cached. That one is encoded when the sequence needs it.
func TestPreemptedWhileEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, d := discardingEngine(t, func(c *Config) { c.Card.Blocks, c.Card.ContextLength = 30, 120 })
		ctx := enginetest.Start(t, e)
		d.mu.rows[4] = true
		turn := showing(greedy(1, 40, 2), 4)
		enginetest.MustGenerate(t, ctx, e, turn)
		results := make(chan error, 2)
		ask := func(req *engine.Request) {
			go func() {
				_, err := enginetest.Generate(ctx, e, req)
				results <- err
			}()
		}
		next := showing(greedy(1, 80, 2), 4, 60) // 20 blocks, of which 10 are cached
		next.Media[0].Hash = turn.Media[0].Hash
		ask(next)
		expectLoad(t, e, "while it is encoded", 0, 1, 1, 0, 0, 20)
		ask(greedy(2, 30, 90)) // 30 blocks in the end
		if err := <-results; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		d.mu.Lock()
		asked := slices.Clone(d.mu.asked[2])
		d.mu.Unlock()
		if e.Load().Preemptions != 1 || !slices.Equal(asked, []int{40, 40, 0}) {
			t.Errorf("%d preemptions, asked for %v", e.Load().Preemptions, asked)
		}
		d.encode(paged.RangeID{Seq: 2, Index: 0}, paged.RangeID{Seq: 2, Index: 1})
		if err := <-results; err != nil {
			t.Error(err)
		}
	})
}

// TestCachedIsNotEncodedAgain: a sequence which is preempted while its object is cached, in part in the block which its
// prompt and its output share, does not ask for the object.
func TestCachedIsNotEncodedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const end = 42 // of the object, in the middle of a block
		e, d := discardingEngine(t, func(c *Config) { c.Card.Blocks, c.Card.ContextLength = 40, 150 })
		ctx := enginetest.Start(t, e)
		results := make(chan error, 2)
		d.gate = enginetest.NewGate()
		go func() {
			_, err := enginetest.Generate(ctx, e, greedy(2, 12, 70))
			results <- err
		}()
		<-d.gate.Enter
		go func() {
			_, err := enginetest.Generate(ctx, e, showing(greedy(1, end, 60), end-8))
			results <- err
		}()
		synctest.Wait()
		d.gate.Open(t)
		d.gate.Leave <- struct{}{}
		d.encode(paged.RangeID{Seq: 2, Index: 0})
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		asked := d.mu.asked[2]
		if e.Load().Preemptions != 1 || len(asked) != 4 || asked[2] < end || asked[3] < end {
			t.Errorf("%d preemptions, asked for %v", e.Load().Preemptions, asked)
		}
	})
}

// TestEncodedAgain: what a sequence has computed is given up. If it is preempted, and its blocks are evicted, its ranges
// are encoded again before it goes on, and its answer is that of an engine which encodes nothing.
func TestEncodedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := small(t, nil)
		newer := showing(greedy(1, 40, 60), 20)
		want := enginetest.MustGenerate(t, enginetest.Start(t, plain), plain, newer)
		e, d := discardingEngine(t, func(c *Config) { c.Card.Blocks, c.Card.ContextLength = 40, 150 })
		ctx := enginetest.Start(t, e)
		results := make(chan error, 2)
		var got []enginetest.Choice
		d.gate = enginetest.NewGate()
		go func() {
			_, err := enginetest.Generate(ctx, e, greedy(2, 12, 138))
			results <- err
		}()
		<-d.gate.Enter
		go func() {
			var err error
			got, err = enginetest.Generate(ctx, e, newer)
			results <- err
		}()
		synctest.Wait()
		d.gate.Open(t)
		d.gate.Leave <- struct{}{}
		d.mu.Lock()
		d.mu.rows[20] = true
		d.mu.Unlock()
		d.encode(paged.RangeID{Seq: 2, Index: 0})
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(got[0].Tokens, want[0].Tokens) {
			t.Errorf("%v, want %v", got[0].Tokens, want[0].Tokens)
		}
		again := slices.ContainsFunc(d.mu.asked[2][1:], func(ready int) bool { return ready < 28 })
		if e.Load().Preemptions == 0 || !again || len(d.mu.asked[2]) < 4 {
			t.Errorf("%d preemptions, asked for %v", e.Load().Preemptions, d.mu.asked[2])
		}
	})
}
