package replica

import (
	"encoding/binary"
	"testing"

	"penstock/core/kv"
	"penstock/core/slots"
)

// TestLiar: a router which claims the maximum number of requests of the maximum size makes its worker look
// loaded, and not idle through an integer overflow.
func TestLiar(t *testing.T) {
	n := newNode(t, 1, 1, 6)
	v := slots.Reservation{Worker: kv.Worker{ID: 1}, PromptTokens: maxTokens, PrefillTokens: maxTokens}
	adds, grows := appendAdd(nil, &v, 4), func(dst []byte, back uint64) []byte {
		return binary.AppendUvarint(appendBack(dst, opGrow, back), maxTokens)
	}
	const rounds = maxEntries/maxChanges + 1
	for i := range uint64(rounds) {
		data := appendChanges(appendHeader(nil, kindChanges, 2, 1), 1+i*maxChanges)
		for range maxChanges {
			data = append(data, adds...)
		}
		setCount(data, maxChanges)
		if err := n.replica.Accept(0, data); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(rounds) {
		data := appendChanges(appendHeader(nil, kindChanges, 2, 1), 1+(rounds+i)*maxChanges)
		for range maxChanges {
			data = grows(data, rounds*maxChanges)
		}
		setCount(data, maxChanges)
		if err := n.replica.Accept(0, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.replica.Check(); err != nil {
		t.Fatal(err)
	}
	load := n.tables[1].Load(v.Worker)
	want := slots.Load{Requests: maxEntries, PrefillTokens: maxEntries * maxTokens, Blocks: maxEntries * maxTokens / 2}
	if load != want {
		t.Errorf("the load is %+v, want %+v", load, want)
	}
}

// TestNamedBlocksAreBounded: prompts beyond the bound count in full and share nothing; ended ones make room.
func TestNamedBlocksAreBounded(t *testing.T) {
	n := newNode(t, 1, 1, 6)
	n.replica.mostNamed = 6
	say := func(first uint64, body []byte) {
		t.Helper()
		data := append(appendChanges(appendHeader(nil, kindChanges, 2, 1), first), body...)
		setCount(data, 1)
		if err := n.replica.Accept(0, data); err != nil {
			t.Fatal(err)
		}
		if err := n.replica.Check(); err != nil {
			t.Fatal(err)
		}
	}
	v := slots.Reservation{Worker: kv.Worker{ID: 1}, Chain: []kv.SeqHash{1, 2, 3, 4}, PromptTokens: 16}
	say(1, appendAdd(nil, &v, 4))
	say(2, appendAdd(nil, &v, 4))
	if b := n.tables[1].Load(v.Worker).Blocks; b != 8 {
		t.Errorf("%d blocks, want 8: there is room for the names of one", b)
	}
	say(3, appendBack(nil, opFree, 2))
	say(4, appendAdd(nil, &v, 4))
	n.replica.mostNamed = 100
	say(5, appendAdd(nil, &v, 4))
	if b := n.tables[1].Load(v.Worker).Blocks; b != 8 {
		t.Errorf("%d blocks, want 8: two share theirs, and one has its own", b)
	}
}
