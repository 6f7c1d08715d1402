package bustest

import (
	"context"
	"math"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
)

func span(t *testing.T, b bus.Bus, topic bus.Topic) bus.Span {
	t.Helper()
	s, err := b.Span(t.Context(), topic)
	if err != nil {
		t.Fatalf("look at %s: %v", topic.Name, err)
	}
	return s
}

func purge(t *testing.T, b bus.Bus, topic bus.Topic, below uint64) {
	t.Helper()
	if err := b.Purge(t.Context(), topic, below); err != nil {
		t.Fatalf("purge %s: %v", topic.Name, err)
	}
}

func testSpan(t *testing.T, b bus.Bus) {
	s := span(t, b, durable) // for a topic that was never used
	if s.Life == 0 || s.First != 1 || s.Last != 0 || s.Messages != 0 || s.Bytes != 0 {
		t.Errorf("an empty topic is %+v", s)
	}
	publishNumbers(t, b, durable, 1, 10)
	now := span(t, b, durable)
	if now.Life != s.Life || now.First != 1 || now.Last != 10 || now.Messages != 10 || now.Bytes < 10 {
		t.Errorf("after 10 messages: %+v, the empty one was %+v", now, s)
	}
	err := b.Subscribe(t.Context(), durable, 0, func(m bus.Message) error {
		if m.Life != s.Life {
			t.Errorf("message %d is of life %d, the topic of %d", m.Seq, m.Life, s.Life)
		}
		return errDone
	}, nil)
	if err != errDone {
		t.Error(err)
	}
	small := bus.Topic{Name: "small.span", Durable: true, MaxBytes: 64 << 10}
	for range 200 {
		publish(t, b, small, "k", strings.Repeat("x", 1<<10))
	}
	got := subscribe(t, b, small, 0).awaitReady().messages()
	if s := span(t, b, small); s.First != got[0].seq || s.Last != 200 || s.Messages != uint64(len(got)) || s.Bytes > 64<<10 {
		t.Errorf("a topic at its bounds is %+v; %d messages come, the first is %d", s, len(got), got[0].seq)
	}
}

// testPurge purges the beginning, nothing, and everything, also during a subscription.
func testPurge(t *testing.T, b bus.Bus) {
	publishNumbers(t, b, durable, 1, 20)
	reader := subscribe(t, b, durable, 0)
	reader.await(20)
	for _, step := range []struct{ below, first uint64 }{
		{0, 1}, {1, 1}, {2, 2}, {12, 12}, {5, 12}, {21, 21}, {math.MaxUint64, 21},
	} {
		purge(t, b, durable, step.below)
		s := span(t, b, durable)
		if s.First != step.first || s.Last != 20 || s.Messages != 21-step.first {
			t.Fatalf("after a purge below %d: %+v, want the first to be %d of 20", step.below, s, step.first)
		}
		if step.first < 21 {
			checkRun(t, subscribe(t, b, durable, 0).awaitReady().messages(), step.first, number)
		}
	}
	if got := subscribe(t, b, durable, 3).awaitReady().messages(); len(got) != 0 {
		t.Errorf("an empty topic gave %v", got)
	}
	publishNumbers(t, b, durable, 21, 25)
	checkRun(t, reader.await(25), 1, number)
	checkRun(t, subscribe(t, b, durable, 3).awaitReady().messages(), 21, number)
}

func testSpanRefuses(t *testing.T, b bus.Bus) {
	for _, topic := range []bus.Topic{gossip, {Name: "a b", Durable: true}, {Name: "a", Durable: true, MaxBytes: -1}} {
		if _, err := b.Span(t.Context(), topic); fault.Of(err) != fault.Invalid {
			t.Errorf("look at %+v: error %v, want Invalid", topic, err)
		}
		if err := b.Purge(t.Context(), topic, 1); fault.Of(err) != fault.Invalid {
			t.Errorf("purge %+v: error %v, want Invalid", topic, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Span(ctx, durable); err != context.Canceled {
		t.Errorf("look with an ended context: %v", err)
	}
	if err := b.Purge(ctx, durable, 1); err != context.Canceled {
		t.Errorf("purge with an ended context: %v", err)
	}
}
