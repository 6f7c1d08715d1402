package poolindex

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
)

// listedSample is sample with access lists of blocks, and with workers which attached pools.
func listedSample(t testing.TB) *Table {
	table := sample(t)
	move := func(to kv.PoolState, pool kv.PoolID, id kv.WorkerID, access []kv.Worker, names ...string) {
		ev := &kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: to, Pool: pool, HasPool: true, Access: access, OfBlocks: true}}
		for _, n := range names {
			ev.Seqs = append(ev.Seqs, block(n))
		}
		table.ApplyMove(9, kv.Worker{ID: id}, ev, nil)
	}
	move(kv.Pooled, 4, 1, []kv.Worker{{ID: 2, Rank: 3}, {ID: 1}}, "a", "abc")
	move(kv.InTransit, 4, 2, []kv.Worker{}, "abcd")
	move(kv.Pooled, 7, 3, []kv.Worker{{ID: 1}}, "x", "xy")
	move(kv.Pooled, 9, 3, nil, "xyz")
	return table
}

// TestListsAreWhole: truncated access lists, ones with an extra byte or of an unknown version, and ones which no
// table writes are refused.
func TestListsAreWhole(t *testing.T) {
	table := listedSample(t)
	snapshot, data := table.AppendSnapshot(nil, 9), table.AppendLists(nil)
	load := func(data []byte) error {
		other := mustNew(t, Config{})
		if err := other.LoadSnapshot(snapshot, 9); err != nil {
			t.Fatal(err)
		}
		return other.LoadLists(data)
	}
	put := expectWhole(t, data, load)
	attached := 1 + 4                                     // the first attached pool: 4, of workers 1 and 2
	lists := attached + 2*(4+4) + (2+1)*12 + (4 + 4) + 12 // after pools 4, 7 and 9
	first := lists + 4                                    // pool 4, list 1, two workers, two blocks
	seq := func(name string) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(block(name))) }
	for _, c := range []struct {
		want string
		data []byte
	}{
		{"attached pools are not in order", put(attached, 8)},
		{"workers are not in order", put(attached+8, 2)},
		{"access list 0 of pool 4", put(first+4, 0)},
		{"access list 4097 of pool 4", put(first+4, 1, 16)},
		{"are not in order", put(first+12+2*12+4+8, make([]byte, 8)...)},
		{"access lists are not in order", put(first, 5)},
		{"has an access list, or two", bytes.Replace(data, seq("abcd"), seq("a"), 1)},
	} {
		if err := load(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
}

// TestListsBeyondBounds: lists of blocks for which a smaller table has no room are skipped.
func TestListsBeyondBounds(t *testing.T) {
	table := listedSample(t)
	small := smallerTable(t, table)
	if err := small.LoadLists(table.AppendLists(nil)); err != nil {
		t.Fatal(err)
	}
	if err := small.Check(); err != nil {
		t.Error(err)
	}
}

// TestTooManyLists: a block whose access list has no room is not in the pool: without its list too many workers
// could attach it.
func TestTooManyLists(t *testing.T) {
	table := mustNew(t, Config{})
	move := func(list kv.WorkerID, seq kv.SeqHash) []Effect {
		return table.ApplyMove(1, kv.Worker{ID: 1}, &kv.Event{Kind: kv.Moved, Seqs: []kv.SeqHash{seq}, Move: kv.PoolMove{
			To: kv.Pooled, Pool: 3, HasPool: true, Access: []kv.Worker{{ID: list}}, OfBlocks: true,
		}}, nil)
	}
	for i := range kv.WorkerID(maxLists) {
		move(i, kv.SeqHash(i)+1)
	}
	effects := move(maxLists, 1)
	if len(effects) != 2 || effects[0].Kind != Displace || effects[1].Kind != DropPool {
		t.Errorf("effects %+v", effects)
	}
	if got := table.AppendBlock(nil, 1); len(got) > 0 || table.Stats().Counts.Refused != 1 {
		t.Errorf("the block is %+v", got)
	}
	if effects := move(maxLists, 1); len(effects) != 2 || effects[1].Kind != Place {
		t.Errorf("once there is room: %+v", effects)
	}
	if err := table.Check(); err != nil {
		t.Error(err)
	}
}

// TestTooManyAttached: of more workers than are kept the one which has moved nothing for longest is not credited.
func TestTooManyAttached(t *testing.T) {
	table := mustNew(t, Config{})
	move := func(id kv.WorkerID) []Effect {
		return table.ApplyMove(1, kv.Worker{ID: id}, &kv.Event{Kind: kv.Moved, Seqs: []kv.SeqHash{1}, Move: kv.PoolMove{
			To: kv.Pooled, Pool: 3, HasPool: true, OfBlocks: true,
		}}, nil)
	}
	for id := range kv.WorkerID(MaxAccess) {
		move(id)
	}
	move(0)
	effects := move(MaxAccess)
	if len(effects) == 0 || effects[0].Kind != SetAccess || len(effects[0].Access) != MaxAccess {
		t.Fatalf("effects %+v", effects)
	}
	for id, want := range map[kv.WorkerID]bool{0: true, 1: false, 2: true, MaxAccess: true} {
		if got := slices.Contains(effects[0].Access, kv.Worker{ID: id}); got != want {
			t.Errorf("worker %d is credited: %t", id, got)
		}
	}
}

func FuzzLoadLists(f *testing.F) {
	table := listedSample(f)
	snapshot := table.AppendSnapshot(nil, 9)
	f.Add(table.AppendLists(nil))
	f.Add(mustNew(f, Config{}).AppendLists(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		table := mustNew(t, Config{})
		if err := table.LoadSnapshot(snapshot, 9); err != nil {
			t.Fatal(err)
		}
		if err := table.LoadLists(data); err != nil {
			return
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
	})
}
