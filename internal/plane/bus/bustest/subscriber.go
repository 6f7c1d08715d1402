package bustest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

// patience bounds a wait by half of the test binary's remaining time, so that a failing test
// reports what it waited for. No test passes by reaching it; how long a wait takes depends on the
// machine.
func patience(t *testing.T) <-chan time.Time {
	end, ok := t.Deadline()
	if !ok {
		return nil
	}
	return time.After(time.Until(end) / 2)
}

// copiedMessage is a bus.Message with its own copy of the data.
type copiedMessage struct {
	key, data string
	seq       uint64
}

// subscriber collects the messages of one subscription.
type subscriber struct {
	t      *testing.T
	cancel context.CancelFunc
	ready  chan struct{} // closed when ready was called
	done   chan struct{} // closed when Subscribe has returned
	err    error         // what it returned
	change chan struct{} // holds a token after a message
	mu     struct {
		sync.Mutex
		got []copiedMessage
	}
}

// startSubscriber starts a subscription which ends with the test.
func startSubscriber(t *testing.T, b bus.Bus, topic bus.Topic, from uint64) *subscriber {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &subscriber{t: t, cancel: cancel, ready: make(chan struct{}), done: make(chan struct{}), change: make(chan struct{}, 1)}
	go func() {
		defer close(s.done)
		s.err = b.Subscribe(ctx, topic, from, s.record, func() { close(s.ready) })
	}()
	t.Cleanup(s.stop)
	return s
}

func (s *subscriber) record(m bus.Message) error {
	s.mu.Lock()
	s.mu.got = append(s.mu.got, copiedMessage{m.Key, string(m.Data), m.Seq})
	s.mu.Unlock()
	select {
	case s.change <- struct{}{}:
	default:
	}
	return nil
}

// stop ends the subscription and waits for it.
func (s *subscriber) stop() {
	s.cancel()
	<-s.done
	if s.err != nil {
		s.t.Errorf("Subscribe returned %v after its context ended, want nil", s.err)
		s.err = nil
	}
}

// received returns the messages so far.
func (s *subscriber) received() []copiedMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]copiedMessage(nil), s.mu.got...)
}

// awaitReady waits until ready was called.
func (s *subscriber) awaitReady() *subscriber {
	s.t.Helper()
	select {
	case <-s.ready:
	case <-s.done:
		s.t.Fatalf("Subscribe returned %v before it was ready", s.err)
	case <-patience(s.t):
		s.t.Fatal("ready was not called")
	}
	return s
}

// awaitMessages waits until n messages have arrived and returns all that have.
func (s *subscriber) awaitMessages(n int) []copiedMessage {
	s.t.Helper()
	return s.awaitThat(fmt.Sprintf("%d messages", n), func(got []copiedMessage) bool { return len(got) >= n })
}

// awaitThat waits until the messages satisfy ok, and returns them.
func (s *subscriber) awaitThat(what string, ok func([]copiedMessage) bool) []copiedMessage {
	s.t.Helper()
	limit := patience(s.t)
	for {
		if got := s.received(); ok(got) {
			return got
		}
		select {
		case <-s.change:
		case <-s.done:
			s.t.Fatalf("Subscribe returned %v while waiting for %s", s.err, what)
		case <-limit:
			s.t.Fatalf("%s did not come; %d messages have", what, len(s.received()))
		}
	}
}

func publishMessage(t *testing.T, b bus.Bus, topic bus.Topic, key, data string) {
	t.Helper()
	if err := b.Publish(fixturetest.PatientContext(t), topic, key, []byte(data)); err != nil {
		t.Fatalf("publish to %s: %v", topic.Name, err)
	}
}
