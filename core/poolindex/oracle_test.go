package poolindex

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

// naive is the naive twin of Table: the state of each block of each pool.
type naive struct {
	cfg    Config
	blocks map[blockInPool]BlockStatus
	access map[kv.PoolID][]kv.Worker
	// attached are the workers which moved blocks into a pool with lists of the blocks.
	attached map[kv.PoolID][]kv.Worker
	doubts   map[kv.Worker]kv.Mono
	serial   map[blockInPool]int // when it was added or last reported, to break ties in time
	n        int
}

// blockInPool is a block in a pool.
type blockInPool struct {
	pool kv.PoolID
	seq  kv.SeqHash
}

func newNaive(cfg Config) *naive {
	return &naive{cfg, map[blockInPool]BlockStatus{}, map[kv.PoolID][]kv.Worker{}, map[kv.PoolID][]kv.Worker{}, map[kv.Worker]kv.Mono{}, map[blockInPool]int{}, 0}
}

// of returns the entries of a block, in the order of AppendBlock.
func (n *naive) of(seq kv.SeqHash) []BlockStatus {
	var all []BlockStatus
	for k, b := range n.blocks {
		if k.seq == seq {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b BlockStatus) int {
		gone := func(b BlockStatus) int { return map[bool]int{true: 1}[b.State == kv.Evicted] }
		return cmp.Or(cmp.Compare(gone(a), gone(b)), cmp.Compare(b.Since, a.Since), cmp.Compare(b.Pool, a.Pool))
	})
	return all
}

func (n *naive) count(f func(kv.PoolID, BlockStatus) bool) (sum int) {
	for k, b := range n.blocks {
		if f(k.pool, b) {
			sum++
		}
	}
	return sum
}

func (n *naive) knows(p kv.PoolID) bool {
	_, said := n.access[p]
	return said || len(n.attached[p]) > 0 || n.count(func(pool kv.PoolID, _ BlockStatus) bool { return pool == p }) > 0
}

func (n *naive) pools() int {
	ids := map[kv.PoolID]bool{}
	for k := range n.blocks {
		ids[k.pool] = true
	}
	for p := range n.access {
		ids[p] = true
	}
	for p := range n.attached {
		ids[p] = true
	}
	return len(ids)
}

func (n *naive) set(k blockInPool, b BlockStatus) {
	n.n++
	n.blocks[k], n.serial[k] = b, n.n
}

// first returns, among the blocks for which f is true, the one longest in its state.
func (n *naive) first(f func(kv.PoolID, BlockStatus) bool) blockInPool {
	var found blockInPool
	var best *BlockStatus
	for k, b := range n.blocks {
		if f(k.pool, b) && (best == nil || b.Since < best.Since || b.Since == best.Since && n.serial[k] < n.serial[found]) {
			found, best = k, &b
		}
	}
	return found
}

func (n *naive) evict(now kv.Mono, k blockInPool, by kv.Worker) {
	n.set(k, BlockStatus{Pool: k.pool, State: kv.Evicted, Mover: by, Since: now, Label: n.blocks[k].Label})
	gone := func(_ kv.PoolID, b BlockStatus) bool { return b.State == kv.Evicted }
	if n.count(gone) > n.cfg.MaxEvicted {
		delete(n.blocks, n.first(gone))
	}
}

// keys returns all blocks by state, in the order in which they entered it.
func (n *naive) keys() []blockInPool {
	return slices.SortedFunc(maps.Keys(n.blocks), func(a, b blockInPool) int {
		return cmp.Or(cmp.Compare(n.blocks[a].State, n.blocks[b].State), cmp.Compare(n.serial[a], n.serial[b]))
	})
}

