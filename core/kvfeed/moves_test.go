package kvfeed

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// movedExample is a record with labels, moves of every form, and events without.
func movedExample() *Record {
	return &Record{
		Worker: kv.Worker{ID: 7}, Epoch: 2, First: 6, BlockSize: 16,
		Events: []kv.Event{
			{Kind: kv.Stored, Blocks: []kv.BlockHash{0x1111111111111111}, Labels: []kv.MoELabel{{Has: kv.HasExpert, Layer: 3, Expert: 17}}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x1111111111111111}, Move: kv.PoolMove{
				To: kv.InTransit, Pool: 5, HasPool: true, Access: []kv.Worker{{ID: 7}, {ID: 9, Rank: 1}},
			}},
			{Kind: kv.Removed, Seqs: []kv.SeqHash{0x3333333333333333}},
			{Kind: kv.Moved, Seqs: []kv.SeqHash{0x1111111111111111}, Move: kv.PoolMove{To: kv.Pooled}},
			{Kind: kv.Moved, Move: kv.PoolMove{To: kv.Evicted, HasPool: true, Access: []kv.Worker{}}},
		},
	}
}

// TestMovesAreNothingToOlderBuilds: an older build reads the same number of events, and the moved ones remove
// nothing.
func TestMovesAreNothingToOlderBuilds(t *testing.T) {
	want := movedExample()
	got := asBefore(t, AppendRecord(nil, want))
	for i := range want.Events {
		want.Events[i].Labels = nil
		if want.Events[i].Kind == kv.Moved {
			want.Events[i] = kv.Event{Kind: kv.Removed}
		}
	}
	if diff := cmp.Diff(want, got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if next := got.First + uint64(len(got.Events)); next != 11 {
		t.Errorf("the event after the record has number %d, want 11", next)
	}
}

func TestMalformedMoves(t *testing.T) {
	whole := AppendRecord(nil, movedExample())
	at := HeaderSize + int(binary.LittleEndian.Uint32(whole[40:])) + labelEntrySize + labelSize // the first entry
	second := at + moveSize + hashSize + 2*accessSize
	put := overwriter(whole)
	expectMalformed(t, []malformedRecord{
		{"none", whole[:at], "moves: cut short"},
		{"the second missing", whole[:second], "moves: cut short"},
		{"the last cut", whole[:len(whole)-1], "moves: cut short"},
		{"of a stored event", put(at, 0), "moves of event 0, which does not stand in"},
		{"of a removal of something", put(at, 2), "moves of event 2, which does not stand in"},
		{"of no event", put(at, 5), "moves of event 5: must be one of 0 to 4"},
		{"backwards", put(second, 1), "moves of event 1: must be one of 2 to 4"},
		{"state 0", put(at+4, 0), "unknown state 0"},
		{"state 5", put(at+4, 5), "unknown state 5"},
		{"unknown fields", put(at+5, 7), "unknown fields 0x7"},
		{"a pool that is not there", put(second+6, 1), "pool 1, which the fields do not name"},
		{"workers that are not there", put(second+14, 1), "1 workers, which the fields do not name"},
		{"too many workers", put(at+14, 1, 4), "1025 workers"},
		{"more hashes than bytes", put(at+10, 0xff, 0xff, 0xff, 0xff), "cut short"},
		{"worker id", put(at+moveSize+hashSize+7, 1), "worker id"},
	})
}

// TestMovesDoNotShare: appending to one event's lists does not change the next event's, and a record without
// moves shows none of an earlier one.
func TestMovesDoNotShare(t *testing.T) {
	var got Record
	if err := DecodeRecord(&got, AppendRecord(nil, movedExample())); err != nil {
		t.Fatal(err)
	}
	_ = append(got.Events[1].Seqs, 1)
	_ = append(got.Events[1].Move.Access, kv.Worker{ID: 1})
	if diff := cmp.Diff(movedExample(), &got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if err := DecodeRecord(&got, AppendRecord(nil, every())); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(every(), &got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestCutKeepsAccessLists: the list precedes all blocks of the event, and no part of an event with blocks is
// without blocks, because that would have another meaning.
func TestCutKeepsAccessLists(t *testing.T) {
	access := make([]kv.Worker, MaxAccess+5)
	seqs := make([]kv.SeqHash, 2*maxRecordHashes+3)
	for i := range access {
		access[i].ID = kv.WorkerID(i)
	}
	for i := range seqs {
		seqs[i] = kv.SeqHash(i)
	}
	for _, n := range []int{0, 1, MaxAccess - 1, MaxAccess, len(access)} {
		var c RecordSplitter
		c.Reset([]kv.Event{{Kind: kv.Cleared}, {Kind: kv.Moved, Seqs: seqs, Move: kv.PoolMove{To: kv.Pooled, HasPool: true, Pool: 3, Access: access[:n]}}})
		var got []kv.SeqHash
		parts := 0
		for piece := c.Next(); len(piece) > 0; piece = c.Next() {
			for _, ev := range piece {
				if ev.Kind != kv.Moved {
					continue
				}
				if want := access[:min(n, MaxAccess)]; parts == 0 && !slices.Equal(ev.Move.Access, want) || parts > 0 && ev.Move.Access != nil {
					t.Errorf("part %d of a list of %d has %d workers", parts, n, len(ev.Move.Access))
				}
				if len(ev.Seqs) == 0 || ev.Move.To != kv.Pooled || ev.Move.Pool != 3 || !ev.Move.HasPool {
					t.Errorf("part %d: %+v", parts, ev.Move)
				}
				got = append(got, ev.Seqs...)
				parts++
			}
			if size := len(AppendRecord(nil, &Record{First: 1, Events: piece})); size > 64<<10 {
				t.Errorf("a record of %d bytes", size)
			}
		}
		if !slices.Equal(got, seqs) {
			t.Errorf("%d hashes came out of %d", len(got), len(seqs))
		}
	}
}
