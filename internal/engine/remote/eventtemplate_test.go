package remote

import (
	"bytes"
	"slices"
	"testing"

	"penstock/core/kv"
)

// TestAlike checks that events which match the learned one are read without allocating, and that none matches
// before one was learned.
func TestAlike(t *testing.T) {
	first, second := []byte(`{"text":"a","token_ids":[7]}`), []byte(`{"text":"b\"","token_ids":[8,9]}`)
	var a EventTemplate
	if _, _, ok := a.MatchTokens(first, nil); ok {
		t.Error("an event is like none")
	}
	text, ids := bytes.Index(first, []byte(`"a"`)), bytes.Index(first, []byte(`[7]`))
	a.Reset()
	a.MarkText(text, text+3)
	a.MarkIDs(ids, ids+3)
	a.Learn(first, 2)
	first[2] = 'x' // the event's memory is not kept
	room := make([]kv.Token, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		choice, tokens, ok := a.MatchTokens(second, room[:0])
		if !ok || choice != 2 || !slices.Equal(tokens, []kv.Token{8, 9}) {
			t.Fatalf("choice %d, tokens %d, %v", choice, tokens, ok)
		}
	}); n != 0 {
		t.Errorf("%v allocations for an event", n)
	}
	for at := range second {
		if _, _, ok := a.MatchTokens(second[:at], nil); ok {
			t.Errorf("%s is taken for a whole event", second[:at])
		}
	}
	a.Reset()
	if _, _, ok := a.MatchTokens(second, nil); ok {
		t.Error("an event that is being read was learned")
	}
}