func (n *naive) move(now kv.Mono, w kv.Worker, ev *kv.Event) {
	m := ev.Move
	if m.HasPool {
		if !n.knows(m.Pool) && n.pools() >= n.cfg.MaxPools {
			if comes := m.Access != nil && !m.OfBlocks || m.To == kv.InTransit || m.To == kv.Pooled; !comes || !n.vacate() {
				return
			}
		}
		n.say(m.Pool, w, &m)
		if m.To == kv.Evicted && len(ev.Seqs) == 0 {
			for _, k := range n.keys() {
				if b, ok := n.blocks[k]; ok && k.pool == m.Pool && b.State != kv.Evicted {
					n.evict(now, k, w)
				}
			}
		}
	}
	if m.HasPool && m.To == kv.LocalGPU && len(ev.Seqs) == 0 {
		for k, b := range n.blocks {
			if k.pool == m.Pool && b.Mover == w && b.State != kv.Evicted {
				delete(n.blocks, k)
			}
		}
	}
	for i, seq := range ev.Seqs {
		pool := m.Pool
		if !m.HasPool {
			all := n.of(seq)
			if len(all) == 0 {
				continue
			}
			pool = all[0].Pool
			n.say(pool, w, &m)
		}
		var access []kv.Worker
		if m.OfBlocks && m.Access != nil {
			access = sortedWorkers(m.Access)
		}
		n.applyMove(now, w, blockInPool{pool, seq}, m.To, eventLabel(ev, i), access)
	}
}

// vacate forgets a pool of which only the access list is known.
func (n *naive) vacate() bool {
	ids := slices.AppendSeq(slices.Collect(maps.Keys(n.access)), maps.Keys(n.attached))
	slices.Sort(ids)
	for _, p := range ids {
		if n.count(func(of kv.PoolID, _ BlockStatus) bool { return of == p }) == 0 {
			delete(n.access, p)
			delete(n.attached, p)
			return true
		}
	}
	return false
}

func (n *naive) say(p kv.PoolID, w kv.Worker, m *kv.PoolMove) {
	switch {
	case !m.OfBlocks && m.Access != nil:
		n.access[p] = sortedWorkers(m.Access)
	case m.OfBlocks && (m.To == kv.InTransit || m.To == kv.Pooled):
		n.attached[p] = sortedWorkers(append(n.attached[p], w))
	}
}

// detach makes a worker none which attached pools.
func (n *naive) detach(w kv.Worker) {
	for p, workers := range n.attached {
		if n.attached[p] = slices.DeleteFunc(workers, func(o kv.Worker) bool { return o == w }); len(n.attached[p]) == 0 {
			delete(n.attached, p)
		}
	}
}

func sortedWorkers(workers []kv.Worker) []kv.Worker {
	list := append([]kv.Worker{}, workers...)
	slices.SortFunc(list, kv.Worker.Compare)
	return slices.Compact(list)
}

// reaches returns the workers which can attach a block with this access list in a pool.
func (n *naive) reaches(p kv.PoolID, list []kv.Worker) (workers []kv.Worker) {
	access, known := n.access[p]
	switch {
	case list == nil && known:
		return access
	case list == nil:
		return n.attached[p]
	}
	for _, w := range list {
		if !known || slices.Contains(access, w) {
			workers = append(workers, w)
		}
	}
	return workers
}

// applyMove implements the table of the package comment literally.
func (n *naive) applyMove(now kv.Mono, w kv.Worker, k blockInPool, to kv.PoolState, label *kv.MoELabel, access []kv.Worker) {
	b, known := n.blocks[k]
	mine := b.Mover == w
	switch to {
	case kv.LocalGPU:
		if known && (mine || b.State == kv.Evicted) {
			delete(n.blocks, k)
		}
	case kv.InTransit:
		switch {
		case known && b.State == kv.Pooled && !mine:
		case known && b.State == kv.InTransit && mine:
			if label != nil {
				b.Label = *label
			}
			if access != nil {
				b.Access = access
			}
			n.blocks[k] = b
		default:
			n.come(now, w, k, to, label, access)
		}
	case kv.Pooled:
		n.come(now, w, k, to, label, access)
	case kv.Evicted:
		if known && b.State != kv.Evicted {
			n.evict(now, k, w)
		}
	}
}

