package tiny

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/encode"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"

	"github.com/google/go-cmp/cmp"
)

// oneStaged is the bytes of a picture's rows.
const oneStaged = 6 * 32 * elementBytes

// TestWaitingGivesUpStagingMemory: the next turn of a conversation waits for blocks with the rows of its second picture
// staged. The first one was in the KV cache when it came, and is evicted for another request, which needs all staging memory
// and holds the blocks for which the first request waits. Neither waits for ever.
func TestWaitingGivesUpStagingMemory(t *testing.T) {
	for _, capacity := range []int{0, 64 << 20} {
		t.Run(fmt.Sprintf("cache of %d bytes", capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { giveUpStaging(t, capacity) })
		})
	}
}

func giveUpStaging(t *testing.T, capacity int) {
	turn := within(80, greedy(1, 14, 2))
	show(t, turn, 4, noise(media.Image, 1, 56, 84, 3))
	next := within(80, greedy(1, 89, 4)) // 26 blocks, of which 5 are cached
	show(t, next, 4, noise(media.Image, 1, 56, 84, 3))
	show(t, next, len(next.Prompt)-2, noise(media.Image, 2, 56, 84, 3))
	other := within(80, greedy(2, 84, 4)) // 24 blocks
	show(t, other, 4, noise(media.Image, 3, 56, 84, 3))
	show(t, other, len(other.Prompt)-2, noise(media.Image, 4, 56, 84, 3))
	cold := seeing(t, nil)
	coldCtx := enginetest.Start(t, cold)
	want := enginetest.MustGenerate(t, coldCtx, cold, next)
	wantOther := enginetest.MustGenerate(t, coldCtx, cold, other)

	e := seeing(t, func(c *Config) {
		c.EmbeddingCache, c.Blocks, c.Encode.Threads, c.Encode.StagingBudget = &capacity, 30, 1, 2*oneStaged
	})
	ctx := enginetest.Start(t, e)
	enginetest.MustGenerate(t, ctx, e, turn)
	open, entered := heldEncoder(e.cpu.encoders)
	g := &gate{e.cpu.forward, enginetest.NewGate()}
	e.cpu.forward = g
	text, _ := ask(ctx, e, within(80, greedy(9, 16, 6))) // 5 blocks
	<-g.Enter
	result, accepted := ask(ctx, e, next)
	synctest.Wait()
	otherResult, otherAccepted := ask(ctx, e, other)
	synctest.Wait()
	g.Leave <- struct{}{}
	<-g.Enter
	<-entered
	close(open)
	synctest.Wait()
	if s := e.EncodeStats(); s.StagingBytes != oneStaged || s.StagingRequests != 1 || isClosed(accepted) || isClosed(otherAccepted) || e.Load().UsedBlocks != 29 {
		t.Errorf("while both wait: %+v, %d blocks, accepted: %t, %t", s, e.Load().UsedBlocks, isClosed(accepted), isClosed(otherAccepted))
	}
	g.Open(t)
	g.Leave <- struct{}{}
	if got := <-text; got.err != nil {
		t.Fatal(got.err)
	}
	for _, r := range []struct {
		result chan outcome
		want   []kv.Token
	}{{otherResult, wantOther[0].Tokens}, {result, want[0].Tokens}} {
		select {
		case got := <-r.result:
			if got.err != nil || !slices.Equal(got.choices[0].Tokens, r.want) {
				t.Errorf("%+v, want %v", got, r.want)
			}
		case <-time.After(time.Hour):
			t.Fatalf("it waits for ever: %+v, %+v", e.EncodeStats().Stats, e.Load())
		}
	}
}

// TestScarceMemoryServesAll: turns of conversations about pictures, with few blocks, staging memory for two pictures and
// other memory for three, so that sequences are preempted, prefixes evicted and rows encoded again in many orders. None
// waits for ever, and each has the answer of an idle engine.
func TestScarceMemoryServesAll(t *testing.T) {
	preemptions, encoded := int64(0), int64(0)
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := serveScarce(t, seed)
				preemptions += int64(e.Load().Preemptions)
				encoded += max(0, int64(e.EncodeStats().Encoded)-scarcePictures)
			})
		})
	}
	happened(t, "a preemption", preemptions)
	happened(t, "a picture which is encoded again", encoded)
}

