package kvfeed

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

// sameRecord compares the content of records: a nil list equals an empty one, except for the access list of a
// pool.
var sameRecord = cmp.Options{cmpopts.IgnoreUnexported(Record{}), cmpopts.EquateEmpty(), cmp.Transformer("said", func(m kv.PoolMove) saidMove {
	return saidMove{m.To, m.Pool, m.HasPool, m.Access != nil, m.Access}
})}

// saidMove is a kv.Move which shows whether it has an access list.
type saidMove struct {
	To      kv.PoolState
	Pool    kv.PoolID
	HasPool bool
	Said    bool
	Access  []kv.Worker
}

func example() *Record {
	return &Record{
		Worker: kv.Worker{ID: 7}, Epoch: 2, First: 1, BlockSize: 16,
		Events: []kv.Event{
			{Kind: kv.Cleared},
			{Kind: kv.Stored, Blocks: []kv.BlockHash{0x1111111111111111, 0x2222222222222222}},
		},
	}
}

// label draws a label which an event may carry.
var label = rapid.Custom(func(t *rapid.T) kv.MoELabel {
	var l kv.MoELabel
	if rapid.Bool().Draw(t, "expert") {
		l.Has, l.Layer, l.Expert = kv.HasExpert, rapid.Uint32().Draw(t, "layer"), rapid.Uint32().Draw(t, "expert id")
		if rapid.Bool().Draw(t, "group") {
			l.Has, l.Group = l.Has|kv.HasGroup, rapid.Uint32().Draw(t, "group id")
		}
	}
	return l
})

// anyMoved draws a moved event which a record may carry.
func anyMoved(t *rapid.T) kv.Event {
	ev := kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: kv.PoolState(rapid.IntRange(int(kv.LocalGPU), int(kv.Evicted)).Draw(t, "to"))}}
	ev.Seqs = rapid.SliceOfN(rapid.Map(rapid.Uint64(), func(h uint64) kv.SeqHash { return kv.SeqHash(h) }), 0, 5).Draw(t, "moved")
	if ev.Move.HasPool = rapid.Bool().Draw(t, "has pool"); ev.Move.HasPool {
		ev.Move.Pool = kv.PoolID(rapid.Uint32().Draw(t, "pool"))
	}
	if rapid.Bool().Draw(t, "has access") {
		ev.Move.Access = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.Worker {
			return kv.Worker{ID: kv.WorkerID(rapid.Uint64Max(uint64(kv.MaxWorkerID)).Draw(t, "id")), Rank: rapid.Uint32().Draw(t, "rank")}
		}), 0, 3).Draw(t, "access")
		if ev.Move.Access == nil {
			ev.Move.Access = []kv.Worker{}
		}
	}
	if len(ev.Seqs) > 0 && rapid.Bool().Draw(t, "labelled") {
		ev.Labels = rapid.SliceOfN(label, len(ev.Seqs), len(ev.Seqs)).Draw(t, "labels")
	}
	return ev
}

// anyRecord draws a record which DecodeRecord accepts.
func anyRecord(t *rapid.T) *Record {
	event := rapid.Custom(func(t *rapid.T) kv.Event {
		hash := rapid.Uint64()
		switch ev := (kv.Event{Tier: kv.Tier(rapid.IntRange(0, kv.Tiers-1).Draw(t, "tier"))}); rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return kv.Event{Kind: kv.Cleared}
		case 1:
			ev.Kind = kv.Removed
			ev.Seqs = rapid.SliceOfN(rapid.Map(hash, func(h uint64) kv.SeqHash { return kv.SeqHash(h) }), 0, 5).Draw(t, "seqs")
			return ev
		case 2:
			return anyMoved(t)
		default:
			ev.Kind = kv.Stored
			ev.Start = rapid.Uint32Max(math.MaxUint32-5).Draw(t, "start")
			ev.Parent = kv.SeqHash(hash.Draw(t, "parent"))
			ev.Blocks = rapid.SliceOfN(rapid.Map(hash, func(h uint64) kv.BlockHash { return kv.BlockHash(h) }), 0, 5).Draw(t, "blocks")
			if rapid.Bool().Draw(t, "labelled") {
				ev.Labels = rapid.SliceOfN(label, len(ev.Blocks), len(ev.Blocks)).Draw(t, "labels")
			}
			return ev
		}
	})
	return &Record{
		Worker: kv.Worker{
			ID:   kv.WorkerID(rapid.Uint64Max(uint64(kv.MaxWorkerID)).Draw(t, "id")),
			Rank: rapid.Uint32().Draw(t, "rank"),
		},
		Epoch:     rapid.Uint64().Draw(t, "epoch"),
		First:     rapid.Uint64Range(1, math.MaxUint64-MaxEvents).Draw(t, "first"),
		BlockSize: rapid.Uint32().Draw(t, "block size"),
		Events:    rapid.SliceOfN(event, 0, 6).Draw(t, "events"),
	}
}

