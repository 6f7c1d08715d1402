package cachemodel

import (
	"fmt"
	"slices"
	"testing"

	"penstock/core/kv"
)

func count(from, n int) []kv.Token {
	tokens := make([]kv.Token, n)
	for i := range tokens {
		tokens[i] = kv.Token(from + i)
	}
	return tokens
}

// serve runs a request to its end.
func serve(m model, r *EngineRequest, generated []kv.Token) Prediction {
	begun, _ := m.StartRequest(r, nil)
	m.AppendTokens(begun.Ticket, generated, nil)
	m.FinishRequest(begun.Ticket, nil)
	return begun
}

func newBlocks(t testing.TB, cfg PagedConfig) *PagedModel {
	b, err := NewPagedModel(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newSlots(t testing.TB, cfg SlotConfig) *SlotModel {
	s, err := NewSlotModel(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestConversation: a turn finds the whole previous turn cached, except the last sampled token.
func TestConversation(t *testing.T) {
	for name, c := range map[string]struct {
		m     model
		first int // tokens of a repeated prompt of 64
		turn  int // of the next turn, after 64 + 9 tokens
	}{
		"blocks": {newBlocks(t, PagedConfig{BlockSize: 8, Capacity: 100}), 56, 72},
		"slots":  {newSlots(t, SlotConfig{BlockSize: 8, Slots: 2, Context: 1000}), 63, 72},
	} {
		prompt := &EngineRequest{Tokens: count(0, 64)}
		if b := serve(c.m, prompt, count(1000, 9)); b.Cached != 0 {
			t.Errorf("%s: an empty cache had %d tokens", name, b.Cached)
		}
		b, _ := c.m.StartRequest(prompt, nil)
		if b.Cached != c.first {
			t.Errorf("%s: the prompt again: %d tokens, want %d", name, b.Cached, c.first)
		}
		c.m.AbortRequest(b.Ticket, nil)
		if name == "slots" { // the abort left only the prompt
			serve(c.m, prompt, count(1000, 9))
		}
		next := &EngineRequest{Tokens: slices.Concat(prompt.Tokens, count(1000, 9), count(2000, 20))}
		if b, _ := c.m.StartRequest(next, nil); b.Cached != c.turn {
			t.Errorf("%s: the next turn: %d tokens, want %d", name, b.Cached, c.turn)
		}
	}
}

func TestSlotsBusy(t *testing.T) {
	s := newSlots(t, SlotConfig{BlockSize: 4, Slots: 2, Context: 100})
	r := &EngineRequest{Tokens: count(0, 40)}
	first := serve(s, r, count(100, 1))
	a, events := s.StartRequest(r, nil)
	if a.Slot != first.Slot || a.Cached != 39 {
		t.Errorf("the prompt again: %+v, want slot %d", a, first.Slot)
	}
	if len(events) != 1 || events[0].Kind != kv.Removed || len(events[0].Seqs) != 10 {
		t.Errorf("a busy slot serves no other request: %+v", events)
	}
	b, _ := s.StartRequest(r, nil)
	if b.Slot == a.Slot || b.Slot < 0 || b.Cached != 0 {
		t.Errorf("the prompt beside itself: %+v", b)
	}
	c, _ := s.StartRequest(r, nil)
	if c.Slot != -1 || c.Cached != 0 || c.Ticket == 0 {
		t.Errorf("with all slots busy: %+v", c)
	}
	s.FinishRequest(a.Ticket, nil)
	if d, _ := s.StartRequest(r, nil); d.Slot != -1 {
		t.Errorf("behind a request that waits: %+v; the engine takes that one first", d)
	}
	s.ReportSlot(c.Ticket, a.Slot, nil)
	s.AppendTokens(c.Ticket, count(0, 3), nil)
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

func TestSlotsMixed(t *testing.T) {
	s := newSlots(t, SlotConfig{BlockSize: 4, Slots: 1, Context: 100})
	serve(s, &EngineRequest{Tokens: count(0, 40), Salt: kv.Salt{Namespace: "a"}}, count(100, 1))
	b, _ := s.StartRequest(&EngineRequest{Tokens: count(0, 40)}, nil)
	if !b.MixesSalts || b.Cached != 0 {
		t.Errorf("another salt's slot: %+v", b)
	}
	s.FinishRequest(b.Ticket, nil)
	if b, _ := s.StartRequest(&EngineRequest{Tokens: count(0, 40)}, nil); b.MixesSalts || b.Cached != 39 {
		t.Errorf("its own slot: %+v", b)
	}
}

// TestSlotsAborted: an aborted request may have left its sequence in its slot, so no request of another
// salt uses the slot until another sequence was computed there.
func TestSlotsAborted(t *testing.T) {
	s := newSlots(t, SlotConfig{BlockSize: 4, Slots: 1, Context: 100})
	abort := func(salt string) {
		b, _ := s.StartRequest(&EngineRequest{Tokens: count(0, 40), Salt: kv.Salt{Namespace: salt}}, nil)
		s.AbortRequest(b.Ticket, nil)
	}
	mixed := func(salt string) bool {
		b, _ := s.StartRequest(&EngineRequest{Tokens: count(0, 40), Salt: kv.Salt{Namespace: salt}}, nil)
		s.AbortRequest(b.Ticket, nil)
		return b.MixesSalts
	}
	if abort("a"); mixed("a") || !mixed("b") || !mixed("a") {
		t.Error("what an aborted request may have left serves others")
	}
	serve(s, &EngineRequest{Tokens: count(0, 40), Salt: kv.Salt{Namespace: "a"}}, count(100, 1))
	if mixed("a") {
		t.Error("what is computed does not replace what was there")
	}
}

// TestBlocksReport: a smaller report concerns what other requests left, not what this request stores.
func TestBlocksReport(t *testing.T) {
	m := newBlocks(t, PagedConfig{BlockSize: 4, Capacity: 100})
	stem := count(0, 16)
	one := &EngineRequest{Tokens: slices.Concat(stem, count(100, 16))}
	two := &EngineRequest{Tokens: slices.Concat(stem, count(200, 16))}
	serve(m, one, count(300, 1))
	serve(m, two, count(300, 1))
	b, _ := m.StartRequest(two, nil)
	if b.Cached != 28 {
		t.Fatalf("%d tokens, want 28", b.Cached)
	}
	events := m.ReportCached(b.Ticket, 9, nil)
	if len(events) != 1 || events[0].Kind != kv.Removed || len(events[0].Seqs) != 4 {
		t.Errorf("after a smaller report: %+v", events)
	}
	m.FinishRequest(b.Ticket, nil)
	if b, _ := m.StartRequest(two, nil); b.Cached != 28 {
		t.Errorf("the request itself left %d tokens, want 28", b.Cached)
	}
	if b, _ := m.StartRequest(one, nil); b.Cached != 16 {
		t.Errorf("the other one left %d tokens, want 16", b.Cached)
	}
	three := &EngineRequest{Tokens: count(500, 32)}
	b, _ = m.StartRequest(three, nil)
	events = m.ReportCached(b.Ticket, 19, nil)
	if len(events) != 1 || events[0].Kind != kv.Stored || len(events[0].Blocks) != 4 {
		t.Errorf("after a larger report: %+v", events)
	}
}

func TestBounds(t *testing.T) {
	m := newBlocks(t, PagedConfig{BlockSize: 4, Capacity: 5, MaxRequests: 2})
	a, _ := m.StartRequest(&EngineRequest{Tokens: count(0, 100)}, nil)
	m.AppendTokens(a.Ticket, count(0, 100), nil)
	b, _ := m.StartRequest(&EngineRequest{Tokens: count(0, 100)}, nil)
	c, events := m.StartRequest(&EngineRequest{Tokens: count(0, 100)}, nil)
	if m.Len() != 5 || b.Cached != 20 || c.Ticket != 0 || len(events) != 0 {
		t.Errorf("%d blocks, %+v, %+v", m.Len(), b, c)
	}
	if got := m.AppendTokens(c.Ticket, count(0, 100), nil); len(got) != 0 {
		t.Error("a request without account changes something")
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	s := newSlots(t, SlotConfig{BlockSize: 4, Slots: 1, Context: 50})
	if b, _ := s.StartRequest(&EngineRequest{Tokens: count(0, 51)}, nil); b.Ticket != 0 {
		t.Error("a prompt longer than the context has an account")
	}
	for i := range 200 {
		if b, _ := s.StartRequest(&EngineRequest{Tokens: count(0, 50)}, nil); (b.Ticket == 0) != (i > maxQueued) {
			t.Fatalf("request %d: %+v", i, b)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []SlotConfig{
		{BlockSize: 1, Slots: 1, Context: 1},
		{BlockSize: 4, Slots: 0, Context: 1},
		{BlockSize: 4, Slots: 1, Context: 0},
		{BlockSize: 4, Slots: 1, Context: 1, Similarity: 2},
	} {
		if _, err := NewSlotModel(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	for _, cfg := range []PagedConfig{
		{BlockSize: 1, Capacity: 1},
		{BlockSize: 4, Capacity: 0},
		{BlockSize: 4, Capacity: 1, MaxRequests: -1},
	} {
		if _, err := NewPagedModel(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

// TestEventsAreKept: the receiver owns the slices of events.
func TestEventsAreKept(t *testing.T) {
	m := newBlocks(t, PagedConfig{BlockSize: 4, Capacity: 8})
	set := map[kv.SeqHash]bool{}
	var all []kv.Event
	for i := range 200 {
		b, _ := m.StartRequest(&EngineRequest{Tokens: count(i%13*100, 20)}, nil)
		all = m.AppendTokens(b.Ticket, count(7, 9), all)
		all = m.FinishRequest(b.Ticket, all)
	}
	believed(t, set, all)
	if len(set) != m.Len() {
		t.Errorf("events kept to the end make %d blocks of %d", len(set), m.Len())
	}
}

// TestAllocations: with warm memory a request costs less than one allocation.
func TestAllocations(t *testing.T) {
	for name, m := range map[string]model{
		"blocks": newBlocks(t, PagedConfig{BlockSize: 16, Capacity: 500}),
		"slots":  newSlots(t, SlotConfig{BlockSize: 16, Slots: 4, Context: 4096}),
	} {
		requests := make([]*EngineRequest, 20)
		for i := range requests {
			requests[i] = &EngineRequest{Tokens: append(count(0, 320), count(1000*i, 640)...)}
		}
		var out []kv.Event
		i, generated := 0, count(5, 40)
		run := func() {
			for range 8 {
				b, _ := m.StartRequest(requests[i%len(requests)], nil)
				i++
				out = m.AppendTokens(b.Ticket, generated, out[:0])
				out = m.FinishRequest(b.Ticket, out[:0])
			}
		}
		for range 100 {
			run()
		}
		if n := testing.AllocsPerRun(100, run); n > 8 {
			t.Errorf("%s: %v allocations for 8 requests", name, n)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	for name, m := range map[string]model{
		"blocks": newBlocks(b, PagedConfig{BlockSize: 16, Capacity: 20000}),
		"slots":  newSlots(b, SlotConfig{BlockSize: 16, Slots: 8, Context: 4096}),
	} {
		requests := make([]*EngineRequest, 64)
		for i := range requests {
			requests[i] = &EngineRequest{Tokens: append(count(0, 1000), count(1000*i, 1000)...)}
		}
		b.Run(fmt.Sprint(name, "/2000+100"), func(b *testing.B) {
			b.ReportAllocs()
			var out []kv.Event
			generated := count(5, 1)
			for i := range b.N {
				begun, _ := m.StartRequest(requests[i%len(requests)], nil)
				for range 100 {
					out = m.AppendTokens(begun.Ticket, generated, out[:0])
				}
				out = m.FinishRequest(begun.Ticket, out[:0])
			}
		})
	}
}
