package pool

import (
	"errors"
	"testing"

	"penstock/core/kv"
)

// life is what a process of these tests does: it publishes, aborts, acquires, reads, evicts and leaves.
func life(m Memory, cfg Config, published func(*Content, error)) {
	p, err := Open(m, cfg)
	if err == nil {
		err = p.Join(0, kv.Worker{ID: 77})
	}
	if err != nil {
		published(nil, err)
		return
	}
	for n := range 3 { // the last one evicts
		c := contentOf(9, n)
		_, err := publish(p, 0, c)
		published(c, err)
	}
	if w, _, err := p.Reserve(contentOf(9, 5), kv.MoELabel{}, nil); err == nil {
		_ = p.Write(0, &w, make([]byte, min(ChunkBytes, p.BlockBytes())))
		p.Abort(&w)
	}
	var held []BlockRef
	for n := range 2 {
		if f, ok := p.Acquire(contentOf(9, n)); ok {
			_ = p.Read(f.Ref, make([]byte, p.BlockBytes()))
			held = append(held, f.Ref)
		}
	}
	_ = p.Renew(0)
	for _, ref := range held {
		p.Release(ref)
	}
	p.Leave()
}

// prepared returns a pool of four blocks with two blocks of another owner, which lives.
func prepared(t *testing.T, cfg Config) (b []byte, other *View) {
	t.Helper()
	b = newPool(t, cfg, 4)
	other = join(t, mapBytes(t, b), cfg, 1)
	mustPublish(t, other, contentOf(1, 0))
	mustPublish(t, other, contentOf(1, 1))
	return b, other
}

var ofLife = []*Content{contentOf(1, 0), contentOf(1, 1), contentOf(9, 0), contentOf(9, 1), contentOf(9, 2), contentOf(9, 5)}

