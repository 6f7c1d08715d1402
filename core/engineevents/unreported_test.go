package engineevents

import (
	"slices"
	"testing"

	"penstock/core/kv"
)

// TestVeil: for an engine which does not report salts, blocks which start as a salted prompt are
// suppressed. Blocks known before stay, other starts are accepted, and one event with a salt ends the
// suppression.
func TestVeil(t *testing.T) {
	prompt := func(first kv.Token) []kv.Token { return []kv.Token{first, 2, 3, 4, 5, 6, 7, 8} }
	stored := func(first kv.Token, hashes ...kv.EngineHash) Event {
		return Event{Kind: Stored, Hashes: hashes, Tokens: prompt(first), BlockSize: 4, Group: -1}
	}
	for _, c := range []struct {
		name   string
		salted [][]kv.Token
		events []Event
		want   int // stored blocks
	}{
		{"no salted prompt", nil, []Event{stored(1, 11, 12)}, 2},
		{"the same beginning", [][]kv.Token{prompt(1)}, []Event{stored(1, 11, 12)}, 0},
		{"another beginning", [][]kv.Token{prompt(9)}, []Event{stored(1, 11, 12)}, 2},
		{"a prompt shorter than a block", [][]kv.Token{{1, 2}}, []Event{stored(1, 11, 12)}, 0},
		{"an unknown prompt", [][]kv.Token{nil}, []Event{stored(1, 11, 12)}, 0},
		{"what follows it", [][]kv.Token{prompt(1)}, []Event{stored(1, 11, 12), {
			Kind: Stored, Hashes: []kv.EngineHash{13}, Parent: 12, HasParent: true, Tokens: []kv.Token{1, 1, 1, 1}, BlockSize: 4, Group: -1,
		}}, 0},
		{"one that tells", [][]kv.Token{prompt(1)}, []Event{func() Event {
			e := stored(1, 11, 12)
			e.Extra = make([]Extra, 2)
			return e
		}()}, 2},
		{"after one that tells", [][]kv.Token{prompt(1)}, []Event{{
			Kind: Stored, Hashes: []kv.EngineHash{20}, Tokens: []kv.Token{8, 8, 8, 8}, BlockSize: 4, Group: -1, Salt: "s",
		}, stored(1, 11, 12)}, 3},
	} {
		for _, size := range []int{4, 8} { // 8: two engine blocks make one of ours
			table, err := NewTable(Config{BlockSize: size, EngineBlockSize: 4})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range c.salted {
				table.RecordSalted(p)
			}
			got := count(table.Apply(&Batch{Events: slices.Clone(c.events)}, nil))
			if want := c.want * 4 / size; got != want {
				t.Errorf("%s, blocks of %d: %d blocks are stored, want %d", c.name, size, got, want)
			}
			if (table.SuppressedBySalt() > 0) != (c.want == 0) {
				t.Errorf("%s: %d blocks were not believed", c.name, table.SuppressedBySalt())
			}
		}
	}

	table, err := NewTable(Config{BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	table.Apply(&Batch{Events: []Event{stored(1, 11, 12)}}, nil)
	table.RecordSalted(prompt(1))
	out := table.Apply(&Batch{Events: []Event{stored(1, 11, 12), stored(1, 21, 22), stored(1, 21, 22)}}, nil)
	if n := count(out); n != 0 {
		t.Errorf("%d blocks are stored", n)
	}
	out = table.Apply(&Batch{Events: []Event{{Kind: Removed, Hashes: []kv.EngineHash{22, 21}, Group: -1}}}, nil)
	if len(out) != 0 {
		t.Errorf("what has no name is removed: %v", out)
	}
	if s := table.Stats(); s.Ambiguous != 0 {
		t.Errorf("%d names are taken for ambiguous", s.Ambiguous)
	}
}

// count returns the number of stored blocks.
func count(events []kv.Event) (n int) {
	for _, e := range events {
		if e.Kind == kv.Stored {
			n += len(e.Blocks)
		}
	}
	return n
}

// TestVeilOfAdapters: events which report salts may hide adapters. Then blocks which start as an adapter's
// prompt are suppressed.
func TestVeilOfAdapters(t *testing.T) {
	for _, hides := range []bool{false, true} {
		table, err := NewTable(Config{BlockSize: 4, HidesAdapters: hides})
		if err != nil {
			t.Fatal(err)
		}
		salted := Event{Kind: Stored, Hashes: []kv.EngineHash{1}, Tokens: []kv.Token{9, 9, 9, 9}, BlockSize: 4, Group: -1, Salt: "s"}
		table.Apply(&Batch{Events: []Event{salted}}, nil)
		if told := table.RecordAdapted([]kv.Token{1, 2, 3, 4, 5}); told == hides {
			t.Errorf("adapters are hidden: %v, told: %v", hides, told)
		}
		store := Event{Kind: Stored, Hashes: []kv.EngineHash{2, 3}, Tokens: []kv.Token{1, 2, 3, 4, 5, 6, 7, 8}, BlockSize: 4, Group: -1}
		want := 2
		if hides {
			want = 0
		}
		if n := count(table.Apply(&Batch{Events: []Event{store}}, nil)); n != want || table.SuppressedByAdapter() != uint64(2-want) {
			t.Errorf("adapters are hidden: %v, %d blocks are stored, %d are not believed", hides, n, table.SuppressedByAdapter())
		}
	}
}
