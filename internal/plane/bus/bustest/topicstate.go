package bustest

import (
	"context"
	"math"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

func describeTopic(t *testing.T, b bus.Bus, topic bus.Topic) bus.TopicState {
	t.Helper()
	s, err := b.DescribeTopic(fixturetest.PatientContext(t), topic)
	if err != nil {
		t.Fatalf("look at %s: %v", topic.Name, err)
	}
	return s
}

func purgeTopic(t *testing.T, b bus.Bus, topic bus.Topic, below uint64) {
	t.Helper()
	if err := b.Purge(fixturetest.PatientContext(t), topic, below); err != nil {
		t.Fatalf("purge %s: %v", topic.Name, err)
	}
}

func testSpan(t *testing.T, b bus.Bus) {
	s := describeTopic(t, b, durable) // for a topic that was never used
	if s.Incarnation == 0 || s.First != 1 || s.Last != 0 || s.Messages != 0 || s.Bytes != 0 {
		t.Errorf("an empty topic is %+v", s)
	}
	publishNumbers(t, b, durable, 1, 10)
	now := describeTopic(t, b, durable)
	if now.Incarnation != s.Incarnation || now.First != 1 || now.Last != 10 || now.Messages != 10 || now.Bytes < 10 {
		t.Errorf("after 10 messages: %+v, the empty one was %+v", now, s)
	}
	err := b.Subscribe(t.Context(), durable, 0, func(m bus.Message) error {
		if m.Incarnation != s.Incarnation {
			t.Errorf("message %d is of life %d, the topic of %d", m.Seq, m.Incarnation, s.Incarnation)
		}
		return errDone
	}, nil)
	if err != errDone {
		t.Error(err)
	}
	small := bus.Topic{Name: "small.span", Durable: true, MaxBytes: 64 << 10}
	for range 200 {
		publishMessage(t, b, small, "k", strings.Repeat("x", 1<<10))
	}
	got := startSubscriber(t, b, small, 0).awaitReady().received()
	if s := describeTopic(t, b, small); s.First != got[0].seq || s.Last != 200 || s.Messages != uint64(len(got)) || s.Bytes > 64<<10 {
		t.Errorf("a topic at its bounds is %+v; %d messages come, the first is %d", s, len(got), got[0].seq)
	}
}

// testPurge purges the beginning, nothing, and everything, also during a subscription.
func testPurge(t *testing.T, b bus.Bus) {
	publishNumbers(t, b, durable, 1, 20)
	reader := startSubscriber(t, b, durable, 0)
	reader.awaitMessages(20)
	for _, step := range []struct{ below, first uint64 }{
		{0, 1}, {1, 1}, {2, 2}, {12, 12}, {5, 12}, {21, 21}, {math.MaxUint64, 21},
	} {
		purgeTopic(t, b, durable, step.below)
		s := describeTopic(t, b, durable)
		if s.First != step.first || s.Last != 20 || s.Messages != 21-step.first {
			t.Fatalf("after a purge below %d: %+v, want the first to be %d of 20", step.below, s, step.first)
		}
		if step.first < 21 {
			checkRun(t, startSubscriber(t, b, durable, 0).awaitReady().received(), step.first, formatNumber)
		}
	}
	if got := startSubscriber(t, b, durable, 3).awaitReady().received(); len(got) != 0 {
		t.Errorf("an empty topic gave %v", got)
	}
	publishNumbers(t, b, durable, 21, 25)
	checkRun(t, reader.awaitMessages(25), 1, formatNumber)
	checkRun(t, startSubscriber(t, b, durable, 3).awaitReady().received(), 21, formatNumber)
}

func testSpanRefuses(t *testing.T, b bus.Bus) {
	for _, topic := range []bus.Topic{gossip, {Name: "a b", Durable: true}, {Name: "a", Durable: true, MaxBytes: -1}} {
		if _, err := b.DescribeTopic(fixturetest.PatientContext(t), topic); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("look at %+v: error %v, want Invalid", topic, err)
		}
		if err := b.Purge(fixturetest.PatientContext(t), topic, 1); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("purge %+v: error %v, want Invalid", topic, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.DescribeTopic(ctx, durable); err != context.Canceled {
		t.Errorf("look with an ended context: %v", err)
	}
	if err := b.Purge(ctx, durable, 1); err != context.Canceled {
		t.Errorf("purge with an ended context: %v", err)
	}
}
