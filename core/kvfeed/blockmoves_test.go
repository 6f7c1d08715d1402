package kvfeed

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// listedMoveExample is a record with moves whose access lists are of their blocks, beside a move of the pool's.
func listedMoveExample() *Record {
	one := kv.MoELabel{Has: kv.HasExpert, Layer: 3, Expert: 17}
	return &Record{
		Worker: kv.Worker{ID: 7}, Epoch: 2, First: 15, BlockSize: 16,
		Events: []kv.Event{
			{Kind: kv.Stored, Blocks: []kv.BlockHash{0x1111111111111111}, Labels: []kv.MoELabel{one}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x1111111111111111}, Labels: []kv.MoELabel{one}, Move: kv.PoolMove{
				To: kv.InTransit, Pool: 5, HasPool: true, Access: []kv.Worker{{ID: 8}, {ID: 9, Rank: 1}}, OfBlocks: true,
			}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x2222222222222222}, Move: kv.PoolMove{To: kv.Pooled, Pool: 5, HasPool: true}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x1111111111111111}, Move: kv.PoolMove{To: kv.Pooled, OfBlocks: true}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x3333333333333333}, Move: kv.PoolMove{
				To: kv.Pooled, Pool: 5, HasPool: true, Access: []kv.Worker{}, OfBlocks: true,
			}},
		},
	}
}

// TestListedMovesAreNothingToOlderBuilds: a build which does not know access lists of blocks sees an empty removal
// in the place of such a move, so that no worker counts which the list does not name.
func TestListedMovesAreNothingToOlderBuilds(t *testing.T) {
	want := listedMoveExample()
	got := withoutFlag(t, AppendRecord(nil, want), flagBlockMoves)
	for i := range want.Events {
		if want.Events[i].Move.OfBlocks {
			want.Events[i] = kv.Event{Kind: kv.Removed}
		}
	}
	if diff := cmp.Diff(want, got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestMalformedListedMoves(t *testing.T) {
	whole := AppendRecord(nil, listedMoveExample())
	const listed, plain = moveSize + hashSize + 2*accessSize + labelSize, moveSize + hashSize
	first := len(whole) - listed - 2*plain
	put := overwriter(whole)
	expectMalformed(t, []malformedRecord{
		{"none", whole[:first], "moves: cut short"},
		{"labels cut", whole[:first+listed-1], "moves of event 1: cut short"},
		{"the last cut", whole[:len(whole)-1], "moves of event 4: cut short"},
		{"of a stored event", put(first, 0), "moves of event 0, which does not stand in for one"},
		{"of a move of the pool", put(first, 2), "moves of event 2, which does not stand in for one"},
		{"other fields", put(first+5, 8), "unknown fields 0x8"},
		{"labels of evicted blocks", put(first+4, byte(kv.Evicted)), "labels which the move cannot have"},
		{"other labels", put(first+listed-labelSize, 2), "fields 0x2"},
	})
	if n := binary.LittleEndian.Uint32(whole[first:]); n != 1|moreEntries {
		t.Fatalf("the first entry is of event %#x", n)
	}
}

// TestSplitListedMoves: each part of a split move has the access list of its blocks, because nothing else says it.
func TestSplitListedMoves(t *testing.T) {
	ev := kv.Event{Kind: kv.Moved, Seqs: make([]kv.SeqHash, maxRecordHashes+10), Move: kv.PoolMove{
		To: kv.Pooled, Pool: 5, HasPool: true, Access: []kv.Worker{{ID: 8}}, OfBlocks: true,
	}}
	var splitter RecordSplitter
	splitter.Reset([]kv.Event{ev})
	moved := 0
	for part := splitter.Next(); len(part) > 0; part = splitter.Next() {
		for _, p := range part {
			if diff := cmp.Diff(ev.Move, p.Move); diff != "" {
				t.Errorf("-whole +part\n%s", diff)
			}
			moved += len(p.Seqs)
		}
	}
	if moved != len(ev.Seqs) {
		t.Errorf("%d blocks moved, want %d", moved, len(ev.Seqs))
	}
	allocatesNothing(t, listedMoveExample())
}