func (n *naive) come(now kv.Mono, w kv.Worker, k blockInPool, to kv.PoolState, label *kv.MoELabel, access []kv.Worker) {
	b, known := n.blocks[k]
	if (!known || b.State == kv.Evicted) && n.count(func(_ kv.PoolID, b BlockStatus) bool { return b.State != kv.Evicted }) >= n.cfg.MaxBlocks {
		return
	}
	parked := b.Parked && b.State == kv.Pooled && to == kv.Pooled
	if label != nil {
		b.Label = *label
	}
	if access != nil {
		b.Access = access
	}
	n.set(k, BlockStatus{Pool: k.pool, State: to, Mover: w, Since: now, Parked: parked, Label: b.Label, Access: b.Access})
	here := func(p kv.PoolID, b BlockStatus) bool { return p == k.pool && b.State == kv.Pooled }
	if n.cfg.Capacity > 0 && n.count(here) > n.cfg.Capacity {
		k := n.first(here)
		n.evict(now, k, n.blocks[k].Mover)
	}
}

func (n *naive) doubt(now kv.Mono, w kv.Worker) {
	for k, b := range n.blocks {
		if b.Mover == w && b.State == kv.Pooled {
			b.Doubt, b.Parked = true, false
			n.blocks[k] = b
			n.doubts[w] = now
		}
	}
}

func (n *naive) lost(w kv.Worker) {
	for k, b := range n.blocks {
		if b.Mover == w && b.Doubt {
			delete(n.blocks, k)
		}
	}
}

func (n *naive) trust(w kv.Worker) {
	for k, b := range n.blocks {
		if b.Mover == w {
			b.Doubt = false
			n.blocks[k] = b
		}
	}
}

func (n *naive) tick(now kv.Mono) {
	old := func(b BlockStatus, d time.Duration) bool { return now.Sub(b.Since) >= d }
	for _, k := range n.keys() {
		if b, ok := n.blocks[k]; ok && b.State == kv.InTransit && old(b, n.cfg.TransitTimeout) {
			n.evict(now, k, b.Mover)
		}
	}
	for k, b := range n.blocks {
		if b.Doubt && now.Sub(n.doubts[b.Mover]) >= n.cfg.SuspectTimeout || b.State == kv.Evicted && old(b, n.cfg.EvictedRetention) {
			delete(n.blocks, k)
		}
	}
}

func (n *naive) drop(p kv.PoolID) {
	delete(n.access, p)
	delete(n.attached, p)
	for k := range n.blocks {
		if k.pool == p {
			delete(n.blocks, k)
		}
	}
}

// index applies effects like a prefix index. It has a place for the blocks in known.
type index struct {
	n      *naive
	known  map[kv.SeqHash]bool
	placed map[blockInShare]kv.MoELabel
	access map[kv.PoolShare][]kv.Worker
}

// blockInShare is a block in a share of a pool.
type blockInShare struct {
	share kv.PoolShare
	seq   kv.SeqHash
}

func (x *index) AddToPool(p kv.PoolShare, seqs []kv.SeqHash, labels []kv.MoELabel) (placed int) {
	for i, s := range seqs {
		if in := (blockInShare{p, s}); x.known[s] {
			x.placed[in] = kv.MoELabel{}
			if labels != nil {
				x.placed[in] = labels[i]
			}
			placed++
			continue
		}
		k := blockInPool{p.Pool(), s}
		if b, ok := x.n.blocks[k]; ok && b.State == kv.Pooled && !b.Doubt {
			b.Parked = true
			x.n.blocks[k] = b
		}
	}
	return placed
}

func (x *index) RemoveFromPool(p kv.PoolShare, seqs []kv.SeqHash) {
	for _, s := range seqs {
		delete(x.placed, blockInShare{p, s})
	}
}

func (x *index) SetAccess(p kv.PoolShare, workers []kv.Worker) { x.access[p] = workers }

func (x *index) DropPool(p kv.PoolShare) {
	delete(x.access, p)
	for k := range x.placed {
		if k.share == p {
			delete(x.placed, k)
		}
	}
}

