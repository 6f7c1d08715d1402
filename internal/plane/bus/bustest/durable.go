package bustest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

var errDone = errors.New("done")

// checkRun checks that got are the messages data[0], data[1], … with consecutive numbers from
// first.
func checkRun(t *testing.T, got []copiedMessage, first uint64, data func(seq uint64) string) {
	t.Helper()
	for i, m := range got {
		seq := first + uint64(i)
		if m.seq != seq || m.data != data(seq) {
			t.Fatalf("message %d is %.100q with number %d, want %.100q with %d", i, m.data, m.seq, data(seq), seq)
		}
	}
}

func formatNumber(seq uint64) string { return strconv.FormatUint(seq, 10) }

func publishNumbers(t *testing.T, b bus.Bus, topic bus.Topic, from, to uint64) {
	t.Helper()
	for i := from; i <= to; i++ {
		publishMessage(t, b, topic, "k", formatNumber(i))
	}
}

func testDurable(t *testing.T, b bus.Bus) {
	s := startSubscriber(t, b, durable, 0)
	publishNumbers(t, b, durable, 1, 300)
	checkRun(t, s.awaitMessages(300), 1, formatNumber)
}

func testReplay(t *testing.T, b bus.Bus) {
	const n = 1500 // more than one batch of any implementation
	publishNumbers(t, b, durable, 1, n)
	for _, from := range []uint64{0, 1, 2, 600, n, n + 1} {
		s := startSubscriber(t, b, durable, from).awaitReady()
		first := max(from, 1)
		got := s.received()
		if want := n + 1 - int(first); len(got) != want {
			t.Errorf("from %d: %d messages before ready, want %d", from, len(got), want)
		}
		checkRun(t, got, first, formatNumber)
	}
	s := startSubscriber(t, b, durable, n-1)
	publishNumbers(t, b, durable, n+1, n+10)
	checkRun(t, s.awaitMessages(12), n-1, formatNumber)
}

// testFromTheFuture subscribes from a number which does not exist yet.
func testFromTheFuture(t *testing.T, b bus.Bus) {
	publishNumbers(t, b, durable, 1, 3)
	s := startSubscriber(t, b, durable, 6).awaitReady()
	publishNumbers(t, b, durable, 4, 8)
	checkRun(t, s.awaitMessages(3), 6, formatNumber)
}

func testReady(t *testing.T, b bus.Bus) {
	s := startSubscriber(t, b, durable, 0).awaitReady() // the topic is empty
	publishNumbers(t, b, durable, 1, 5)
	s.awaitMessages(5) // a second call of ready would have panicked

	ctx := t.Context()
	got := 0
	err := b.Subscribe(ctx, durable, 0, func(bus.Message) error {
		if got++; got == 5 {
			return errDone
		}
		return nil
	}, nil) // ready is optional
	if err != errDone {
		t.Errorf("without ready: %v after %d messages", err, got)
	}
}

func testDurableSubscribers(t *testing.T, b bus.Bus) {
	var subs []*subscriber
	for range 8 {
		subs = append(subs, startSubscriber(t, b, durable, 0))
	}
	publishNumbers(t, b, durable, 1, 100)
	for _, s := range subs {
		checkRun(t, s.awaitMessages(100), 1, formatNumber)
	}
}

// testResubscribe continues a topic with a second subscription.
func testResubscribe(t *testing.T, b bus.Bus) {
	next := uint64(1)
	for round := range 5 {
		publishNumbers(t, b, durable, uint64(round*40+1), uint64(round*40+40))
		s := startSubscriber(t, b, durable, next)
		s.awaitMessages(20)
		s.stop()
		got := s.received()
		checkRun(t, got, next, formatNumber)
		next += uint64(len(got))
	}
}

func testBounds(t *testing.T, b bus.Bus) {
	topic := bus.Topic{Name: "small", Durable: true, MaxBytes: 256 << 10, MaxAge: time.Hour}
	const n, size = 1000, 1 << 10
	data := func(seq uint64) string { return formatNumber(seq) + strings.Repeat("x", size) }
	for i := uint64(1); i <= n; i++ {
		publishMessage(t, b, topic, "k", data(i))
	}
	got := startSubscriber(t, b, topic, 0).awaitReady().received()
	if len(got) == 0 {
		t.Fatal("nothing was kept")
	}
	if kept := len(got) * size; kept > 256<<10 || kept < 128<<10 {
		t.Errorf("%d KiB are kept, want somewhat less than 256", kept>>10)
	}
	checkRun(t, got, n+1-uint64(len(got)), data) // the oldest messages were dropped
}

// testConcurrentPublishers checks that each publisher's order is kept, and that all subscribers see
// the same total order.
func testConcurrentPublishers(t *testing.T, b bus.Bus) {
	const callers, each = 8, 100
	live := startSubscriber(t, b, durable, 0)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				if err := b.Publish(fixturetest.PatientContext(t), durable, strconv.Itoa(c), []byte(strconv.Itoa(i))); err != nil {
					t.Errorf("caller %d: %v", c, err)
					return
				}
			}
		})
	}
	wg.Wait()
	got := live.awaitMessages(callers * each)
	next := map[string]int{}
	for i, m := range got {
		if m.seq != uint64(i+1) {
			t.Fatalf("message %d has number %d", i, m.seq)
		}
		if m.data != strconv.Itoa(next[m.key]) {
			t.Fatalf("caller %s: message %s, want %d", m.key, m.data, next[m.key])
		}
		next[m.key]++
	}
	again := startSubscriber(t, b, durable, 0).awaitReady().received()
	if fmt.Sprint(again) != fmt.Sprint(got) {
		t.Error("the replay differs from what was delivered live")
	}
}
