package bustest

import (
	"strconv"
	"strings"
	"testing"

	"penstock/internal/plane/bus"
)

func testGossip(t *testing.T, b bus.Bus) {
	s := startSubscriber(t, b, gossip, 7).awaitReady() // from has no effect on this topic
	const n = 500                                      // fits the queue, so no message may be lost
	for i := range n {
		publishMessage(t, b, gossip, "k", strconv.Itoa(i))
	}
	for i, m := range s.awaitMessages(n) {
		if want := (copiedMessage{"k", strconv.Itoa(i), 0}); m != want {
			t.Fatalf("message %d is %+v, want %+v", i, m, want)
		}
	}
}

func testGossipNoReplay(t *testing.T, b bus.Bus) {
	publishMessage(t, b, gossip, "k", "before")
	s := startSubscriber(t, b, gossip, 0).awaitReady()
	publishMessage(t, b, gossip, "k", "after")
	if got := s.awaitMessages(1); got[0].data != "after" {
		t.Errorf("got %+v, want only what came after", got)
	}
}

func testGossipSubscribers(t *testing.T, b bus.Bus) {
	first, second := startSubscriber(t, b, gossip, 0).awaitReady(), startSubscriber(t, b, gossip, 0).awaitReady()
	publishMessage(t, b, gossip, "k", "1")
	first.awaitMessages(1)
	second.awaitMessages(1)
	first.stop()
	publishMessage(t, b, gossip, "k", "2")
	second.awaitMessages(2)
	if got := first.received(); len(got) != 1 {
		t.Errorf("after its end a subscription got %+v", got)
	}
}

// testGossipSlow publishes far more than the queue holds while the sink is blocked: publishing
// never blocks, and the oldest messages are lost.
func testGossipSlow(t *testing.T, b bus.Bus) {
	const n = 3 * bus.QueueMessages
	enter, leave := make(chan struct{}), make(chan struct{})
	got := make(chan int, n+1)
	ready, last := make(chan struct{}), strconv.Itoa(n-1)
	done := make(chan error, 1)
	go func() {
		first := true
		done <- b.Subscribe(t.Context(), gossip, 0, func(m bus.Message) error {
			if first {
				first = false
				close(enter)
				<-leave
			}
			i, err := strconv.Atoi(string(m.Data[:strings.IndexByte(string(m.Data), ' ')]))
			if err != nil {
				return err
			}
			got <- i
			if i == n-1 {
				return errDone
			}
			return nil
		}, func() { close(ready) })
	}()
	<-ready
	publishMessage(t, b, gossip, "k", "0 ")
	<-enter
	for i := 1; i < n; i++ {
		publishMessage(t, b, gossip, "k", strconv.Itoa(i)+" ")
	}
	close(leave)
	if err := <-done; err != errDone {
		t.Fatalf("Subscribe returned %v, want the end at message %s", err, last)
	}
	close(got)
	previous := -1
	for i := range got {
		if i <= previous {
			t.Fatalf("message %d came after %d", i, previous)
		}
		previous = i
	}
}
