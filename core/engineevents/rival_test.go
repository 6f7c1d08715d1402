package engineevents

import (
	"testing"
	"time"

	"penstock/core/kv"
)

// TestRival: a prompt whose blocks may belong to another prompt is not examined again as long as that
// holds. Its hash is resolved once the engine reports that the other had nothing cached, or the other is
// dropped.
func TestRival(t *testing.T) {
	tokens := func(firsts ...int) (out []kv.Token) {
		for _, first := range firsts {
			for i := range 16 {
				out = append(out, kv.Token(first+i))
			}
		}
		return out
	}
	for _, reported := range []bool{true, false} {
		table, err := NewTable(Config{BlockSize: 16, Capacity: 64})
		if err != nil {
			t.Fatal(err)
		}
		table.SetHistory(PartialHistory, nil)
		waits := table.RecordSent(tokens(300, 200, 400), nil, kv.Salt{})
		served := table.RecordSent(tokens(100, 200, 500)[:33], nil, kv.Salt{})
		table.RecordGenerated(served, tokens(501)[:4])
		table.Apply(&Batch{Events: []Event{{
			Kind: Stored, BlockSize: 16, Group: -1, HasParent: true, Parent: 7, Tokens: tokens(200), Hashes: []kv.EngineHash{8},
		}}}, nil)
		table.RecordCached(served, 16, nil)
		table.RecordEnd(served, Served, 0)
		now := kv.Mono(time.Second)
		table.ResolveHashes(now, nil)
		p := table.requests.findRequest(served)
		if table.stats.Resolved != 0 || p.rival != waits {
			t.Fatalf("%d names are found, and the rival is %d, want %d", table.stats.Resolved, p.rival, waits)
		}
		table.RecordEnd(table.RecordSent(tokens(600), nil, kv.Salt{}), Broken, now) // something else changes
		if table.ResolveHashes(now, nil); p.triedChanges == table.requests.changes {
			t.Error("it was looked at again")
		}
		if reported {
			table.RecordCached(waits, 0, nil)
		} else {
			table.requests.dropRequest(0)
			table.requests.changes++
		}
		table.ResolveHashes(now, nil)
		if table.stats.Resolved != 1 {
			t.Errorf("reported %v: %d names are found, want 1", reported, table.stats.Resolved)
		}
	}
}
