package kvfeed

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// labelledExample is a record with labels of every form, and events without labels.
func labelledExample() *Record {
	return &Record{
		Worker: kv.Worker{ID: 7}, Epoch: 2, First: 3, BlockSize: 16,
		Events: []kv.Event{
			{Kind: kv.Stored, Blocks: []kv.BlockHash{0x1111111111111111, 0x2222222222222222}, Labels: []kv.MoELabel{
				{Has: kv.HasExpert, Layer: 3, Expert: 17},
				{},
			}},
			{Kind: kv.Removed, Seqs: []kv.SeqHash{0x3333333333333333}},
			{Kind: kv.Stored, Blocks: []kv.BlockHash{0x4444444444444444}, Labels: []kv.MoELabel{
				{Has: kv.HasExpert | kv.HasGroup, Layer: 60, Expert: 255, Group: 7},
			}},
		},
	}
}

// asBefore returns the record as an old build without labels reads it: it ignores the header's third byte and
// the bytes after the events.
func asBefore(t *testing.T, data []byte) *Record {
	t.Helper()
	end := HeaderSize + binary.LittleEndian.Uint32(data[40:])
	old := append([]byte(nil), data[:end]...)
	old[2] = 0
	var r Record
	if err := DecodeRecord(&r, old); err != nil {
		t.Fatal(err)
	}
	return &r
}

func TestLabelsAreNothingToOlderBuilds(t *testing.T) {
	want := labelledExample()
	got := asBefore(t, AppendRecord(nil, want))
	for i := range want.Events {
		want.Events[i].Labels = nil
	}
	if diff := cmp.Diff(want, got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestNoLabelsNoBytes: an event without labels, or with labels which do not match its blocks, is encoded as
// before labels existed.
func TestNoLabelsNoBytes(t *testing.T) {
	plain := string(AppendRecord(nil, every()))
	odd := every()
	odd.Events[0].Labels = make([]kv.MoELabel, 1)
	odd.Events[1].Labels = make([]kv.MoELabel, 3)
	odd.Events[2].Labels = make([]kv.MoELabel, 2)
	if got := string(AppendRecord(nil, odd)); got != plain {
		t.Errorf("%x, want %x", got, plain)
	}
	for i := range odd.Events {
		if got, want := EventSize(odd.Events[i]), EventSize(every().Events[i]); got != want {
			t.Errorf("event %d takes %d bytes, want %d", i, got, want)
		}
	}
}

// malformedRecord is a record which is not accepted, and a part of the error.
type malformedRecord struct {
	name string
	data []byte
	want string
}

func expectMalformed(t *testing.T, records []malformedRecord) {
	t.Helper()
	for _, c := range records {
		var r Record
		if err := DecodeRecord(&r, c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

// overwriter returns a function which gives a copy of data with other bytes at a place.
func overwriter(data []byte) func(at int, bytes ...byte) []byte {
	return func(at int, bytes ...byte) []byte {
		changed := slices.Clone(data)
		copy(changed[at:], bytes)
		return changed
	}
}

func TestMalformedLabels(t *testing.T) {
	whole := AppendRecord(nil, labelledExample())
	at := HeaderSize + int(binary.LittleEndian.Uint32(whole[40:])) // the first entry
	second := at + labelEntrySize + 2*labelSize
	put := overwriter(whole)
	expectMalformed(t, []malformedRecord{
		{"none", whole[:at], "labels: cut short"},
		{"the last cut", whole[:len(whole)-1], "labels of event 2: cut short"},
		{"the second missing", whole[:second], "labels: cut short"},
		{"of a removed event", put(at, 1), "labels of event 1, which has no blocks"},
		{"of no event", put(at, 3), "labels of event 3: must be one of 0 to 2"},
		{"backwards", put(second, 0), "labels of event 0: must be one of 1 to 2"},
		{"more than there are", put(second+3, 0x80), "labels: cut short"},
		{"unknown fields", put(at+labelEntrySize, 4), "fields 0x4"},
		{"a group alone", put(at+labelEntrySize, 2), "fields 0x2"},
		{"a group that is not there", put(at+labelEntrySize+9, 1), "fields 0x1"},
		{"something in nothing", put(at+labelEntrySize+labelSize+1, 1), "fields 0x0"},
	})
	noEvents := AppendRecord(nil, &Record{First: 1})
	noEvents[2] = flagLabels
	var r Record
	if err := DecodeRecord(&r, append(noEvents, 0, 0, 0, 0)); err == nil {
		t.Error("labels of no events were accepted")
	}
}

// TestLabelsDoNotShare: appending to one event's labels does not change the next event's, and a record
// without labels shows none of an earlier one.
func TestLabelsDoNotShare(t *testing.T) {
	var got Record
	if err := DecodeRecord(&got, AppendRecord(nil, labelledExample())); err != nil {
		t.Fatal(err)
	}
	_ = append(got.Events[0].Labels, kv.MoELabel{Has: 9})
	if got.Events[2].Labels[0].Expert != 255 {
		t.Error("the last event changed")
	}
	if err := DecodeRecord(&got, AppendRecord(nil, every())); err != nil {
		t.Fatal(err)
	}
	for i := range got.Events {
		if got.Events[i].Labels != nil {
			t.Errorf("event %d has labels", i)
		}
	}
}
