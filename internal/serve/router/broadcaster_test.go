package router

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/kvfeed"
)

func TestEventRowHasLabels(t *testing.T) {
	rec := &kvfeed.Record{First: 1, Events: []kv.Event{
		{Kind: kv.Stored, Blocks: []kv.BlockHash{1, 2, 3}, Labels: []kv.MoELabel{
			{Has: kv.HasExpert, Layer: 3, Expert: 17}, {}, {Has: kv.HasExpert | kv.HasGroup, Expert: 5},
		}},
		{Kind: kv.Stored, Blocks: []kv.BlockHash{4}},
	}}
	for i, want := range []string{`"labels":[{"layer":3,"expert":17},null,{"layer":0,"expert":5,"group":0}]`, ""} {
		data, err := json.Marshal(newKVEvent(rec, i, "apply"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), want) || strings.Contains(string(data), "labels") != (want != "") {
			t.Errorf("event %d is %s, want %s in it", i, data, want)
		}
	}
}

func TestEventRowOfATransition(t *testing.T) {
	rec := &kvfeed.Record{First: 8, Events: []kv.Event{
		{Kind: kv.Moved, Seqs: []kv.SeqHash{1, 1 << 63}, Move: kv.PoolMove{To: kv.InTransit, HasPool: true, Access: []kv.Worker{{ID: 3, Rank: 1}}}},
		{Kind: kv.Moved, Seqs: []kv.SeqHash{1}, Move: kv.PoolMove{To: kv.Pooled}},
		{Kind: kv.Moved, Seqs: []kv.SeqHash{1, 2}, Labels: []kv.MoELabel{{Has: kv.HasExpert, Layer: 3, Expert: 4}, {}}, Move: kv.PoolMove{To: kv.Pooled}},
		{Kind: kv.Moved, Move: kv.PoolMove{To: kv.Evicted, HasPool: true, Pool: 2, Access: []kv.Worker{}}},
		{Kind: kv.Removed, Seqs: []kv.SeqHash{1}},
	}}
	for i, want := range []string{
		`"kind":"moved","outcome":"apply","tier":"device","block_size":0,"cxl_state_transition":{"event_id":8,"block_hashes":["0000000000000001","8000000000000000"],"new_state":"in_transit","pool_id":0,"accessible_workers":[{"worker_id":3,"dp_rank":1}]}}`,
		`"cxl_state_transition":{"event_id":9,"block_hashes":["0000000000000001"],"new_state":"cxl_pooled"}}`,
		`"labels":[{"layer":3,"expert":4},null],"cxl_state_transition":{"event_id":10,"block_hashes":["0000000000000001","0000000000000002"],"new_state":"cxl_pooled"}}`,
		`"cxl_state_transition":{"event_id":11,"block_hashes":[],"new_state":"evicted","pool_id":2,"accessible_workers":[]}}`,
		`"kind":"removed","outcome":"apply","tier":"device","block_size":0,"seqs":["0000000000000001"]}`,
	} {
		data, err := json.Marshal(newKVEvent(rec, i, "apply"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(data), want) {
			t.Errorf("event %d is %s, want %s at its end", i, data, want)
		}
	}
}
