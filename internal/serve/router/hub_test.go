package router

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock/core/feed"
	"penstock/core/kv"
)

func TestEventRowHasLabels(t *testing.T) {
	rec := &feed.Record{First: 1, Events: []kv.Event{
		{Kind: kv.Stored, Blocks: []kv.BlockHash{1, 2, 3}, Labels: []kv.MoELabel{
			{Has: kv.HasExpert, Layer: 3, Expert: 17}, {}, {Has: kv.HasExpert | kv.HasGroup, Expert: 5},
		}},
		{Kind: kv.Stored, Blocks: []kv.BlockHash{4}},
	}}
	for i, want := range []string{`"labels":[{"layer":3,"expert":17},null,{"layer":0,"expert":5,"group":0}]`, ""} {
		data, err := json.Marshal(eventRow(rec, i, "apply"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), want) || strings.Contains(string(data), "labels") != (want != "") {
			t.Errorf("event %d is %s, want %s in it", i, data, want)
		}
	}
}
