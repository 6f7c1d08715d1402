package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"penstock/core/kv"
)

// spanGrove returns chains which are longer than a span and leave each other within its pages, at their ends
// and on both sides of them.
func spanGrove() tree {
	const length = spanBlocks + 5*window + 7
	var g tree
	for i, at := range []int{0, 4 * window, 5*window + 9, spanBlocks, 0} {
		var blocks []kv.BlockHash
		if i > 0 {
			blocks = append(blocks, g.blocks[0][:at]...)
		}
		for j := len(blocks); j < length; j++ {
			blocks = append(blocks, block(fmt.Sprint("span", i, "/", j)))
		}
		g.blocks = append(g.blocks, blocks)
		g.chains = append(g.chains, chainOf(blocks))
	}
	return g
}

// spanTally counts the changes of spans between two calls of look.
type spanTally struct {
	said                        map[uint32]uint8 // by first page
	built, grown, shrunk, ended int
	used, inside                int // lookups that passed whole spans, and parts of one
}

// look compares the spans with those of the last call.
func (s *spanTally) look(x *Index) {
	now := map[uint32]uint8{}
	for at, c := range x.pages.chunks {
		if c == nil {
			continue
		}
		for i, v := range c.versions {
			if v != nil && v.span > 0 {
				now[uint32(at*chunkPages+i)] = v.span
			}
		}
	}
	for id, n := range now {
		switch was := s.said[id]; {
		case was == 0:
			s.built++
		case n > was:
			s.grown++
		case n < was:
			s.shrunk++
		}
	}
	for id := range s.said {
		if now[id] == 0 {
			s.ended++
		}
	}
	s.said = now
}

// ask counts how a lookup of prompt passes spans.
func (s *spanTally) ask(x *Index, prompt []kv.SeqHash) {
	for pos := 0; pos < len(prompt); {
		v := x.heads.findPage(prompt[pos])
		if v == nil {
			return
		}
		n := v.passedWindows(prompt[pos:])
		switch {
		case n == 0:
			pos += v.commonBlocks(prompt[pos:])
			continue
		case n == spanPages:
			s.used++
		case n < int(v.span):
			s.inside++
		}
		pos += n * window
	}
}

// spanAgrees is agrees with long chains, which often have the same holders.
func spanAgrees(s *spanTally, wide int) func(*rapid.T) {
	return func(t *rapid.T) {
		w := newTwins(t, wide)
		w.grove = spanGrove()
		length := len(w.grove.blocks[0])
		w.edges = rapid.OneOf(
			rapid.SampledFrom([]int{0, 0, 0, length, length, length}),
			rapid.Custom(func(t *rapid.T) int {
				return max(0, rapid.IntRange(0, length/window).Draw(t, "page")*window+rapid.IntRange(-1, 1).Draw(t, "beside"))
			}),
			rapid.IntRange(0, length))
		w.tiers = rapid.SampledFrom([]kv.Tier{kv.TierDevice, kv.TierDevice, kv.TierDevice, kv.TierDevice, kv.TierDevice, kv.TierHost})
		s.said = nil
		fill := func(t *rapid.T) { // some workers hold a whole chain, as caches do
			c := rapid.IntRange(0, len(w.grove.chains)-1).Draw(t, "filled")
			worker, step := w.workers.Draw(t, "worker"), rapid.SampledFrom([]int{length, 128, 100}).Draw(t, "step")
			for from := 0; from < length; from += step {
				ev := kv.Event{Kind: kv.Stored, Start: uint32(from), Blocks: w.grove.blocks[c][from:min(from+step, length)]}
				if from > 0 {
					ev.Parent = w.grove.chains[c][from-1]
				}
				w.apply(worker, ev)
			}
		}
		one := func(t *rapid.T) { // one block is removed, and may return
			c, at := rapid.IntRange(0, len(w.grove.chains)-1).Draw(t, "chain"), rapid.IntRange(1, length-1).Draw(t, "block")
			worker := w.workers.Draw(t, "worker")
			w.apply(worker, kv.Event{Kind: kv.Removed, Seqs: w.grove.chains[c][at : at+1]})
			if rapid.Bool().Draw(t, "back") {
				w.apply(worker, kv.Event{Kind: kv.Stored, Start: uint32(at), Parent: w.grove.chains[c][at-1], Blocks: w.grove.blocks[c][at : at+1]})
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				w.agree(t)
				s.look(w.x)
				c, _, to := w.stretch(t)
				w.matches(t, w.x, w.grove.chains[c][:to], nil)
				s.ask(w.x, w.grove.chains[c][:to])
			},
			"fill":     fill,
			"fill2":    fill,
			"fill3":    fill,
			"one":      one,
			"store":    w.store,
			"remove":   w.remove,
			"clear":    w.clear,
			"drop":     w.drop,
			"hide":     w.hide,
			"show":     w.show,
			"place":    w.place,
			"displace": w.displace,
			"access":   w.access,
			"droppool": w.dropPool,
			"reload":   w.reload,
		})
	}
}

