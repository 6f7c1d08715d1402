package kvfeed

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// labelledMoveExample is a record with labelled moves and moves without labels, beside a labelled stored event.
func labelledMoveExample() *Record {
	one := kv.MoELabel{Has: kv.HasExpert, Layer: 3, Expert: 17}
	return &Record{
		Worker: kv.Worker{ID: 7}, Epoch: 2, First: 11, BlockSize: 16,
		Events: []kv.Event{
			{Kind: kv.Stored, Blocks: []kv.BlockHash{0x1111111111111111}, Labels: []kv.MoELabel{one}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x1111111111111111, 0x2222222222222222}, Labels: []kv.MoELabel{one, {}}, Move: kv.PoolMove{
				To: kv.Pooled, Pool: 5, HasPool: true,
			}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x3333333333333333}, Move: kv.PoolMove{To: kv.Evicted, Pool: 5, HasPool: true}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x4444444444444444}, Labels: []kv.MoELabel{{Has: kv.HasExpert | kv.HasGroup, Layer: 60, Expert: 255, Group: 7}}, Move: kv.PoolMove{
				To: kv.InTransit, Pool: 5, HasPool: true,
			}},
		},
	}
}

// withoutFlag returns the record as a build reads it which does not know a flag: it ignores the flag, and the
// bytes after what the other flags announce.
func withoutFlag(t *testing.T, data []byte, flag byte) *Record {
	t.Helper()
	old := append([]byte(nil), data...)
	old[2] &^= flag
	var r Record
	if err := DecodeRecord(&r, old); err != nil {
		t.Fatal(err)
	}
	return &r
}

// TestMoveLabelsAreNothingToOlderBuilds: a build which knows labels and moves, but no labels of moved blocks,
// reads the same labels of stored blocks and the same moves.
func TestMoveLabelsAreNothingToOlderBuilds(t *testing.T) {
	want := labelledMoveExample()
	got := withoutFlag(t, AppendRecord(nil, want), flagMoveLabels)
	for i := range want.Events {
		if want.Events[i].Kind == kv.Moved {
			want.Events[i].Labels = nil
		}
	}
	if diff := cmp.Diff(want, got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestMalformedMoveLabels(t *testing.T) {
	whole := AppendRecord(nil, labelledMoveExample())
	second := len(whole) - labelEntrySize - labelSize
	first := second - labelEntrySize - 2*labelSize
	put := overwriter(whole)
	expectMalformed(t, []malformedRecord{
		{"none", whole[:first], "labels: cut short"},
		{"the second missing", whole[:second], "labels: cut short"},
		{"the last cut", whole[:len(whole)-1], "labels of event 3: cut short"},
		{"of a stored event", put(first, 0), "labels of event 0, which has no blocks"},
		{"of no event", put(second, 4), "labels of event 4: must be one of 2 to 3"},
		{"more than bytes", put(second, 2, 0, 0, 0x80), "cut short"},
		{"group without expert", put(second+labelEntrySize, 2), "fields 0x2"},
		{"without moves", put(2, flagLabels|flagMoveLabels), "which has no blocks"},
	})
	if n := binary.LittleEndian.Uint32(whole[first:]); n != 1|moreEntries {
		t.Fatalf("the first entry is of event %#x", n)
	}
}

// TestMoveLabelsDoNotShare: the labels of stored and of moved blocks share no memory.
func TestMoveLabelsDoNotShare(t *testing.T) {
	var got Record
	for range 2 {
		if err := DecodeRecord(&got, AppendRecord(nil, labelledMoveExample())); err != nil {
			t.Fatal(err)
		}
		_ = append(got.Events[0].Labels, kv.MoELabel{Has: kv.HasExpert})
		if diff := cmp.Diff(labelledMoveExample(), &got, sameRecord); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	allocatesNothing(t, labelledMoveExample())
}