// TestRoundTrip decodes every record into the same Record, so that remains of an earlier one would show, with
// trailing bytes as a newer version might add.
func TestRoundTrip(t *testing.T) {
	var got Record
	rapid.Check(t, func(t *rapid.T) {
		want := anyRecord(t)
		data := AppendRecord([]byte("before"), want)
		data, ok := bytes.CutPrefix(data, []byte("before"))
		if !ok {
			t.Fatal("AppendRecord overwrote what was there")
		}
		size := HeaderSize
		for _, ev := range want.Events {
			size += EventSize(ev)
		}
		if len(data) != size {
			t.Fatalf("%d bytes, EventSize says %d", len(data), size)
		}
		trailing := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "trailing")
		if err := DecodeRecord(&got, append(data, trailing...)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &got, sameRecord); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
	})
}

// TestTruncated: no proper prefix of a record is a record.
func TestTruncated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := AppendRecord(nil, anyRecord(t))
		n := rapid.IntRange(0, len(data)-1).Draw(t, "length")
		var got Record
		if err := DecodeRecord(&got, data[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted", n, len(data))
		}
	})
}

// TestDocumentedExamples decodes the bytes shown in docs/format/kvevent.md.
func TestDocumentedExamples(t *testing.T) {
	documented(t, "## Example\n", example())
	documented(t, "## Example with labels\n", labelledExample())
	documented(t, "## Example with moves\n", movedExample())
	documented(t, "## Example with labelled moves\n", labelledMoveExample())
}

func documented(t *testing.T, title string, r *Record) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/format/kvevent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(doc), title)
	_, after, _ = strings.Cut(after, "```\n")
	text, _, _ := strings.Cut(after, "```")
	want, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	if got := AppendRecord(nil, r); !bytes.Equal(got, want) {
		t.Errorf("encoded\n%x, documented\n%x", got, want)
	}
	var got Record
	if err := DecodeRecord(&got, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestMalformed(t *testing.T) {
	put := func(at int, bytes ...byte) func([]byte) []byte {
		return func(data []byte) []byte {
			copy(data[at:], bytes)
			return data
		}
	}
	const body = HeaderSize
	for _, c := range []struct {
		name string
		do   func([]byte) []byte
		want string
	}{
		{"empty", func([]byte) []byte { return nil }, "shorter than a header"},
		{"other first byte", put(0, '{'), "first byte is 0x7b"},
		{"newer version", put(1, 2), "unknown version 2"},
		{"worker id", put(15, 1), "worker id"},
		{"sequence number 0", put(24, 0), "sequence number 0"},
		{"sequence number at the end", put(24, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "sequence number 18446744073709551615"},
		{"too many events", put(36, 1, 0, 1), "65537 events"},
		{"more events than bytes", put(36, 0, 1), "256 events do not fit"},
		{"body longer than data", put(40, 0x25), "events of 37 bytes in 36"},
		{"body shorter than events", put(40, 0x23), "event 1: cut short"},
		{"fewer events than body", put(36, 1), "34 bytes after the last event"},
		{"kind 0", put(body, 0), "event 0: unknown kind 0"},
		{"kind 4", put(body+2, 4), "event 1: unknown kind 4"},
		{"tier 4", put(body+3, 4), "event 1: unknown tier 4"},
		{"count beyond data", put(body+16, 3), "event 1: cut short"},
		{"count that overflows", put(body+16, 0xff, 0xff, 0xff, 0xff), "event 1: cut short"},
		{"start that overflows", put(body+4, 0xff, 0xff, 0xff, 0xff), "longest sequence"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Record
			err := DecodeRecord(&r, c.do(AppendRecord(nil, example())))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not say %q", err, c.want)
			}
			if got := errors.Is(err, ErrVersion); got != (c.name == "newer version") {
				t.Errorf("errors.Is(err, ErrVersion) = %t", got)
			}
		})
	}
}