// TestSpansAgreeWithNaiveTwin: lookups are exact whatever happens to the pages of a span, and all cases
// occur.
func TestSpansAgreeWithNaiveTwin(t *testing.T) {
	for _, wide := range []int{2, 70} {
		var s spanTally
		rapid.Check(t, spanAgrees(&s, wide))
		for name, n := range map[string]int{"built": s.built, "grown": s.grown, "shrunk": s.shrunk, "ended": s.ended, "used": s.used, "left inside": s.inside} {
			if n == 0 && !testing.Short() { // the short run draws a fifth as many
				t.Errorf("%d workers: no span was %s", wide, name)
			}
		}
	}
}

func FuzzSpans(f *testing.F) { f.Fuzz(rapid.MakeFuzz(spanAgrees(&spanTally{}, 2))) }

// longFill returns an index in which two workers hold a chain of n blocks.
func longFill(t fataler, n int) (*Index, tree, [2]kv.Worker) {
	x, g := mustNew(t, Config{}), spanGrove()
	workers := [2]kv.Worker{{ID: 1}, {ID: 2}}
	for _, w := range workers {
		x.ApplyEvent(w, kv.Event{Kind: kv.Stored, Blocks: g.blocks[0][:n]})
	}
	return x, g, workers
}

// TestWhatBreaksASpan: each kind of change to a page in the middle ends the span before it, and undoing the
// change restores it.
func TestWhatBreaksASpan(t *testing.T) {
	const at = 3*window + 7
	for _, c := range []struct {
		name       string
		break_, do func(x *Index, g tree)
	}{
		{"a worker more", func(x *Index, g tree) {
			x.ApplyEvent(kv.Worker{ID: 3}, kv.Event{Kind: kv.Stored, Start: at, Parent: g.chains[0][at-1], Blocks: g.blocks[0][at : at+1]})
		}, func(x *Index, _ tree) { x.DropWorker(kv.Worker{ID: 3}) }},
		{"a block less", func(x *Index, g tree) {
			x.ApplyEvent(kv.Worker{ID: 1}, kv.Event{Kind: kv.Removed, Seqs: g.chains[0][at : at+1]})
		}, func(x *Index, g tree) {
			x.ApplyEvent(kv.Worker{ID: 1}, kv.Event{Kind: kv.Stored, Start: at, Parent: g.chains[0][at-1], Blocks: g.blocks[0][at : at+1]})
		}},
		{"another tier", func(x *Index, g tree) {
			for id := range kv.WorkerID(2) {
				x.ApplyEvent(kv.Worker{ID: id + 1}, kv.Event{Kind: kv.Stored, Tier: kv.TierDisk, Start: at, Parent: g.chains[0][at-1], Blocks: g.blocks[0][at : at+1]})
			}
		}, func(x *Index, g tree) {
			for id := range kv.WorkerID(2) {
				x.ApplyEvent(kv.Worker{ID: id + 1}, kv.Event{Kind: kv.Removed, Tier: kv.TierDisk, Seqs: g.chains[0][at : at+1]})
			}
		}},
		{"a pool", func(x *Index, g tree) { x.AddToPool(1, g.chains[0][at:at+1], nil) }, func(x *Index, _ tree) { x.DropPool(1) }},
		{"a label", func(x *Index, g tree) {
			for id := range kv.WorkerID(2) {
				x.ApplyEvent(kv.Worker{ID: id + 1}, kv.Event{
					Kind: kv.Stored, Start: at, Parent: g.chains[0][at-1], Blocks: g.blocks[0][at : at+1],
					Labels: []kv.MoELabel{{Has: kv.HasExpert, Layer: 1}},
				})
			}
		}, func(x *Index, g tree) {
			for id := range kv.WorkerID(2) {
				x.ApplyEvent(kv.Worker{ID: id + 1}, kv.Event{
					Kind: kv.Stored, Start: at, Parent: g.chains[0][at-1], Blocks: g.blocks[0][at : at+1], Labels: []kv.MoELabel{{}},
				})
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, g, _ := longFill(t, spanBlocks)
			says := func(want uint8) {
				t.Helper()
				if err := x.Check(); err != nil {
					t.Fatal(err)
				}
				if got := x.heads.findPage(g.chains[0][0]).span; got != want {
					t.Fatalf("the first page speaks of %d pages, want %d", got, want)
				}
			}
			says(spanPages)
			c.break_(x, g)
			says(3)
			c.do(x, g)
			says(spanPages)
		})
	}
}

// TestSpanIsBrokenFirst: when a page of a span has changed, no lookup passes over it, not even before the
// event is done.
func TestSpanIsBrokenFirst(t *testing.T) {
	x, g, workers := longFill(t, spanBlocks)
	at, _ := x.locateBlock(g.chains[0][3*window+7])
	n := x.numbers[workers[0]]
	e := x.openPage(at.page)
	h := e.holdingsOf(n)
	h.removeBlocks(kv.TierDevice, 1<<at.offset)
	x.setHoldings(n, h)
	x.commitPage()
	got := matched(x, g.chains[0][:spanBlocks], nil)
	if len(got) != 2 || got[0].Depth() != 3*window+7 || got[1].Depth() != spanBlocks {
		t.Errorf("got %v", got)
	}
	x.finishChange()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

// TestSpanIsSaidOnce: an event which touches every page of a span replaces its first page once for itself and
// once for the span, not once per page.
func TestSpanIsSaidOnce(t *testing.T) {
	x, g, _ := longFill(t, spanBlocks)
	allocs := testing.AllocsPerRun(20, func() {
		x.ApplyEvent(kv.Worker{ID: 3}, kv.Event{Kind: kv.Stored, Blocks: g.blocks[0][:spanBlocks]})
		x.ApplyEvent(kv.Worker{ID: 3}, kv.Event{Kind: kv.Removed, Seqs: g.chains[0][:spanBlocks]})
	})
	// Per event: 8 versions, one of the first page and its hashes; and the worker's pages.
	if allocs > 2*(spanPages+2)+6 {
		t.Errorf("%v allocations", allocs)
	}
}

// spanStorm is a writer which makes and breaks spans concurrently with readers.
type spanStorm struct {
	x     *Index
	grove tree
	done  atomic.Bool
	fixed [][]kv.Overlap // by chain: what workers 1 and 2 hold throughout
}

func newSpanStorm(t testing.TB) *spanStorm {
	s := &spanStorm{x: mustNew(t, Config{}), grove: spanGrove()}
	for c, blocks := range s.grove.blocks {
		for id := range kv.WorkerID(2) {
			n := len(blocks) - int(id)*(c+1)*70
			s.x.ApplyEvent(kv.Worker{ID: id + 1}, kv.Event{Kind: kv.Stored, Blocks: blocks[:n]})
		}
	}
	for _, chain := range s.grove.chains {
		s.fixed = append(s.fixed, matched(s.x, chain, nil))
	}
	return s
}

// write changes what other workers hold of pages of spans: in the middle, of all, at the end.
func (s *spanStorm) write(ops int) (said int) {
	rng := rand.New(rand.NewPCG(8, 9))
	var tally spanTally
	for range ops {
		c := rng.IntN(len(s.grove.chains))
		w, blocks, chain := kv.Worker{ID: kv.WorkerID(10 + rng.IntN(2))}, s.grove.blocks[c], s.grove.chains[c]
		at := 1 + rng.IntN(len(blocks)-1)
		switch rng.IntN(5) {
		case 0:
			s.x.ApplyEvent(w, kv.Event{Kind: kv.Stored, Blocks: blocks})
		case 1:
			s.x.ApplyEvent(w, kv.Event{Kind: kv.Stored, Start: uint32(at), Parent: chain[at-1], Blocks: blocks[at:]})
		case 2:
			s.x.ApplyEvent(w, kv.Event{Kind: kv.Removed, Seqs: chain[at : at+1]})
		case 3:
			s.x.ApplyEvent(w, kv.Event{Kind: kv.Removed, Seqs: chain[at:]})
		case 4:
			s.x.DropWorker(w)
		}
		tally.look(s.x)
	}
	return tally.built + tally.grown + tally.shrunk + tally.ended
}

// read queries until the writer is done, and reports the first answer which was never true.
func (s *spanStorm) read(seed uint64) (passed int, err error) {
	rng := rand.New(rand.NewPCG(seed, 3))
	var m Match
	var got []kv.Overlap
	var tally spanTally
	for !s.done.Load() {
		c := rng.IntN(len(s.grove.chains))
		chain := s.grove.chains[c][:1+rng.IntN(len(s.grove.chains[c]))]
		tally.ask(s.x, chain)
		s.x.Match(&m, chain, nil)
		got = m.AppendOverlaps(got[:0])
		for i, o := range got {
			if o.Depth() < 1 || o.Depth() > len(chain) {
				return 0, fmt.Errorf("chain %d of %d blocks: %v", c, len(chain), o)
			}
			if i < 2 && (o.Worker != s.fixed[c][i].Worker || o.Depth() != min(len(chain), s.fixed[c][i].Depth())) {
				return 0, fmt.Errorf("chain %d of %d blocks: %v, it always was %v", c, len(chain), o, s.fixed[c][i])
			}
		}
		if len(got) < 2 {
			return 0, fmt.Errorf("chain %d: %v, it always was %v", c, got, s.fixed[c])
		}
	}
	return tally.used + tally.inside, nil
}

// TestSpanStorm breaks and makes spans concurrently with lookups which pass them.
func TestSpanStorm(t *testing.T) {
	s := newSpanStorm(t)
	var errs [4]error
	var passed [len(errs)]int
	var readers sync.WaitGroup
	for i := range errs {
		readers.Go(func() { passed[i], errs[i] = s.read(uint64(i)) })
	}
	said := s.write(3_000)
	s.done.Store(true)
	readers.Wait()
	if i := slices.IndexFunc(errs[:], func(err error) bool { return err != nil }); i >= 0 {
		t.Error(errs[i])
	}
	if err := s.x.Check(); err != nil {
		t.Error(err)
	}
	if said < 1000 || slices.Max(passed[:]) == 0 {
		t.Errorf("spans changed %d times and were passed %v times", said, passed)
	}
}