// scarcePictures is the number of pictures which serveScarce shows.
const scarcePictures = 3 + 4

// timedForward takes a time for each pass, that of the test's bubble.
type timedForward struct{ forwarder }

func (f *timedForward) Forward(c *model.Cache, work []model.Work) error {
	time.Sleep(time.Millisecond) // virtual time (synctest): a pass takes as long
	return f.forwarder.Forward(c, work)
}

// serveScarce serves requests which come at different times, and returns the engine.
func serveScarce(t *testing.T, seed uint64) *Engine {
	const requests = 30
	pick := func(what, i, n int) int { return int(randomOutput(seed, uint64(100*what+i)) >> 8 % uint64(n)) }
	e := seeing(t, func(c *Config) {
		c.EmbeddingCache, c.Blocks, c.TokenBudget, c.MaxSeqs = new(pick(1, 0, 2)*10*oneStaged), 30, 7+pick(2, 0, 20), 3+pick(3, 0, 4)
		c.Encode.StagingBudget, c.Encode.CPUBudget, c.Encode.Threads, c.Encode.Timeout = 2*oneStaged, 3*oneStaged, 1, 24*time.Hour
		c.Reuse = []paged.Switch{paged.On, paged.On, paged.On, paged.Off}[seed%4]
		if seed%8 > 5 {
			c.Chunking, c.TokenBudget = paged.Off, 130
		}
	})
	e.cpu.forward = &timedForward{e.cpu.forward}
	inner := e.cpu.encoders.encode
	e.cpu.encoders.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
		time.Sleep(time.Duration(1+len(input)%7) * 2 * time.Millisecond) // virtual time (synctest): encoding takes a time which depends on the input
		return inner(ctx, kind, input, grid)
	}
	cold := seeing(t, func(c *Config) { c.Blocks = 400 })
	ctx, coldCtx := enginetest.Start(t, e), enginetest.Start(t, cold)
	var all []chan outcome
	var want [][]enginetest.Choice
	for i := range requests {
		talk := pick(4, i, 3)
		req := within(80, greedy(talk, 15+pick(5, i, 60), 1+pick(6, i, 30)))
		req.Choices = 1 + pick(7, i, 4)*pick(14, i, 2)
		show(t, req, 4, noise(media.Image, uint64(talk), 56, 84, 3))
		if pick(8, i, 3) > 0 {
			show(t, req, 20+pick(9, i, len(req.Prompt)-20), noise(media.Image, uint64(10+pick(10, i, 4)), 56, 84, 3))
		}
		if pick(11, i, 4) == 0 {
			req.Prompt, req.Media, req.Objects = slices.Repeat([]kv.Token{kv.Token(20 + i)}, 10+pick(12, i, 70)), nil, nil
		}
		answer := enginetest.MustGenerate(t, coldCtx, cold, req)
		for k := range answer {
			answer[k].Cached = 0
		}
		want = append(want, answer)
		result, _ := ask(ctx, e, req)
		all = append(all, result)
		time.Sleep(time.Duration(pick(13, i, 12)) * time.Millisecond) // virtual time (synctest): requests come at varying intervals
	}
	for i, result := range all {
		select {
		case got := <-result:
			if diff := cmp.Diff(outcome{want[i], nil}, got, cmp.AllowUnexported(outcome{})); diff != "" {
				t.Errorf("request %d (-want +got):\n%s", i, diff)
			}
		case <-time.After(time.Hour):
			t.Fatalf("request %d waits for ever: %+v, %+v", i, e.EncodeStats().Stats, e.Load())
		}
	}
	return e
}

