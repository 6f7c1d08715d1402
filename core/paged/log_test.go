package paged

import (
	"slices"
	"testing"

	"penstock/core/kv"
)

// serve runs one prompt to its first token and removes it.
func serve(t *testing.T, s *Scheduler, id SeqID, tokens []kv.Token) {
	t.Helper()
	if err := s.AddSequence(Sequence{ID: id, Tokens: tokens, Prompt: len(tokens)}); err != nil {
		t.Fatal(err)
	}
	var step Step
	for range 100 {
		s.Step(&step)
		s.Commit(nil)
		if len(step.Work) == 1 && step.Work[0].Sample {
			s.RemoveSequence(id)
			return
		}
	}
	t.Fatalf("sequence %d was not served in 100 steps", id)
}

// prompt returns n tokens which no prompt with another first has.
func prompt(first, n int) []kv.Token {
	tokens := make([]kv.Token, n)
	for i := range tokens {
		tokens[i] = kv.Token(first + i)
	}
	return tokens
}

func registeredSet(s *Scheduler) map[kv.SeqHash]bool {
	set := map[kv.SeqHash]bool{}
	for seq := range s.pool.index {
		set[seq] = true
	}
	return set
}

// TestEventsThatAreNotTaken: the log is bounded, and the result after an overflow still describes the cache.
func TestEventsThatAreNotTaken(t *testing.T) {
	s, err := New(Config{Blocks: 40, BlockSize: 2, MaxSeqs: 1, TokenBudget: 80, MaxContext: 80, MaxWaiting: 1})
	if err != nil {
		t.Fatal(err)
	}
	replica := map[kv.SeqHash]bool{}
	follow := func() []kv.Event {
		t.Helper()
		events := s.AppendEvents(nil)
		if err := replay(replica, events, nil); err != nil {
			t.Fatal(err)
		}
		want := registeredSet(s)
		for seq := range want {
			if !replica[seq] {
				t.Fatalf("%x is registered and not reported", seq)
			}
		}
		if len(replica) != len(want) {
			t.Fatalf("%d blocks are reported, %d are registered", len(replica), len(want))
		}
		return events
	}

	serve(t, s, 1, prompt(0, 61))
	if e := follow(); e[0].Kind != kv.Stored {
		t.Errorf("the first event is %v, want what was stored", e[0].Kind)
	}
	for i := range 100 {
		serve(t, s, 1, prompt(1000*i, 61))
		if n := len(s.pool.log.blocks) + len(s.pool.log.seqs); n > minLogHashes {
			t.Fatalf("the log has %d hashes, its bound is %d", n, minLogHashes)
		}
	}
	if e := follow(); e[0].Kind != kv.Cleared {
		t.Errorf("the first event is %v after more changes than can be kept, want cleared", e[0].Kind)
	}
	// From here on changes are reported one by one again.
	serve(t, s, 1, prompt(500, 61))
	if e := follow(); e[0].Kind != kv.Removed {
		t.Errorf("the first event is %v, want what was removed", e[0].Kind)
	}
	// A Clear makes the lost changes irrelevant.
	for i := range 100 {
		serve(t, s, 1, prompt(1000*i, 61))
	}
	s.Clear()
	if e := follow(); len(e) != 1 || e[0].Kind != kv.Cleared {
		t.Errorf("after Clear the events are %v, want one cleared", e)
	}
}

