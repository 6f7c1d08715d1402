package simcluster

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock/core/kv"
)

// TestQueue holds the queue against a sorted list.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q eventQueue
		var twin []simEvent
		n := uint32(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(twin) == 0 || rapid.IntRange(0, 2).Draw(t, "op") > 0 {
				n++
				at := kv.Mono(rapid.IntRange(0, 20).Draw(t, "at"))
				q.push(at, eventSessionDue, n, 0)
				twin = append(twin, simEvent{at: at, a: n})
				slices.SortStableFunc(twin, func(a, b simEvent) int { return cmp.Compare(a.at, b.at) })
				continue
			}
			if got, want := q.pop(), twin[0]; got.at != want.at || got.a != want.a {
				t.Fatalf("event %d at %d, want %d at %d", got.a, got.at, want.a, want.at)
			}
			twin = twin[1:]
		}
	})
}
