package kvfeed_test

import (
	"fmt"

	"penstock/core/kv"
	"penstock/core/kvfeed"
)

// Records of a worker arrive, one of them is lost, and the worker publishes it again when asked.
func Example() {
	tracker, err := kvfeed.NewTracker(kvfeed.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	worker := kv.Worker{ID: 1}
	record := func(first uint64, events ...kv.Event) kvfeed.Record {
		return kvfeed.Record{Worker: worker, Epoch: 1, First: first, BlockSize: 4, Events: events}
	}
	stored := func(parent kv.SeqHash, b kv.BlockHash) kv.Event {
		return kv.Event{Kind: kv.Stored, Parent: parent, Blocks: []kv.BlockHash{b}}
	}
	first := record(1, kv.Event{Kind: kv.Cleared}, stored(0, 101)) // an epoch begins with Cleared
	second := record(3, stored(0, 102))
	third := record(4, stored(0, 103))

	for _, r := range []kvfeed.Record{first, third, first, second, third} {
		v := tracker.AcceptRecord(0, &r)
		fmt.Printf("events from %d: %v", r.First, v.Outcome)
		if v.Hide {
			fmt.Print(", hide the worker")
		}
		if v.Show {
			fmt.Print(", show it again")
		}
		if v.Resync {
			fmt.Printf(", request events from %d", v.Request.From)
		}
		fmt.Println()
	}
	// Output:
	// events from 1: apply
	// events from 4: gap, hide the worker, request events from 3
	// events from 1: duplicate
	// events from 3: apply
	// events from 4: apply, show it again
}
