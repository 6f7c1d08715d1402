package batch

import (
	"errors"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"

	"github.com/google/go-cmp/cmp"
)

func TestOutboxMerges(t *testing.T) {
	o := newOutbox(3, 2, [][]kv.Token{nil, make([]kv.Token, 5)})
	o.finishChoice(1, engine.FinishStop)
	if deltas, last, err := o.takeDeltas(); len(deltas) != 0 || last || err != nil {
		t.Fatalf("before it is accepted: %+v, %v, %v", deltas, last, err)
	}
	o.markAccepted()
	o.appendToken(0, 10, nil, 32, 6, engine.NotFinished)
	o.appendToken(0, 11, nil, 0, 0, engine.NotFinished)
	want := []engine.Delta{
		{Attempt: 3, Accepted: true},
		{Attempt: 3, Choice: 0, Tokens: []kv.Token{10, 11}, Cached: 32, Computed: 6},
		{Attempt: 3, Choice: 1, Pos: 5, Finish: engine.FinishStop},
	}
	deltas, last, err := o.takeDeltas()
	if diff := cmp.Diff(want, deltas); diff != "" || last || err != nil {
		t.Fatalf("last %v, error %v (-want +got)\n%s", last, err, diff)
	}

	o.appendToken(0, 12, &engine.Logprob{Token: 12, Logprob: -1}, 0, 0, engine.FinishLength)
	o.close(nil)
	o.close(errors.New("too late"))
	want = []engine.Delta{{
		Attempt: 3, Choice: 0, Pos: 2, Tokens: []kv.Token{12},
		Logprobs: []engine.Logprob{{Token: 12, Logprob: -1}}, Finish: engine.FinishLength,
	}}
	deltas, last, err = o.takeDeltas()
	if diff := cmp.Diff(want, deltas); diff != "" || !last || err != nil {
		t.Fatalf("last %v, error %v (-want +got)\n%s", last, err, diff)
	}
	if deltas, last, _ := o.takeDeltas(); len(deltas) != 0 || !last {
		t.Fatalf("after the last: %+v, %v", deltas, last)
	}
}

// TestOutboxEndsBare checks that a finish without a token is never in a delta with tokens.
func TestOutboxEndsBare(t *testing.T) {
	o := newOutbox(1, 1, [][]kv.Token{{8, 9}})
	o.markAccepted()
	o.appendToken(0, 10, nil, 8, 0, engine.NotFinished)
	o.appendToken(0, 11, nil, 0, 0, engine.NotFinished)
	o.finishChoice(0, engine.FinishStop)
	want := []engine.Delta{
		{Attempt: 1, Accepted: true},
		{Attempt: 1, Pos: 2, Tokens: []kv.Token{10, 11}, Cached: 8},
		{Attempt: 1, Pos: 4, Finish: engine.FinishStop},
	}
	deltas, _, err := o.takeDeltas()
	if diff := cmp.Diff(want, deltas); diff != "" || err != nil {
		t.Fatalf("error %v (-want +got)\n%s", err, diff)
	}
}

// TestOutboxHoldsWhatItHandedOut checks that deltas stay unchanged while the loop continues, until the next
// takeDeltas.
func TestOutboxHoldsWhatItHandedOut(t *testing.T) {
	o := newOutbox(1, 1, nil)
	o.markAccepted()
	next := kv.Token(0)
	for round := range 50 {
		for range 1 + round%7 {
			o.appendToken(0, next, nil, 0, 0, engine.NotFinished)
			next++
		}
		deltas, _, _ := o.takeDeltas()
		d := deltas[len(deltas)-1]
		for range 5 {
			o.appendToken(0, next, nil, 0, 0, engine.NotFinished)
			next++
		}
		for i, x := range d.Tokens {
			if int(x) != d.Pos+i {
				t.Fatalf("round %d: position %d holds token %d", round, d.Pos+i, x)
			}
		}
	}
}

func TestOutboxDoesNotAllocateWhenWarm(t *testing.T) {
	o := newOutbox(1, 1, nil)
	o.markAccepted()
	pass := func() {
		o.appendToken(0, 1, nil, 0, 0, engine.NotFinished)
		o.takeDeltas()
	}
	pass()
	pass()
	if n := testing.AllocsPerRun(100, pass); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
}
