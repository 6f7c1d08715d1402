package poolindex

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"penstock/core/kv"
)

// labelledSample is sample with labels of blocks in every state.
func labelledSample(t testing.TB) *Table {
	table := sample(t)
	small, big := kv.MoELabel{Has: kv.HasExpert, Layer: 2, Expert: 7}, kv.MoELabel{Has: kv.HasExpert | kv.HasGroup, Layer: 60, Expert: 255, Group: 7}
	label := func(to kv.PoolState, pool kv.PoolID, id kv.WorkerID, labels []kv.MoELabel, names ...string) {
		ev := &kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: to, Pool: pool, HasPool: true}, Labels: labels}
		for _, n := range names {
			ev.Seqs = append(ev.Seqs, block(n))
		}
		table.ApplyMove(9, kv.Worker{ID: id}, ev, nil)
	}
	label(kv.Pooled, 4, 1, []kv.MoELabel{small, big}, "a", "abc")
	label(kv.Evicted, 4, 1, nil, "abc")
	label(kv.InTransit, 4, 2, []kv.MoELabel{small}, "abcd")
	label(kv.Pooled, 7, 3, []kv.MoELabel{big, {}}, "x", "xy")
	return table
}

// expectWhole expects that truncated data, data with an extra byte and data of an unknown version are refused. It
// returns a function which gives a copy of data with other bytes at a place.
func expectWhole(t *testing.T, data []byte, load func(data []byte) error) (put func(at int, b ...byte) []byte) {
	t.Helper()
	if err := load(data); err != nil {
		t.Fatal(err)
	}
	for n := range len(data) {
		if load(data[:n]) == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(data))
		}
	}
	if err := load(append(bytes.Clone(data), 0)); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("with a byte more: %v", err)
	}
	put = func(at int, b ...byte) []byte {
		other := bytes.Clone(data)
		copy(other[at:], b)
		return other
	}
	if err := load(put(0, 2)); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	return put
}

// smallerTable loads a snapshot of table into a table which has no room for most of it.
func smallerTable(t *testing.T, table *Table) *Table {
	t.Helper()
	small := mustNew(t, Config{MaxPools: 1, MaxBlocks: 2, MaxEvicted: 1})
	if err := small.LoadSnapshot(table.AppendSnapshot(nil, 9), 9); err != nil {
		t.Fatal(err)
	}
	return small
}

// TestLabelsAreWhole: truncated labels, ones with an extra byte or of an unknown version, and ones which no
// table writes are refused.
func TestLabelsAreWhole(t *testing.T) {
	table := labelledSample(t)
	snapshot, data := table.AppendSnapshot(nil, 9), table.AppendLabels(nil)
	load := func(data []byte) error {
		other := mustNew(t, Config{})
		if err := other.LoadSnapshot(snapshot, 9); err != nil {
			t.Fatal(err)
		}
		_, err := other.LoadLabels(data, nil)
		return err
	}
	put := expectWhole(t, data, load)
	for want, data := range map[string][]byte{
		"label {0 ":              put(5, 0),                                                 // no label
		"a label without blocks": put(5+labelSize, 0),                                       // of the first label
		"are not in order":       put(5+labelGroupSize+poolBlockSize+4, make([]byte, 8)...), // the second hash of the first label
	} {
		if err := load(data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestLabelsBeyondBounds: labels of blocks for which a smaller table has no room are skipped.
func TestLabelsBeyondBounds(t *testing.T) {
	table := labelledSample(t)
	small := smallerTable(t, table)
	if _, err := small.LoadLabels(table.AppendLabels(nil), nil); err != nil {
		t.Fatal(err)
	}
	if err := small.Check(); err != nil {
		t.Error(err)
	}
}

// TestSnapshotWithoutLabels: a snapshot of a router which knows no labels of pooled blocks gives a table without.
func TestSnapshotWithoutLabels(t *testing.T) {
	table := mustNew(t, Config{})
	if err := table.LoadSnapshot(labelledSample(t).AppendSnapshot(nil, 9), 9); err != nil {
		t.Fatal(err)
	}
	if got, want := table.AppendLabels(nil), mustNew(t, Config{}).AppendLabels(nil); !bytes.Equal(got, want) {
		t.Errorf("labels %x, want none: %x", got, want)
	}
}

func FuzzLoadLabels(f *testing.F) {
	table := labelledSample(f)
	snapshot := table.AppendSnapshot(nil, 9)
	f.Add(table.AppendLabels(nil))
	f.Add(mustNew(f, Config{}).AppendLabels(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		table := mustNew(t, Config{})
		if err := table.LoadSnapshot(snapshot, 9); err != nil {
			t.Fatal(err)
		}
		effects, err := table.LoadLabels(data, nil)
		if err != nil {
			return
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
		for _, e := range effects {
			if e.Kind != Place || len(e.Labels) != len(e.Seqs) || len(e.Seqs) == 0 {
				t.Fatalf("effect %+v", e)
			}
		}
	})
}
