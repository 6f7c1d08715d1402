package prefix

import (
	"encoding/binary"
	"testing"

	"penstock/core/kv"
)

// TestAccessListsLeaveNothingBehind: a pool whose access list keeps changing to unknown workers makes no more
// of them known than its last list has.
func TestAccessListsLeaveNothingBehind(t *testing.T) {
	x := mustNew(t, Config{})
	held, hidden := kv.Worker{ID: 1}, kv.Worker{ID: 2}
	x.ApplyEvent(held, stored("", "a", kv.TierDevice))
	x.HideWorker(hidden)
	next := kv.WorkerID(10)
	for range 100 {
		list := []kv.Worker{held, hidden}
		for range 1000 {
			list = append(list, kv.Worker{ID: next})
			next++
		}
		x.SetAccess(1, list)
		x.SetAccess(2, list[:500])
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
	if n := x.Stats().Workers; n != 1002 {
		t.Errorf("%d workers are known, want 1002", n)
	}
	x.DropPool(1)
	if n := x.Stats().Workers; n != 500 {
		t.Errorf("%d workers are known without the first pool, want 500", n)
	}
	x.SetAccess(2, nil)
	if n := x.Stats().Workers; n != 2 {
		t.Errorf("%d workers are known without lists, want 2", n)
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestListsOfMillions: beyond a bound, unknown workers get access only when they are added by other calls.
func TestListsOfMillions(t *testing.T) {
	x := mustNew(t, Config{})
	list := make([]kv.Worker, 1_000_000)
	for i := range list {
		list[i].ID = kv.WorkerID(i + 1)
	}
	x.SetAccess(1, list)
	x.SetAccess(2, list)
	if n := x.Stats().Workers; n != maxIdle {
		t.Errorf("%d workers are known, want %d", n, maxIdle)
	}
	last, other := list[len(list)-1], kv.Worker{ID: kv.MaxWorkerID}
	x.ApplyEvent(other, stored("", "a/b", kv.TierDevice))
	x.AddToPool(1, []kv.SeqHash{seqOf("a/b"), seqOf("a")}, nil)
	x.ApplyEvent(last, kv.Event{Kind: kv.Cleared})
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
	var m Match
	x.Match(&m, []kv.SeqHash{seqOf("a"), seqOf("a/b")}, nil)
	for _, o := range m.AppendOverlaps(nil) {
		if o.Worker == last && o.Blocks[kv.TierPool] == 2 {
			return
		}
	}
	t.Errorf("worker %v cannot attach the pool", last)
}

// TestSnapshotsMadeToTakeLong: each item of a snapshot takes constant time, however many of one kind there
// are. Each of these snapshots would take minutes if an item took time proportional to all before it.
func TestSnapshotsMadeToTakeLong(t *testing.T) {
	const many = 300_000
	number := func(dst []byte, n int) []byte { return binary.AppendUvarint(dst, uint64(n)) }
	workers := number([]byte{snapshotVersion}, many)
	for i := range many {
		workers = append(number(number(workers, i+1), 0), 0)
	}
	pools := number(nil, many)
	for i := range many {
		pools = number(number(pools, i+1), 0)
	}
	hash := func(dst []byte, n int) []byte { return binary.LittleEndian.AppendUint64(dst, uint64(n)) }
	// Pages with one block each, of the first and the last worker.
	pages := number(nil, 1000)
	for i := range 1000 {
		pages = hash(append(pages, 0, 0), i+1)
		pages = number(append(pages, groupAll|groupOne), many-1)
	}
	// One page with a block in each pool.
	pooled := append(number(nil, 1), 0, pageGroups|pagePools)
	pooled = number(number(hash(pooled, 7), 0), many)
	for i := range many {
		pooled = hash(number(pooled, i), 1)
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for name, c := range map[string]struct {
		data []byte
		ok   bool
	}{
		"workers":          {join(workers, []byte{0, 0}), true},
		"workers, refused": {join(workers, []byte{0, 0, 0}), false},
		"pools":            {join(workers, pools, []byte{0}), true},
		"pools, refused":   {join(workers, pools, []byte{0, 0}), false},
		"pages":            {join(workers, []byte{0}, pages), true},
		"pooled":           {join(workers, pools, pooled), true},
		"pooled, refused":  {join(workers, pools, pooled, []byte{0}), false},
	} {
		x := mustNew(t, Config{})
		if err := x.LoadSnapshot(c.data); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if s := x.Stats(); !c.ok && (s != Stats{}) {
			t.Errorf("%s: after an error there is %+v", name, s)
		}
	}
}

// TestRefusedSnapshotLeavesNothing: an index which refused a snapshot is like a new one.
func TestRefusedSnapshotLeavesNothing(t *testing.T) {
	data := sampled(t).AppendSnapshot(nil)
	x := mustNew(t, Config{})
	for n := range data {
		if err := x.LoadSnapshot(data[:n]); err == nil {
			t.Fatalf("the first %d bytes are taken for the whole", n)
		}
		if err := x.Check(); err != nil {
			t.Fatalf("after the first %d bytes: %v", n, err)
		}
	}
	if err := x.LoadSnapshot(data); err != nil {
		t.Fatal(err)
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestHashesMadeToMeet: hashes chosen to collide in the tables do not collide if the seed is unknown. With
// seed 0 the first kind would take many minutes.
func TestHashesMadeToMeet(t *testing.T) {
	inverse := factorOf(0)
	for range 6 { // each doubles the number of right bits
		inverse *= 2 - factorOf(0)*inverse
	}
	if inverse*factorOf(0) != 1 {
		t.Fatal("not the inverse")
	}
	const many = 200_000
	for name, hash := range map[string]func(i uint64) uint64{
		"upper bits of seed 0": func(i uint64) uint64 { return i * inverse },
		"lower bits":           func(i uint64) uint64 { return i<<44 | 12345 },
		"upper bits":           func(i uint64) uint64 { return 12345<<44 | i },
	} {
		x := mustNew(t, Config{Seed: 0x5eed5eed5eed})
		a, err := NewApprox(ApproxConfig{Index: Config{Seed: 0x5eed5eed5eed}})
		if err != nil {
			t.Fatal(err)
		}
		w := kv.Worker{ID: 1}
		for i := range uint64(many) {
			h := hash(i + 1) // for a first block both hashes are equal
			blocks := []kv.BlockHash{kv.BlockHash(h)}
			x.ApplyEvent(w, kv.Event{Kind: kv.Stored, Blocks: blocks})
			a.RecordSent(0, w, []kv.SeqHash{kv.SeqHash(h)})
		}
		if n := x.Stats().Blocks; n != many {
			t.Errorf("%s: %d blocks, want %d", name, n, many)
		}
	}
}
