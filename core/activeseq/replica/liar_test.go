package replica

import (
	"encoding/binary"
	"testing"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// TestLiar: a router which claims the maximum number of requests of the maximum size makes its worker look
// loaded, and not idle through an integer overflow.
func TestLiar(t *testing.T) {
	n := newNode(t, 1, 1, 6)
	v := activeseq.Reservation{Worker: kv.Worker{ID: 1}, PromptTokens: maxTokens, PrefillTokens: maxTokens}
	adds, grows := appendReservation(nil, &v, 4), func(dst []byte, back uint64) []byte {
		return binary.AppendUvarint(appendChange(dst, opGrown, back), maxTokens)
	}
	const rounds = maxReservations/maxChanges + 1
	for i := range uint64(rounds) {
		data := appendChanges(appendHeader(nil, kindChanges, 2, 1), 1+i*maxChanges)
		for range maxChanges {
			data = append(data, adds...)
		}
		setCount(data, maxChanges)
		if err := n.replica.HandleMessage(0, data); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(rounds) {
		data := appendChanges(appendHeader(nil, kindChanges, 2, 1), 1+(rounds+i)*maxChanges)
		for range maxChanges {
			data = grows(data, rounds*maxChanges)
		}
		setCount(data, maxChanges)
		if err := n.replica.HandleMessage(0, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.replica.Check(); err != nil {
		t.Fatal(err)
	}
	load := n.tables[1].LoadOf(v.Worker)
	want := activeseq.Load{Requests: maxReservations, PrefillTokens: maxReservations * maxTokens, Blocks: maxReservations * maxTokens / 2}
	if load != want {
		t.Errorf("the load is %+v, want %+v", load, want)
	}
}

// TestNamedBlocksAreBounded: prompts beyond the bound count in full and share nothing; ended ones make room.
func TestNamedBlocksAreBounded(t *testing.T) {
	n := newNode(t, 1, 1, 6)
	n.replica.maxNamed = 6
	say := func(first uint64, body []byte) {
		t.Helper()
		data := append(appendChanges(appendHeader(nil, kindChanges, 2, 1), first), body...)
		setCount(data, 1)
		if err := n.replica.HandleMessage(0, data); err != nil {
			t.Fatal(err)
		}
		if err := n.replica.Check(); err != nil {
			t.Fatal(err)
		}
	}
	v := activeseq.Reservation{Worker: kv.Worker{ID: 1}, Chain: []kv.SeqHash{1, 2, 3, 4}, PromptTokens: 16}
	say(1, appendReservation(nil, &v, 4))
	say(2, appendReservation(nil, &v, 4))
	if b := n.tables[1].LoadOf(v.Worker).Blocks; b != 8 {
		t.Errorf("%d blocks, want 8: there is room for the names of one", b)
	}
	say(3, appendChange(nil, opFreed, 2))
	say(4, appendReservation(nil, &v, 4))
	n.replica.maxNamed = 100
	say(5, appendReservation(nil, &v, 4))
	if b := n.tables[1].LoadOf(v.Worker).Blocks; b != 8 {
		t.Errorf("%d blocks, want 8: two share theirs, and one has its own", b)
	}
}