// checkWhole: nothing is wrong with a pool, no place is lost, and no block has wrong bytes.
func checkWhole(t *testing.T, p *View, now kv.Mono) {
	t.Helper()
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	if s := p.Stats(); s.InTransit != 0 || s.Pinned != 0 || s.Owners != 1 {
		t.Errorf("%+v", s)
	}
	scrub(t, p, ofLife)
	for n := range p.Blocks() {
		if _, err := publish(p, now, contentOf(5, n)); err != nil {
			t.Errorf("block %d of a pool which is all free: %v", n, err)
		}
	}
	if s := p.Stats(); s.Pooled != p.Blocks() {
		t.Errorf("%+v", s)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

// TestKilledAnywhere kills a process before each of its writes: the survivor takes all back, the directory is consistent,
// and no block has wrong bytes.
func TestKilledAnywhere(t *testing.T) {
	killAnywhere(t, smallConfig, 1)
	killAnywhere(t, testConfig, 11)
}

func killAnywhere(t *testing.T, cfg Config, every int) {
	t.Helper()
	for k := 0; ; k += every {
		b, other := prepared(t, cfg)
		q := startProcess(b, func(m Memory) { life(m, cfg, func(*Content, error) {}) })
		q.mem.loads = false
		alive := q.run(k)
		q.kill()
		now, _ := reclaim(t, other, 0)
		checkWhole(t, other, now)
		if t.Failed() {
			t.Fatalf("killed before write %d", k)
		}
		if !alive {
			t.Logf("%d writes", k)
			return
		}
	}
}

// TestReclaimKilledAnywhere kills a survivor before each write with which it takes back what a dead process had: another
// one goes on.
func TestReclaimKilledAnywhere(t *testing.T) {
	for k := 0; ; k++ {
		b, other := prepared(t, smallConfig)
		dead := join(t, mapBytes(t, b), smallConfig, 2)
		if _, ok := dead.Acquire(contentOf(1, 0)); !ok {
			t.Fatal("the block is not there")
		}
		if _, _, err := dead.Reserve(contentOf(9, 0), kv.MoELabel{}, nil); err != nil {
			t.Fatal(err)
		}
		q := startProcess(b, func(m Memory) {
			if p, err := Open(m, smallConfig); err == nil {
				p.Reclaim(0, nil)
				_ = other.Renew(0)
				p.Reclaim(kv.Mono(testLease), nil)
			}
		})
		q.mem.loads = false
		alive := q.run(k)
		q.kill()
		now, _ := reclaim(t, other, 0)
		checkWhole(t, other, now)
		if t.Failed() {
			t.Fatalf("killed before write %d", k)
		}
		if !alive {
			t.Logf("%d writes", k)
			return
		}
	}
}

// TestFormatKilledAnywhere kills a process which formats memory with any content: it is no pool, and can be formatted.
func TestFormatKilledAnywhere(t *testing.T) {
	for k := 0; ; k += 7 {
		b := newMemory(t, smallConfig, 3)
		for i := range b {
			b[i] = 0xa5
		}
		q := startProcess(b, func(m Memory) { _ = Format(m, smallConfig, testGeneration) })
		q.mem.loads = false
		alive := q.run(k)
		q.kill()
		m := mapBytes(t, b)
		if _, err := Open(m, smallConfig); alive == (err == nil) {
			t.Fatalf("killed before write %d: %v", k, err)
		}
		if !alive {
			return
		}
		if err := Format(m, smallConfig, testGeneration); err != nil {
			t.Fatal(err)
		}
		checkWhole(t, join(t, m, smallConfig, 1), 0)
	}
}

// TestPausedAnywhere pauses a process before each access for longer than its lease. Meanwhile a survivor takes back what it
// had, another owner gets its slot, reserves and acquires blocks, and the pool is filled. When the process goes on it
// publishes nothing which it had not published before, and changes nothing which is another's by then.
func TestPausedAnywhere(t *testing.T) {
	for k := 0; ; k++ {
		b, other := prepared(t, smallConfig)
		done := map[kv.SeqHash]bool{}
		resumed := false
		q := startProcess(b, func(m Memory) {
			life(m, smallConfig, func(c *Content, err error) {
				switch {
				case err == nil && !resumed:
					done[c.Name] = true
				case err == nil && done[c.Name]:
				case err == nil:
					t.Errorf("block %x was published after the pause", c.Name)
				case resumed && !errors.Is(err, ErrEnded):
					t.Errorf("after the pause: %v", err)
				}
			})
		})
		if !q.run(k) {
			t.Logf("%d accesses", k)
			return
		}
		if s := other.loadLife(1).state(); s != lifeLive && s != lifeEnding { // it has not joined, or it has left
			q.kill()
			continue
		}
		now, _ := reclaim(t, other, 0)
		heir := joinAt(t, now, mapBytes(t, b), smallConfig, 3)
		if heir.owner != 1 {
			t.Fatalf("the slot of the dead process is not free: %d", heir.owner)
		}
		mustPublish(t, heir, contentOf(2, 0))
		held, ok := heir.Acquire(contentOf(2, 0))
		if !ok {
			t.Fatal("the block of the heir is not there")
		}
		w, _, err := heir.Reserve(contentOf(2, 1), labelOf(contentOf(2, 1)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeAll(heir, now, &w, dataOf(contentOf(2, 1), heir.BlockBytes())); err != nil {
			t.Fatal(err)
		}
		resumed = true
		q.toEnd()
		if err := heir.Publish(&w); err != nil {
			t.Errorf("what the heir has reserved was changed: %v", err)
		}
		if !heir.hasPin(held.Ref.Entry) {
			t.Error("the heir's pin was taken")
		}
		if s := heir.Stats(); s.Pinned != 1 || s.Owners != 2 || s.InTransit != 0 {
			t.Errorf("%+v", s)
		}
		scrub(t, other, append(ofLife, contentOf(2, 0), contentOf(2, 1)))
		heir.Leave()
		checkWhole(t, other, now)
		if t.Failed() {
			t.Fatalf("paused before access %d", k)
		}
	}
}

func (p *View) hasPin(e int32) bool {
	return p.words.Load(p.lay.entryAt(e)+wordPins)&(1<<p.owner) != 0
}

// TestPausedReclaimAnywhere pauses a survivor before each access with which it takes back what a dead process had. Another
// survivor overtakes it, and another owner gets the slot: the first survivor takes nothing of it.
func TestPausedReclaimAnywhere(t *testing.T) {
	for k := 0; ; k++ {
		b, other := prepared(t, smallConfig)
		dead := join(t, mapBytes(t, b), smallConfig, 2)
		if _, ok := dead.Acquire(contentOf(1, 0)); !ok {
			t.Fatal("the block is not there")
		}
		q := startProcess(b, func(m Memory) {
			if p, err := Open(m, smallConfig); err == nil {
				p.Reclaim(0, nil)
				_ = other.Renew(0)
				p.Reclaim(kv.Mono(testLease), nil)
			}
		})
		if !q.run(k) {
			t.Logf("%d accesses", k)
			return
		}
		if now, _ := reclaim(t, other, 0); now == 0 {
			t.Fatal("no time has passed")
		}
		heir := join(t, mapBytes(t, b), smallConfig, 3)
		held, ok := heir.Acquire(contentOf(1, 0))
		w, _, err := heir.Reserve(contentOf(2, 1), kv.MoELabel{}, nil)
		if !ok || err != nil || heir.owner != dead.owner {
			t.Fatal(ok, err, heir.owner)
		}
		q.toEnd()
		if heir.IsOwner() && (!heir.hasPin(held.Ref.Entry) || heir.loadEntry(w.entry) != w.word) {
			t.Fatalf("paused before access %d: the heir has lost what is its own", k)
		}
	}
}

// TestPausedReader pauses a reader before each access, while its block is evicted and its place is taken, unless it pins the
// block. If it acquires the block, the block is there.
func TestPausedReader(t *testing.T) {
	for k := 0; ; k++ {
		b := newPool(t, smallConfig, 1)
		other := join(t, mapBytes(t, b), smallConfig, 1)
		mustPublish(t, other, contentOf(1, 0))
		q := startProcess(b, func(m Memory) {
			p := join(t, m, smallConfig, 2)
			f, ok := p.Acquire(contentOf(1, 0))
			if !ok {
				return
			}
			if err := p.Verify(f.Ref); err != nil {
				t.Errorf("paused before access %d: %v", k, err)
			}
			p.Release(f.Ref)
		})
		if !q.run(k) {
			t.Logf("%d accesses", k)
			return
		}
		_, err := publish(other, 0, contentOf(2, 0))
		q.toEnd()
		if s := other.Stats(); s.Pinned != 0 || err != nil && !errors.Is(err, ErrFull) {
			t.Fatalf("paused before access %d: %+v, %v", k, s, err)
		}
	}
}

// TestPausedEvictor pauses a process which evicts a block before each access, while a reader acquires the block: as long as
// the reader has it, its memory stays.
func TestPausedEvictor(t *testing.T) {
	for k := 0; ; k++ {
		b := newPool(t, smallConfig, 2)
		other := join(t, mapBytes(t, b), smallConfig, 1)
		mustPublish(t, other, contentOf(1, 0))
		mustPublish(t, other, contentOf(1, 2))
		q := startProcess(b, func(m Memory) { mustPublish(t, join(t, m, smallConfig, 2), contentOf(2, 0)) })
		if !q.run(k) {
			t.Logf("%d accesses", k)
			return
		}
		f, ok := other.Acquire(contentOf(1, 0))
		q.toEnd()
		if ok {
			if err := other.Verify(f.Ref); err != nil {
				t.Fatalf("paused before access %d: %v", k, err)
			}
		}
	}
}
