package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/core/kv"
)

// storm is one writer's script concurrent with readers: workers which never change, workers which only grow,
// workers which are added and removed under reused numbers, and a flood of stores and removals of the same
// blocks.
type storm struct {
	x     *Index
	grove tree
	// fixed has what the first workers hold throughout: of chain i, the blocks fixed[w][i].
	fixed map[kv.Worker][]int
	done  atomic.Bool
}

// passer returns one of two workers which alternate under the same number: 1000 holds only the first 64
// blocks of chain 0, 1001 only those after them. A lookup which confused them would find a worker with all.
func passer(i int) kv.Worker { return kv.Worker{ID: kv.WorkerID(1000 + i%2)} }

func newStorm(t testing.TB, workers int) *storm {
	s := &storm{x: mustNew(t, Config{}), grove: grove(), fixed: map[kv.Worker][]int{}}
	for w := range workers {
		id := kv.Worker{ID: kv.WorkerID(w + 1)}
		for i, blocks := range s.grove.blocks {
			n := (w*37 + i*11) % 150
			if w%3 == 0 {
				n = len(blocks) // many are in one group
			}
			s.x.ApplyEvent(id, kv.Event{Kind: kv.Stored, Blocks: blocks[:n]})
		}
	}
	for w := range workers {
		id := kv.Worker{ID: kv.WorkerID(w + 1)}
		var depths []int
		var m Match
		for _, chain := range s.grove.chains {
			s.x.Match(&m, chain, nil)
			depth := 0
			for _, o := range m.AppendOverlaps(nil) {
				if o.Worker == id {
					depth = o.Depth()
				}
			}
			depths = append(depths, depth)
		}
		s.fixed[id] = depths
	}
	return s
}

// write is the writer: a fixed number of operations.
func (s *storm) write(ops int) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range ops {
		c, a, b := rng.IntN(len(s.grove.chains)), rng.IntN(151), rng.IntN(151)
		w := kv.Worker{ID: kv.WorkerID(100 + rng.IntN(4))}
		from, to := min(a, b), max(a, b)
		ev := kv.Event{Kind: kv.Stored, Blocks: s.grove.blocks[c][from:to]}
		if from > 0 {
			ev.Start, ev.Parent = uint32(from), s.grove.chains[c][from-1]
		}
		switch rng.IntN(8) {
		case 0, 1:
			s.x.ApplyEvent(w, ev)
		case 2, 3:
			s.x.ApplyEvent(w, kv.Event{Kind: kv.Removed, Seqs: s.grove.chains[c][from:to]})
		case 4:
			s.x.DropWorker(w)
		default:
			s.x.DropWorker(passer(i))
			s.x.DropWorker(passer(i + 1))
			if p := passer(i); p.ID == 1000 {
				s.x.ApplyEvent(p, kv.Event{Kind: kv.Stored, Blocks: s.grove.blocks[0][:64]})
			} else {
				s.x.ApplyEvent(p, kv.Event{Kind: kv.Stored, Start: 64, Parent: s.grove.chains[0][63], Blocks: s.grove.blocks[0][64:]})
			}
		}
	}
}

// read queries until the writer is done, and reports the first answer which was never true.
func (s *storm) read(seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	var m Match
	var got []kv.Overlap
	for !s.done.Load() {
		c := rng.IntN(len(s.grove.chains))
		s.x.Match(&m, s.grove.chains[c], nil)
		got = m.AppendOverlaps(got[:0])
		if err := s.judge(c, got); err != nil {
			return err
		}
	}
	return nil
}

func (s *storm) judge(c int, got []kv.Overlap) error {
	exact := 0
	for i, o := range got {
		if i > 0 && got[i-1].Worker.Compare(o.Worker) >= 0 {
			return fmt.Errorf("chain %d: not in order at %v", c, o.Worker)
		}
		if depths, ok := s.fixed[o.Worker]; ok {
			exact++
			if o.Depth() != depths[c] {
				return fmt.Errorf("chain %d: %v has depth %d, always had %d", c, o.Worker, o.Depth(), depths[c])
			}
		}
		switch {
		case o.Worker.ID == 1000 && o.Depth() > 64:
			return fmt.Errorf("%v has %d blocks, never held more than 64", o.Worker, o.Depth())
		case o.Worker.ID == 1001:
			return fmt.Errorf("%v has %d blocks of chain %d, never held the first", o.Worker, o.Depth(), c)
		case o.Depth() < 1 || o.Depth() > 150:
			return fmt.Errorf("%v has %d blocks", o.Worker, o.Depth())
		}
	}
	want := 0
	for _, depths := range s.fixed {
		if depths[c] > 0 {
			want++
		}
	}
	if exact != want {
		return fmt.Errorf("chain %d: %d of %d workers that hold some of it", c, exact, want)
	}
	return nil
}

// TestStorm runs readers concurrently with the writer; the race detector checks their shared memory.
func TestStorm(t *testing.T) {
	for _, workers := range []int{6, 90} {
		s := newStorm(t, workers)
		errs := make([]error, 4)
		var readers sync.WaitGroup
		for i := range errs {
			readers.Go(func() { errs[i] = s.read(uint64(i)) })
		}
		s.write(6_000)
		s.done.Store(true)
		readers.Wait()
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			t.Errorf("%d workers: %v", workers, errs[i])
		}
		if err := s.x.Check(); err != nil {
			t.Error(err)
		}
	}
}