// TestPreemptedKeepsEncoding: a sequence which is preempted while its second picture is being encoded does not give that up,
// although its first one, which was in the KV cache, is evicted in the same step.
func TestPreemptedKeepsEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := within(80, greedy(1, 14, 2))
		show(t, turn, 4, noise(media.Image, 1, 56, 84, 3))
		next := within(80, greedy(1, 60, 4))
		show(t, next, 4, noise(media.Image, 1, 56, 84, 3))
		show(t, next, len(next.Prompt)-2, noise(media.Image, 2, 56, 84, 3))
		cold := seeing(t, nil)
		want := enginetest.MustGenerate(t, enginetest.Start(t, cold), cold, next)

		e := seeing(t, func(c *Config) { c.Blocks, c.TokenBudget = 30, 130 })
		ctx := enginetest.Start(t, e)
		enginetest.MustGenerate(t, ctx, e, turn)
		open, entered := heldEncoder(e.cpu.encoders)
		result, _ := ask(ctx, e, next)
		<-entered
		synctest.Wait()
		if l := e.Load(); l.UsedBlocks != 18 || l.Encoding != 1 {
			t.Errorf("while it is encoded: %+v", l)
		}
		g := &gate{e.cpu.forward, enginetest.NewGate()}
		e.cpu.forward = g
		text, _ := ask(ctx, e, within(80, greedy(2, 116, 2))) // 29 blocks
		<-g.Enter
		synctest.Wait()
		if n := e.Load().Preemptions; n != 1 || len(entered) > 0 {
			t.Errorf("%d preemptions, encoders ran %d times more", n, len(entered))
		}
		close(open)
		synctest.Wait()
		g.Open(t)
		g.Leave <- struct{}{}
		if got := <-text; got.err != nil {
			t.Error(got.err)
		}
		if got := <-result; got.err != nil || !slices.Equal(got.choices[0].Tokens, want[0].Tokens) {
			t.Errorf("%+v, want %v", got, want[0].Tokens)
		}
		if n := e.EncodeStats().Encoded; n != 2 {
			t.Errorf("%d pictures were encoded, want each once", n)
		}
	})
}

// TestReadmittedKeepsEncoding: a sequence which is preempted while its second picture is being encoded, and admitted
// again before that has ended, needs its first one too, which was evicted. The encoder is called once for the second
// one.
func TestReadmittedKeepsEncoding(t *testing.T) {
	for _, capacity := range []int{0, 64 << 20} {
		t.Run(fmt.Sprintf("cache of %d bytes", capacity), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { readmit(t, capacity) })
		})
	}
}

func readmit(t *testing.T, capacity int) {
	turn := within(80, greedy(1, 14, 2))
	show(t, turn, 4, noise(media.Image, 1, 56, 84, 3))
	next := within(80, greedy(1, 60, 4))
	show(t, next, 4, noise(media.Image, 1, 56, 84, 3))
	show(t, next, len(next.Prompt)-2, noise(media.Image, 2, 56, 84, 3))
	cold := seeing(t, nil)
	want := enginetest.MustGenerate(t, enginetest.Start(t, cold), cold, next)

	e := seeing(t, func(c *Config) {
		c.EmbeddingCache, c.Blocks, c.TokenBudget, c.Encode.Threads = &capacity, 30, 130, 1
	})
	ctx := enginetest.Start(t, e)
	enginetest.MustGenerate(t, ctx, e, turn)
	open, entered := heldEncoder(e.cpu.encoders)
	result, accepted := ask(ctx, e, next)
	<-entered
	text, _ := ask(ctx, e, within(80, greedy(2, 116, 2))) // 29 blocks
	if got := <-text; got.err != nil {
		t.Error(got.err)
	}
	synctest.Wait()
	if s, l := e.EncodeStats(), e.Load(); l.Preemptions != 1 || l.Encoding != 1 || l.UsedBlocks != 18 || isClosed(accepted) || s.RunningObjects != 1 || s.Ended[encode.Cancelled] != 1 {
		t.Errorf("when it is admitted again: %+v, %+v", l, s.Stats)
	}
	close(open)
	if got := <-result; got.err != nil || !slices.Equal(got.choices[0].Tokens, want[0].Tokens) {
		t.Errorf("%+v, want %v", got, want[0].Tokens)
	}
	synctest.Wait()
	calls, again := len(entered), 1 // the first picture, unless the cache has it
	if capacity > 0 {
		again = 0
	}
	if s := e.EncoderStats(); calls != again || s.Cancelled != 0 || int(s.Encoded) != 2+again {
		t.Errorf("encoders ran %d times more, want %d: %+v", calls, again, s)
	}
}
