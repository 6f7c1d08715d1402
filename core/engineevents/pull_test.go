package engineevents

import "testing"

// TestPullNumbers: a gap in the numbers, or a restart of the numbers, is reported, and nothing from before
// it is left.
func TestPullNumbers(t *testing.T) {
	removed := `"data":{"type":"removed","block_hashes":[7]}}`
	d := PullDecoder{BlockSize: 2}
	var b Batch
	for _, c := range []struct {
		json   string
		lost   bool
		events int
	}{
		{`[]`, false, 0},
		{`[{"event_id":5,` + removed + `]`, false, 1},
		{`[{"event_id":6,` + removed + `,{"event_id":7,` + removed + `]`, false, 2},
		{`[{"event_id":8,` + removed + `,{"event_id":10,` + removed + `]`, true, 1},
		{`[{"event_id":0,` + removed + `]`, true, 1},
		{`[{` + removed + `]`, false, 1},
		{`[{"event_id":1,` + removed + `]`, false, 1},
	} {
		if lost, err := d.Decode([]byte(c.json), &b); err != nil || lost != c.lost || len(b.Events) != c.events {
			t.Errorf("%s: lost is %v, %d events, %v", c.json, lost, len(b.Events), err)
		}
	}
}

// TestPullCounts: unreadable events are counted by their possible kind.
func TestPullCounts(t *testing.T) {
	d := PullDecoder{BlockSize: 2}
	var b Batch
	for json, want := range map[string][4]int{ // events, skipped, lost, unknown
		`[{"data":{"type":"news"}}]`:                                      {0, 0, 0, 1},
		`[{"data":{"type":"stored","parent_hash":{},"blocks":[]}}]`:       {0, 1, 0, 0},
		`[{"data":{"type":"stored","blocks":3}}]`:                         {0, 1, 0, 0},
		`[{"data":{"type":"removed","block_hashes":[{}]}}]`:               {0, 0, 1, 0},
		`[{"data":{"type":"updated","block_hash":"x1","cache_level":7}}]`: {0, 0, 1, 0},
		`[{"data":[]}]`: {0, 0, 1, 0},
		`[{}]`:          {0, 0, 1, 0},
		`[{"attention_dp_rank":3,"data":{"type":"created"}}]`: {0, 0, 0, 0},
		`[{"window_size":128,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":-1,"tokens":[{"token_id":1,"token_extra_id":9},{"token_id":2}]},{"block_hash":2,"cache_level":1,"lora_id":4,"tokens":[{"token_id":-1},{"token_id":2}]}]}}]`: {2, 0, 0, 0},
	} {
		if _, err := d.Decode([]byte(json), &b); err != nil {
			t.Errorf("%s: %v", json, err)
		}
		if got := [4]int{len(b.Events), b.Skipped, b.Lost, b.Unknown}; got != want {
			t.Errorf("%s: %v, want %v", json, got, want)
		}
		if len(b.Events) == 2 {
			one, two := b.Events[0], b.Events[1]
			if one.Extra[0].Keys[0].Kind != KeyOpaque || one.Group != 128 || !two.InvalidTokens || two.LoRAID != 4 || two.Medium != "CPU" || two.Parent != 1<<64-1 {
				t.Errorf("%+v", b.Events)
			}
		}
	}
	for _, bad := range []string{``, `{}`, `[1]`, `[{}`, `[]]`, `[{}] x`} {
		if _, err := d.Decode([]byte(bad), &b); err == nil {
			t.Errorf("%q is an answer", bad)
		}
	}
}

// TestPullRanks: each rank has separate numbers, and events of other ranks are skipped.
func TestPullRanks(t *testing.T) {
	const answer = `[{"event_id":4,"attention_dp_rank":0,"data":{"type":"removed","block_hashes":[1]}},
		{"event_id":9,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[2]}},
		{"event_id":5,"attention_dp_rank":0,"data":{"type":"removed","block_hashes":[3]}}]`
	for rank, events := range map[int]int{-1: 2, 0: 2, 1: 1, 2: 0} {
		d := PullDecoder{BlockSize: 2, Rank: rank}
		var b Batch
		if lost, err := d.Decode([]byte(answer), &b); err != nil || lost || len(b.Events) != events {
			t.Errorf("rank %d: lost is %v, %d events, %v", rank, lost, len(b.Events), err)
		}
	}
}

// TestPullWindows: among several attention windows the largest one is followed; adapter and salt come from
// the event.
func TestPullWindows(t *testing.T) {
	const answer = `[{"window_size":512,"data":{"type":"created"}},{"window_size":4096,"data":{"type":"created"}},
		{"window_size":512,"layer_group_id":0,"data":{"type":"stored","lora_name":"sql","cache_salt":"s","blocks":[{"block_hash":"0a0b0c0d0e0f1011","tokens":[{"token_id":1},{"token_id":2}]}]}},
		{"window_size":4096,"layer_group_id":1,"data":{"type":"stored","blocks":[{"block_hash":2,"tokens":[{"token_id":1},{"token_id":2}]}]}}]`
	d := PullDecoder{BlockSize: 2}
	var b Batch
	if _, err := d.Decode([]byte(answer), &b); err != nil || len(b.Events) != 2 {
		t.Fatalf("%d events, %v", len(b.Events), err)
	}
	small, large := b.Events[0], b.Events[1]
	if small.Spec != "sliding_window" || small.Group != 0 || small.LoRA != "sql" || small.Salt != "s" || small.Hashes[0] != 0x0a0b0c0d0e0f1011 || large.Spec != "" || large.Group != 1 {
		t.Errorf("%+v", b.Events)
	}
}

// FuzzPull: no answer breaks the decoder or the table.
func FuzzPull(f *testing.F) {
	f.Add([]byte(`[{"event_id":1,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":5,"tokens":[{"token_id":1},{"token_id":2}]}]}},{"data":{"type":"removed","block_hashes":[5]}}]`))
	f.Add([]byte(`[{"data":{"type":"updated","block_hash":"12","cache_level":{"old_value":0,"new_value":9}}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := PullDecoder{BlockSize: 2}
		var b Batch
		if _, err := d.Decode(data, &b); err != nil {
			return
		}
		feedTable(t, &b)
	})
}