// TestAgainstNaive moves random blocks, and compares the index with the twin's after each step. It also
// replaces the table by its loaded snapshots.
func TestAgainstNaive(t *testing.T) {
	chain := []kv.SeqHash{block("a"), block("ab"), block("abc"), block("abcd"), block("x")}
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.SampledFrom([]int{0, 2, 3})
		cfg := Config{
			TransitTimeout: 3, SuspectTimeout: 4, EvictedRetention: 6,
			Capacity: small.Draw(t, "capacity"), MaxBlocks: small.Draw(t, "blocks"), MaxEvicted: small.Draw(t, "evicted"), MaxPools: rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "pools"),
		}
		cfg.EnsureDefaults()
		table, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		n := newNaive(cfg)
		x := &index{n, map[kv.SeqHash]bool{chain[0]: true, chain[4]: true}, map[blockInShare]kv.MoELabel{}, map[kv.PoolShare][]kv.Worker{}}
		now := kv.Mono(0)
		workers := rapid.Map(rapid.IntRange(1, 3), func(i int) kv.Worker { return kv.Worker{ID: kv.WorkerID(i), Rank: uint32(i % 2)} })
		pools := rapid.Map(rapid.IntRange(0, 2), func(i int) kv.PoolID { return kv.PoolID(i) })
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += kv.Mono(rapid.IntRange(0, 2).Draw(t, "later"))
			// A shell ticks before it does anything else at a given time.
			table.ApplyEffects(x, table.Tick(now, nil))
			n.tick(now)
			switch rapid.IntRange(0, 12).Draw(t, "what") {
			case 0:
				w := workers.Draw(t, "doubted")
				n.doubt(now, w)
				table.ApplyEffects(x, table.SuspectWorker(now, w, nil))
			case 1:
				w := workers.Draw(t, "trusted")
				n.trust(w)
				table.ApplyEffects(x, table.TrustWorker(w, nil))
			case 2:
				p := pools.Draw(t, "dropped")
				n.drop(p)
				table.ApplyEffects(x, table.DropPool(p, nil))
			case 3: // a worker stores the first three blocks of the chain
				for _, s := range chain[:3] {
					x.known[s] = true
				}
				for k, b := range n.blocks {
					if slices.Contains(chain[:3], k.seq) {
						b.Parked = false
						n.blocks[k] = b
					}
				}
				table.ApplyEffects(x, table.RetryParked(&kv.Event{Kind: kv.Stored, Blocks: []kv.BlockHash{'a', 'b', 'c'}}, nil))
			case 4:
				w := workers.Draw(t, "lost")
				n.lost(w)
				table.ForgetLost(w)
			case 6:
				w := workers.Draw(t, "detached")
				n.detach(w)
				table.ApplyEffects(x, table.DetachWorker(w, nil))
			case 5:
				table = again(t, cfg, table, now)
			default:
				ev := &kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: kv.PoolState(rapid.IntRange(1, 4).Draw(t, "to"))}}
				if ev.Move.HasPool = rapid.IntRange(0, 3).Draw(t, "has pool") > 0; ev.Move.HasPool {
					ev.Move.Pool = pools.Draw(t, "pool")
				}
				if rapid.IntRange(0, 4).Draw(t, "has access") == 0 {
					ev.Move.Access = append([]kv.Worker{}, rapid.SliceOfN(workers, 0, 3).Draw(t, "access")...)
				}
				ev.Move.OfBlocks = rapid.Bool().Draw(t, "of blocks")
				ev.Seqs = rapid.SliceOfN(rapid.SampledFrom(chain), 0, 3).Draw(t, "blocks")
				if rapid.Bool().Draw(t, "labelled") {
					ev.Labels = rapid.SliceOfN(rapid.SampledFrom([]kv.MoELabel{{}, {Has: kv.HasExpert, Layer: 2, Expert: 7}, {Has: kv.HasExpert, Layer: 2, Expert: 8}}), len(ev.Seqs), len(ev.Seqs)).Draw(t, "labels")
				}
				w := workers.Draw(t, "mover")
				n.move(now, w, ev)
				table.ApplyEffects(x, table.ApplyMove(now, w, ev, nil))
			}
			agrees(t, table, n, x, chain)
		}
	})
}

