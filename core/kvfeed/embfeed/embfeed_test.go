package embfeed

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock/core/kv"
	"penstock/core/kvfeed"
)

// example is the record of the format's page.
func example() *EventRecord {
	return &EventRecord{
		Worker: kv.Worker{ID: 7}, Epoch: 2, First: 1,
		Events: []Event{
			{Kind: Cleared},
			{Kind: Added, Key: kv.Digest(bytes.Repeat([]byte{0x11}, 32)), Rows: 64, Bytes: 65536},
			{Kind: Evicted, Key: kv.Digest(bytes.Repeat([]byte{0x22}, 32)), Rows: 256, Bytes: 262144},
		},
	}
}

var anyEvent = rapid.Custom(func(t *rapid.T) Event {
	kind := Kind(rapid.IntRange(int(Added), kinds-1).Draw(t, "kind"))
	if kind == Cleared {
		return Event{Kind: Cleared}
	}
	ev := Event{Kind: kind, Rows: rapid.Uint32().Draw(t, "rows"), Bytes: rapid.Uint64().Draw(t, "bytes")}
	copy(ev.Key[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "key"))
	ev.Key[31] |= 1
	return ev
})

var anyRecord = rapid.Custom(func(t *rapid.T) *EventRecord {
	return &EventRecord{
		Worker: kv.Worker{ID: kv.WorkerID(rapid.Uint64Range(0, uint64(kv.MaxWorkerID)).Draw(t, "id")), Rank: rapid.Uint32().Draw(t, "rank")},
		Epoch:  rapid.Uint64().Draw(t, "epoch"), First: rapid.Uint64Range(1, 1<<60).Draw(t, "first"),
		Events: rapid.SliceOfN(anyEvent, 0, 20).Draw(t, "events"),
	}
})

func TestRoundTrip(t *testing.T) {
	var got EventRecord
	rapid.Check(t, func(t *rapid.T) {
		want := anyRecord.Draw(t, "record")
		data := AppendRecord([]byte("before"), want)[len("before"):]
		data = append(data, rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "added by a later version")...)
		if err := DecodeRecord(&got, data); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
	})
}

// TestRecordsAreReadForEver: streams outlive the builds which filled them.
func TestRecordsAreReadForEver(t *testing.T) {
	text, err := os.ReadFile("testdata/record-v1.hex")
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if got := AppendRecord(nil, example()); !bytes.Equal(got, want) {
		t.Errorf("it is written as\n%x\nolder builds know\n%x", got, want)
	}
	var got EventRecord
	if err := DecodeRecord(&got, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), &got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestInvalidRecords(t *testing.T) {
	change := func(at int, b byte) func([]byte) []byte {
		return func(data []byte) []byte { data[at] = b; return data }
	}
	for name, damage := range map[string]func([]byte) []byte{
		"empty":               func([]byte) []byte { return nil },
		"half a header":       func(data []byte) []byte { return data[:20] },
		"a KV record":         change(0, 0xEB),
		"version 2":           change(1, 2),
		"a worker id of 2^56": change(15, 1),
		"number 0":            change(24, 0),
		"one event more":      change(36, 4),
		"one event less":      change(36, 2),
		"a longer body":       change(40, 0x91),
		"cut short":           func(data []byte) []byte { return data[:len(data)-1] },
		"kind 0":              change(kvfeed.HeaderSize+eventSize, 0),
		"kind 7":              change(kvfeed.HeaderSize+eventSize, 7),
		"cleared with a key":  change(kvfeed.HeaderSize+16, 1),
		"added without a key": func(data []byte) []byte { clear(data[kvfeed.HeaderSize+eventSize+16:][:32]); return data },
	} {
		var r EventRecord
		if err := DecodeRecord(&r, damage(AppendRecord(nil, example()))); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	data := AppendRecord(nil, example())
	f.Add(data)
	f.Add(data[:kvfeed.HeaderSize])
	f.Add(AppendRecord(nil, &EventRecord{First: 3}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, again EventRecord
		if DecodeRecord(&r, data) != nil {
			return
		}
		if len(r.Events) > kvfeed.MaxEvents || len(r.Events)*eventSize > len(data) {
			t.Fatalf("%d events of %d bytes", len(r.Events), len(data))
		}
		if err := DecodeRecord(&again, AppendRecord(nil, &r)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("written and read again: -was +is\n%s", diff)
		}
		tracker, err := kvfeed.NewTracker(kvfeed.Config{})
		if err != nil {
			t.Fatal(err)
		}
		tracker.AcceptRecord(0, &r)
		if err := tracker.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAllocations(t *testing.T) {
	r := example()
	data := AppendRecord(nil, r)
	var into EventRecord
	if n := testing.AllocsPerRun(100, func() {
		data = AppendRecord(data[:0], r)
		if err := DecodeRecord(&into, data); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTracker: the tracker repairs the feed of an embedding cache as that of a KV cache.
func TestTracker(t *testing.T) {
	tracker, err := kvfeed.NewTracker(kvfeed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := kv.Worker{ID: 7}
	accept := func(first uint64, kinds ...Kind) kvfeed.FeedVerdict {
		r := &EventRecord{Worker: w, Epoch: 1, First: first}
		for _, k := range kinds {
			r.Events = append(r.Events, Event{Kind: k})
		}
		v := tracker.AcceptRecord(0, r)
		if err := tracker.Check(); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := accept(1, Cleared, Added); v.Outcome != kvfeed.Apply || v.Skip != 0 {
		t.Errorf("the first record: %+v", v)
	}
	v := accept(4, Evicted)
	if v.Outcome != kvfeed.Gap || !v.Hide || !v.Resync || v.Request != (kvfeed.ResyncRequest{Worker: w, Epoch: 1, From: 3}) {
		t.Errorf("after a loss: %+v", v)
	}
	if v := accept(2, Added, Added, Evicted); v.Outcome != kvfeed.Apply || v.Skip != 1 || !v.Show {
		t.Errorf("the missing event: %+v", v)
	}
	if v := accept(9, Removed, Cleared, Added); v.Outcome != kvfeed.Apply || v.Skip != 1 {
		t.Errorf("a description after a loss: %+v", v)
	}
}
