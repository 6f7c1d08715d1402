package pool

import (
	"errors"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/core/kv"
)

var randomRuns = flag.Int("pool-runs", 30, "runs of TestRandom, each with another seed")

// The random test: processes publish, acquire, read and hold blocks of which all know the right bytes. Any of them is
// killed or paused before any access to the memory.
const (
	randomBlocks    = 6
	randomProcesses = 4
	randomSteps     = 12_000
)

// world is what the processes of a run have in common.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	bytes  []byte
	now    kv.Mono
	all    []*Content
	hits   int
	kills  int
	pauses int
	ended  int
}

// runProcess is the life of a process, until it is killed.
func (w *world) runProcess(m Memory, worker kv.WorkerID) {
	p, err := Open(m, smallConfig)
	if err != nil {
		w.t.Error(err)
		return
	}
	type hold struct {
		c   *Content
		ref BlockRef
	}
	var held []hold
	for {
		if p.Renew(w.now) != nil {
			w.ended++
			held = nil
			if err := p.Join(w.now, kv.Worker{ID: worker}); err != nil {
				w.t.Error(err)
				return
			}
		}
		c := w.all[w.rng.IntN(len(w.all))]
		switch w.rng.IntN(8) {
		case 0, 1, 2:
			_, err = publish(p, w.now, c)
			if err != nil && !errors.Is(err, ErrExists) && !errors.Is(err, ErrFull) && !errors.Is(err, ErrEnded) {
				w.t.Error(err)
			}
		case 3:
			if b, _, err := p.Reserve(c, labelOf(c), nil); err == nil {
				p.Abort(&b)
			}
		case 4, 5:
			if f, ok := p.Acquire(c); ok {
				held = append(held, hold{c, f.Ref})
			}
		case 6:
			p.Reclaim(w.now, nil)
		default:
			if _, err := p.Find(c); err != nil {
				w.t.Error(err)
			}
		}
		for len(held) > w.rng.IntN(3) {
			h := held[0]
			held = held[1:]
			dst := make([]byte, p.BlockBytes())
			// In place, and by a copy.
			inPlace := m.Data.CopyOut(dst, p.BlockAt(h.ref)) == nil && string(dst) == string(dataOf(h.c, len(dst)))
			if p.Verify(h.ref) == nil {
				w.hits++
				if !inPlace {
					w.t.Errorf("block %x: wrong bytes in place", h.c.Name)
				}
			}
			if p.Read(h.ref, dst) == nil && string(dst) != string(dataOf(h.c, len(dst))) {
				w.t.Errorf("block %x: wrong bytes in a copy", h.c.Name)
			}
			p.Release(h.ref)
		}
	}
}

// TestRandom kills and pauses processes at random. No block has wrong bytes. With kills alone, the directory is consistent
// when a survivor has taken back what dead processes had. Paused processes damage blocks, which readers find out, and then
// it is consistent too. Nothing is leaked.
func TestRandom(t *testing.T) {
	var hits, kills, pauses, ended int
	for seed := range *randomRuns {
		w := &world{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 26)), bytes: newPool(t, smallConfig, randomBlocks)}
		for i := range 2 * randomBlocks {
			w.all = append(w.all, contentOf(1, i))
		}
		w.run(seed%3 != 0)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		hits, kills, pauses, ended = hits+w.hits, kills+w.kills, pauses+w.pauses, ended+w.ended
	}
	t.Logf("%d hits, %d kills, %d pauses, %d leases ended or begun", hits, kills, pauses, ended)
	if hits == 0 || kills == 0 || pauses == 0 {
		t.Error("nothing has happened")
	}
}

func (w *world) run(pausing bool) {
	t := w.t
	worker := kv.WorkerID(0)
	start := func() *process {
		worker++
		id := worker
		return startProcess(w.bytes, func(m Memory) { w.runProcess(m, id) })
	}
	var all []*process
	paused := map[*process]kv.Mono{} // until when
	for range randomProcesses {
		all = append(all, start())
	}
	for range randomSteps {
		i := w.rng.IntN(len(all))
		q := all[i]
		w.now = w.now.Add(testLease / 400)
		if until, ok := paused[q]; ok {
			if w.now < until {
				continue
			}
			delete(paused, q)
		}
		n := 1 + w.rng.IntN(3)
		if w.rng.IntN(4) > 0 {
			n = w.rng.IntN(200)
		}
		if !q.run(n) {
			t.Error("a process has ended")
			return
		}
		switch w.rng.IntN(300) {
		case 0:
			w.kills++
			q.kill()
			all[i] = start()
		case 1, 2:
			if pausing {
				w.pauses++
				paused[q] = w.now.Add(testLease/2 + time.Duration(w.rng.Int64N(int64(3*testLease))))
			}
		}
	}
	for _, q := range all {
		q.kill()
	}
	p, err := Open(mapBytes(t, w.bytes), smallConfig)
	if err != nil {
		t.Fatal(err)
	}
	p.Reclaim(w.now, nil)
	p.Reclaim(w.now.Add(testLease), nil)
	if err := p.Join(w.now, kv.Worker{ID: 1000}); err != nil {
		t.Fatal(err)
	}
	if pausing {
		scrub(t, p, w.all)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	if s := p.Stats(); s.Pinned != 0 || s.Owners != 1 || !pausing && s.InTransit != 0 {
		t.Errorf("%+v", s)
	}
	for i := range randomBlocks {
		if _, err := publish(p, w.now, contentOf(2, i)); err != nil {
			t.Errorf("block %d of a pool which is all free: %v", i, err)
		}
	}
	if s := p.Stats(); s.Pooled != randomBlocks {
		t.Errorf("%+v", s)
	}
}
