package kvfeed

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

// replay applies events to a set of prefixes in the simplest way.
func replay(events []kv.Event) map[kv.SeqHash]bool {
	held := map[kv.SeqHash]bool{}
	for _, ev := range events {
		switch ev.Kind {
		case kv.Cleared:
			clear(held)
		case kv.Removed:
			for _, s := range ev.Seqs {
				delete(held, s)
			}
		case kv.Stored:
			seq := ev.Parent
			for i, b := range ev.Blocks {
				seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
				held[seq] = true
			}
		}
	}
	return held
}

// drawEvents returns a sequence of events: some much too long for a record, and sometimes more than fit one.
func drawEvents(t *rapid.T) []kv.Event {
	var events []kv.Event
	if rapid.Bool().Draw(t, "many") {
		for i := range maxRecordEvents + 10 {
			events = append(events, kv.Event{Kind: kv.Removed, Seqs: []kv.SeqHash{kv.SeqHash(i)}})
		}
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "events") {
		n := rapid.SampledFrom([]int{0, 1, 2, maxRecordHashes - 1, maxRecordHashes, maxRecordHashes + 1, 3*maxRecordHashes + 7}).Draw(t, "hashes")
		ev := kv.Event{Kind: kv.EventKind(rapid.IntRange(1, 4).Draw(t, "kind"))}
		switch ev.Kind {
		case kv.Stored:
			ev.Start, ev.Parent = uint32(i%2*5), kv.SeqHash(i)
			for j := range n {
				ev.Blocks = append(ev.Blocks, kv.BlockHash(10_000*i+j))
			}
			if rapid.Bool().Draw(t, "labelled") {
				for _, b := range ev.Blocks {
					ev.Labels = append(ev.Labels, labelOf(b))
				}
			}
		case kv.Removed, kv.Moved:
			for j := range n {
				ev.Seqs = append(ev.Seqs, kv.SeqHash(10_000*i+j))
			}
			if ev.Kind == kv.Moved && rapid.Bool().Draw(t, "labelled") {
				for _, s := range ev.Seqs {
					ev.Labels = append(ev.Labels, labelOf(s))
				}
			}
		}
		events = append(events, ev)
	}
	return events
}

// TestCut: parts fit a record, are in order, and mean the same.
func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := drawEvents(t)
		given := slices.Clone(events)
		var c RecordSplitter
		c.Reset(events)
		var all []kv.Event
		for piece := c.Next(); len(piece) > 0; piece = c.Next() {
			hashes := 0
			for _, ev := range piece {
				hashes += len(ev.Blocks) + len(ev.Seqs)
			}
			if hashes > maxRecordHashes || len(piece) > maxRecordEvents {
				t.Fatalf("a piece has %d events and %d hashes", len(piece), hashes)
			}
			all = append(all, piece...)
		}
		if got, want := labels(t, all), labels(t, given); got != want {
			t.Fatalf("the pieces have %d labels, the events %d", got, want)
		}
		if diff := cmp.Diff(given, events); diff != "" {
			t.Fatalf("the caller's events were changed:\n%s", diff)
		}
		if want, got := replay(events), replay(all); !maps.Equal(want, got) {
			t.Fatalf("the pieces leave %v, the events %v", got, want)
		}
		if got, want := count(all), count(events); got != want {
			t.Fatalf("the pieces have %v hashes by kind, the events %v", got, want)
		}
	})
}

// labelOf returns the label which a test gives a block.
func labelOf[H kv.BlockHash | kv.SeqHash](b H) kv.MoELabel {
	return kv.MoELabel{Has: kv.HasExpert, Layer: uint32(b % 7), Expert: uint32(b)}
}

// labels counts labels, and fails if one is not on its block.
func labels(t *rapid.T, events []kv.Event) (n int) {
	for _, ev := range events {
		if len(ev.Labels) > 0 && len(ev.Labels) != len(ev.Blocks)+len(ev.Seqs) {
			t.Fatalf("%d labels for %d blocks", len(ev.Labels), len(ev.Blocks)+len(ev.Seqs))
		}
		for i, l := range ev.Labels {
			want := kv.MoELabel{}
			if ev.Kind == kv.Moved {
				want = labelOf(ev.Seqs[i])
			} else {
				want = labelOf(ev.Blocks[i])
			}
			if l != want {
				t.Fatalf("block %d has the label %+v, want %+v", i, l, want)
			}
		}
		n += len(ev.Labels)
	}
	return n
}

func count(events []kv.Event) (n [5]int) {
	for _, ev := range events {
		n[ev.Kind] += len(ev.Blocks) + len(ev.Seqs)
		if ev.Kind == kv.Cleared {
			n[ev.Kind]++
		}
	}
	return n
}

func TestCutSteadyStateDoesNotAllocate(t *testing.T) {
	events := []kv.Event{{Kind: kv.Stored, Blocks: make([]kv.BlockHash, 8)}, {Kind: kv.Removed, Seqs: make([]kv.SeqHash, 8)}}
	var c RecordSplitter
	run := func() {
		c.Reset(events)
		for len(c.Next()) > 0 {
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