func agrees(t *rapid.T, table *Table, n *naive, x *index, chain []kv.SeqHash) {
	if err := table.Check(); err != nil {
		t.Fatal(err)
	}
	for _, s := range chain {
		if diff := gocmp.Diff(n.of(s), table.AppendBlock(nil, s)); diff != "" {
			t.Fatalf("block %s: -naive +table\n%s", name(s), diff)
		}
	}
	type placed struct {
		Label  kv.MoELabel
		Access []kv.Worker
	}
	want, got := map[blockInPool]placed{}, map[blockInPool]placed{}
	for k, b := range n.blocks {
		if b.State == kv.Pooled && !b.Doubt && !b.Parked {
			want[k] = placed{b.Label, n.reaches(k.pool, b.Access)}
		}
	}
	for k, label := range x.placed {
		got[blockInPool{k.share.Pool(), k.seq}] = placed{label, x.access[k.share]}
	}
	if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || len(got) != len(x.placed) {
		t.Fatalf("%d blocks are placed: -naive +index\n%s", len(x.placed), diff)
	}
	whole, reach := map[kv.PoolID][]kv.Worker{}, map[kv.PoolID][]kv.Worker{}
	for p, workers := range x.access {
		if !p.IsPart() {
			whole[p.Pool()] = workers
		}
	}
	for _, p := range slices.AppendSeq(slices.Collect(maps.Keys(n.access)), maps.Keys(n.attached)) {
		reach[p] = n.reaches(p, nil)
	}
	empty := func(_ kv.PoolID, workers []kv.Worker) bool { return len(workers) == 0 }
	maps.DeleteFunc(reach, empty)
	maps.DeleteFunc(whole, empty)
	if diff := gocmp.Diff(reach, whole, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("access: -naive +index\n%s", diff)
	}
	if got, want := table.Stats().Pools, n.pools(); got != want {
		t.Fatalf("%d pools, want %d", got, want)
	}
}

// relabelled checks the effects of loaded labels: each labelled block which the index has is placed once, with its
// label.
func relabelled(t *rapid.T, table *Table, effects []Effect) {
	got := map[blockInShare]kv.MoELabel{}
	for _, e := range effects {
		if e.Kind != Place || len(e.Labels) != len(e.Seqs) {
			t.Fatalf("effect %+v", e)
		}
		for i, seq := range e.Seqs {
			got[blockInShare{e.Pool, seq}] = e.Labels[i]
		}
	}
	want := map[blockInShare]kv.MoELabel{}
	for i := range table.entries {
		if e := &table.entries[i]; e.state == kv.Pooled && !e.suspect && !e.parked && e.label.Has != 0 {
			want[blockInShare{table.shareOf(e), e.seq}] = e.label
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("placed with labels: %v, want %v", got, want)
	}
}

// again returns a table loaded from a snapshot of t, with a clock which is moved back to test the ages.
func again(t *rapid.T, cfg Config, table *Table, now kv.Mono) *Table {
	data, labels, lists := table.AppendSnapshot(nil, now), table.AppendLabels(nil), table.AppendLists(nil)
	other, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.LoadSnapshot(data, now); err != nil {
		t.Fatal(err)
	}
	if err := other.LoadLists(lists); err != nil {
		t.Fatal(err)
	}
	if got := other.AppendLists(nil); !bytes.Equal(got, lists) {
		t.Fatalf("the access lists of a snapshot are\n%x, not\n%x", got, lists)
	}
	if !table.HasLists() && len(lists) > 1+4+4 {
		t.Fatalf("there are no access lists, but\n%x", lists)
	}
	effects, err := other.LoadLabels(labels, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := other.AppendLabels(nil); !bytes.Equal(got, labels) {
		t.Fatalf("the labels of a snapshot are\n%x, not\n%x", got, labels)
	}
	relabelled(t, table, effects)
	if got := other.AppendSnapshot(nil, now); !bytes.Equal(got, data) {
		t.Fatalf("the snapshot of a snapshot is\n%x, not\n%x", got, data)
	}
	later, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := later.LoadSnapshot(data, now+1000); err != nil {
		t.Fatal(err)
	}
	if err := later.LoadLists(lists); err != nil {
		t.Fatal(err)
	}
	if got := later.AppendSnapshot(nil, now+1000); !bytes.Equal(got, data) {
		t.Fatalf("with another clock the snapshot is\n%x, not\n%x", got, data)
	}
	return other
}

// TestSnapshotIsWhole: a truncated snapshot, one with an extra byte, and one of an unknown version are
// refused.
func TestSnapshotIsWhole(t *testing.T) {
	data := sample(t).AppendSnapshot(nil, 9)
	for n := range len(data) {
		if err := mustNew(t, Config{}).LoadSnapshot(data[:n], 9); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(data))
		}
	}
	if err := mustNew(t, Config{}).LoadSnapshot(append(data, 0), 9); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("with a byte more: %v", err)
	}
	data[0]++
	if err := mustNew(t, Config{}).LoadSnapshot(data, 9); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
}