// TestEventsDoNotShare: appending to one event's hashes does not change the next event's.
func TestEventsDoNotShare(t *testing.T) {
	r := &Record{First: 1, Events: []kv.Event{
		{Kind: kv.Stored, Blocks: []kv.BlockHash{1}},
		{Kind: kv.Stored, Blocks: []kv.BlockHash{2}},
	}}
	var got Record
	if err := DecodeRecord(&got, AppendRecord(nil, r)); err != nil {
		t.Fatal(err)
	}
	_ = append(got.Events[0].Blocks, 99)
	if got.Events[1].Blocks[0] != 2 {
		t.Error("the second event changed")
	}
}

func TestCodecAllocatesNothing(t *testing.T) {
	r := example()
	r.Events = append(r.Events, kv.Event{Kind: kv.Removed, Seqs: make([]kv.SeqHash, 100)})
	allocatesNothing(t, r)
	allocatesNothing(t, labelledExample())
}

func allocatesNothing(t *testing.T, r *Record) {
	t.Helper()
	data := AppendRecord(nil, r)
	var got Record
	if allocs := testing.AllocsPerRun(100, func() {
		data = AppendRecord(data[:0], r)
		if err := DecodeRecord(&got, data); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations per record, want 0", allocs)
	}
}

// FuzzDecodeRecord: no input makes DecodeRecord panic or allocate more memory than its size justifies, and
// accepted input survives a round trip.
func FuzzDecodeRecord(f *testing.F) {
	data := AppendRecord(nil, example())
	f.Add(data)
	f.Add(data[:HeaderSize])
	r := example()
	r.Events = append(r.Events, kv.Event{Kind: kv.Removed, Tier: kv.TierPool, Seqs: []kv.SeqHash{1, 2, 3}})
	f.Add(AppendRecord(nil, r))
	f.Add(AppendRecord(nil, labelledExample()))
	f.Add(AppendRecord(nil, movedExample()))
	f.Add(AppendRecord(nil, labelledMoveExample()))
	f.Add(AppendRecord(nil, listedMoveExample()))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, again Record
		if err := DecodeRecord(&got, data); err != nil {
			return
		}
		if len(got.Events) > len(data) || cap(got.blocks) > len(data) || cap(got.seqs) > len(data) ||
			cap(got.labels) > len(data) || cap(got.moved) > len(data) || cap(got.access) > len(data) {
			t.Fatalf("%d bytes became %d events, %d, %d and %d hashes, %d labels, %d workers", len(data), len(got.Events), cap(got.blocks), cap(got.seqs), cap(got.moved), cap(got.labels), cap(got.access))
		}
		encoded := AppendRecord(nil, &got)
		if err := DecodeRecord(&again, encoded); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&got, &again, sameRecord); diff != "" {
			t.Fatalf("-first +second\n%s", diff)
		}
	})
}

func BenchmarkAppendRecord(b *testing.B) {
	r := &Record{Worker: kv.Worker{ID: 1}, First: 1}
	for range 16 {
		r.Events = append(r.Events, kv.Event{Kind: kv.Stored, Blocks: make([]kv.BlockHash, 64)})
	}
	data := AppendRecord(nil, r)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		data = AppendRecord(data[:0], r)
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	r := &Record{Worker: kv.Worker{ID: 1}, First: 1}
	for range 16 {
		r.Events = append(r.Events, kv.Event{Kind: kv.Stored, Blocks: make([]kv.BlockHash, 64)})
	}
	data := AppendRecord(nil, r)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	var got Record
	for b.Loop() {
		if err := DecodeRecord(&got, data); err != nil {
			b.Fatal(err)
		}
	}
}