// TestEventsBelongToTheCaller: later changes do not affect returned events.
func TestEventsBelongToTheCaller(t *testing.T) {
	s, err := New(Config{Blocks: 8, BlockSize: 4, MaxSeqs: 1, TokenBudget: 32, MaxContext: 32, MaxWaiting: 1})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s, 1, prompt(0, 25))
	serve(t, s, 1, prompt(100, 25))
	serve(t, s, 1, prompt(300, 25)) // a second removal
	events := append(s.AppendEvents(nil), s.AppendDump(nil)...)
	var copies []kv.Event
	for _, e := range events {
		e.Blocks, e.Seqs = slices.Clone(e.Blocks), slices.Clone(e.Seqs)
		copies = append(copies, e)
	}
	for i, e := range events {
		// An append must not write into the next event's hashes.
		_ = append(e.Blocks, 1)
		_ = append(e.Seqs, 1)
		events[i] = e
	}
	serve(t, s, 1, prompt(200, 25))
	s.Clear()
	s.AppendEvents(nil)
	for i, e := range events {
		if !slices.Equal(e.Blocks, copies[i].Blocks) || !slices.Equal(e.Seqs, copies[i].Seqs) {
			t.Errorf("event %d was %v and is %v", i, copies[i], e)
		}
	}
}

// TestEventsAreBatched: consecutive changes share an event; another kind, a broken chain or a Clear starts
// a new one.
func TestEventsAreBatched(t *testing.T) {
	block := func(index uint32, after, seq kv.SeqHash) *blockContent {
		return &blockContent{index: index, parentSeq: after, seq: seq, hash: kv.BlockHash(seq) + 100}
	}
	for name, test := range map[string]struct {
		do   func(l *eventLog)
		want []kv.Event
	}{
		"one chain": {func(l *eventLog) {
			l.logStored(block(0, 0, 1))
			l.logStored(block(1, 1, 2))
			l.logStored(block(2, 2, 3))
		}, []kv.Event{{Kind: kv.Stored, Blocks: []kv.BlockHash{101, 102, 103}}}},
		"the middle of a chain": {func(l *eventLog) {
			l.logStored(block(5, 4, 5))
			l.logStored(block(6, 5, 6))
		}, []kv.Event{{Kind: kv.Stored, Start: 5, Parent: 4, Blocks: []kv.BlockHash{105, 106}}}},
		"another parent": {func(l *eventLog) {
			l.logStored(block(0, 0, 1))
			l.logStored(block(1, 9, 2))
		}, []kv.Event{{Kind: kv.Stored, Blocks: []kv.BlockHash{101}}, {Kind: kv.Stored, Start: 1, Parent: 9, Blocks: []kv.BlockHash{102}}}},
		"another beginning": {func(l *eventLog) {
			l.logStored(block(0, 0, 1))
			l.logStored(block(0, 0, 2))
		}, []kv.Event{{Kind: kv.Stored, Blocks: []kv.BlockHash{101}}, {Kind: kv.Stored, Blocks: []kv.BlockHash{102}}}},
		"another kind between": {func(l *eventLog) {
			l.logStored(block(0, 0, 1))
			l.logRemoved(7)
			l.logRemoved(8)
			l.logStored(block(1, 1, 2))
		}, []kv.Event{
			{Kind: kv.Stored, Blocks: []kv.BlockHash{101}},
			{Kind: kv.Removed, Seqs: []kv.SeqHash{7, 8}},
			{Kind: kv.Stored, Start: 1, Parent: 1, Blocks: []kv.BlockHash{102}},
		}},
		"a Clear": {func(l *eventLog) {
			l.logStored(block(0, 0, 1))
			l.logCleared()
			l.logStored(block(1, 1, 2))
		}, []kv.Event{{Kind: kv.Cleared}, {Kind: kv.Stored, Start: 1, Parent: 1, Blocks: []kv.BlockHash{102}}}},
		"taken in between": {func(l *eventLog) {
			l.logStored(block(0, 0, 1))
			l.drainEvents(nil)
			l.logStored(block(1, 1, 2))
		}, []kv.Event{{Kind: kv.Stored, Start: 1, Parent: 1, Blocks: []kv.BlockHash{102}}}},
	} {
		l := newEventLog(0)
		test.do(&l)
		got := l.drainEvents(nil)
		if !slices.EqualFunc(got, test.want, func(a, b kv.Event) bool {
			return a.Kind == b.Kind && a.Start == b.Start && a.Parent == b.Parent && slices.Equal(a.Blocks, b.Blocks) && slices.Equal(a.Seqs, b.Seqs)
		}) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