// TestSnapshotBeyondBounds: a table with smaller bounds loads what fits.
func TestSnapshotBeyondBounds(t *testing.T) {
	data := sample(t).AppendSnapshot(nil, 9)
	small := mustNew(t, Config{MaxPools: 1, MaxBlocks: 2, MaxEvicted: 1})
	if err := small.LoadSnapshot(data, 9); err != nil {
		t.Fatal(err)
	}
	if err := small.Check(); err != nil {
		t.Error(err)
	}
	if st := small.Stats(); st.Counts.Refused == 0 || st.Pools != 1 {
		t.Errorf("%+v", st)
	}
}

func mustNew(t testing.TB, cfg Config) *Table {
	t.Helper()
	table, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// sample returns a table with everything which a snapshot can contain.
func sample(t testing.TB) *Table {
	table := mustNew(t, Config{})
	move := func(now kv.Mono, id kv.WorkerID, to kv.PoolState, pool kv.PoolID, access []kv.Worker, names ...string) {
		ev := &kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: to, Pool: pool, HasPool: true, Access: access}}
		for _, n := range names {
			ev.Seqs = append(ev.Seqs, block(n))
		}
		table.ApplyMove(now, kv.Worker{ID: id}, ev, nil)
	}
	move(1, 1, kv.Pooled, 4, []kv.Worker{{ID: 1}, {ID: 2, Rank: 3}}, "a", "ab", "abc")
	move(2, 2, kv.InTransit, 4, nil, "abcd")
	move(3, 3, kv.Pooled, 7, nil, "a", "x", "xy")
	move(4, 1, kv.Evicted, 4, nil, "abc")
	table.SuspectWorker(5, kv.Worker{ID: 3}, nil)
	table.parkBlock(4, block("ab"))
	return table
}

func FuzzLoadSnapshot(f *testing.F) {
	f.Add(sample(f).AppendSnapshot(nil, 9))
	f.Add(mustNew(f, Config{}).AppendSnapshot(nil, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		table := mustNew(t, Config{})
		if err := table.LoadSnapshot(data, 9); err != nil {
			if st := table.Stats(); st != (Stats{}) {
				t.Fatalf("after %v the table has %+v", err, st)
			}
			return
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
		if len(table.entries) > len(data) {
			t.Fatalf("%d bytes became %d entries", len(data), len(table.entries))
		}
		once := table.AppendSnapshot(nil, 9)
		again := mustNew(t, Config{})
		if err := again.LoadSnapshot(once, 9); err != nil {
			t.Fatal(err)
		}
		if twice := again.AppendSnapshot(nil, 9); !bytes.Equal(once, twice) {
			t.Fatalf("%x\n%x", once, twice)
		}
	})
}

// TestPoolsComeAndGo: emptied pools do not prevent later ones.
func TestPoolsComeAndGo(t *testing.T) {
	table := mustNew(t, Config{})
	w := kv.Worker{ID: 1}
	for id := range kv.PoolID(1000) {
		for _, ev := range []kv.Event{
			{Kind: kv.Moved, Seqs: []kv.SeqHash{1}, Move: kv.PoolMove{To: kv.Pooled, Pool: id, HasPool: true, Access: []kv.Worker{w}}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{1}, Move: kv.PoolMove{To: kv.LocalGPU, Pool: id, HasPool: true}},
		} {
			table.ApplyMove(0, w, &ev, nil)
		}
	}
	if st := table.Stats(); st.Counts.Refused > 0 || st.Pools != 256 {
		t.Errorf("%+v", st)
	}
	if err := table.Check(); err != nil {
		t.Error(err)
	}
}
