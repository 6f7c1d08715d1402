package worker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock/core/kvfeed/embfeed"
	"penstock/internal/engine/watch"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
	"penstock/internal/zmtp"
)

// within bounds every wait; only a failure reaches it.
const within = 5 * time.Minute

// publishedCache is an embedding cache which tells when its events were published for the first time.
type publishedCache struct {
	*embeddingCache
	published func()
}

func (c *publishedCache) WatchEmbeddings(ctx context.Context, sink func([]embfeed.Event) error) error {
	return c.embeddingCache.WatchEmbeddings(ctx, func(events []embfeed.Event) error {
		err := sink(events)
		if err == nil {
			c.published()
		}
		return err
	})
}

// zmqReader reads the events of an embedding cache over ZeroMQ.
type zmqReader struct {
	t    *testing.T
	live chan [][]byte
	ask  *zmtp.Dealer
}

func newZMQReader(t *testing.T, ep zmtp.Endpoint) *zmqReader {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &zmqReader{t: t, live: make(chan [][]byte, 10_000)}
	connected := make(chan struct{}, 100)
	ended := make(chan error, 1)
	go func() {
		o := zmtp.Options{OnState: func(s zmtp.ConnState) {
			if s.Kind == zmtp.Connected {
				connected <- struct{}{}
			}
		}}
		ended <- zmtp.Subscribe(ctx, ep, []string{"embedding-events"}, o, func(frames [][]byte) error {
			own := make([][]byte, len(frames))
			for i := range frames {
				own[i] = slices.Clone(frames[i])
			}
			r.live <- own
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	select {
	case <-connected:
	case <-time.After(within):
		t.Fatal("no connection")
	}
	var err error
	if r.ask, err = zmtp.DialDealer(ctx, ep.RankEndpoint(1), zmtp.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.ask.Close() })
	return r
}

// decode returns the record of a message, whose number must be the record's.
func (r *zmqReader) decode(frames [][]byte) (rec embfeed.EventRecord) {
	r.t.Helper()
	if len(frames) != 3 || string(frames[0]) != "embedding-events" {
		r.t.Fatalf("frames %q", frames)
	}
	if err := embfeed.DecodeRecord(&rec, frames[2]); err != nil || binary.BigEndian.Uint64(frames[1]) != rec.First {
		r.t.Fatalf("number %x of %+v: %v", frames[1], rec, err)
	}
	return rec
}

// next returns the next record that is published and has events.
func (r *zmqReader) next() embfeed.EventRecord {
	r.t.Helper()
	for {
		select {
		case frames := <-r.live:
			if rec := r.decode(frames); len(rec.Events) > 0 {
				return rec
			}
		case <-time.After(within):
			r.t.Fatal("nothing is published")
		}
	}
}

// replay asks for the events from a number on.
func (r *zmqReader) replay(from uint64) (records []embfeed.EventRecord) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), within)
	defer cancel()
	if err := r.ask.Send(ctx, nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		r.t.Fatal(err)
	}
	for {
		frames, err := r.ask.Recv(ctx)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(frames) != 4 || len(frames[0]) != 0 {
			r.t.Fatalf("frames %q", frames)
		}
		if binary.BigEndian.Uint64(frames[2]) == math.MaxUint64 {
			return records
		}
		records = append(records, r.decode(frames[1:]))
	}
}

// TestEmbeddingEventsOverZMQ: a subscriber gets each event once and in order, what it missed by a replay, and what is no
// longer kept by a description. It depends on no event plane: here that fails.
func TestEmbeddingEventsOverZMQ(t *testing.T) {
	host, port := fixturetest.ReservePorts(t, 2)
	ep := zmtp.EndpointOf(&net.TCPAddr{IP: net.ParseIP(host), Port: port})
	published := make(chan struct{})
	cache := &publishedCache{newEmbeddingCache(watch.MinBacklog), sync.OnceFunc(func() { close(published) })}
	cache.toggle(1)
	ctx, stop := context.WithCancel(t.Context())
	planes := worker.Planes{RPC: rpc.NewMemPlane(), Bus: failingBus{bus.NewMemBus()}, Registry: servetest.NewRegistry()}
	cfg := worker.Config{ID: 7, Epoch: 3, Embeddings: cache, EmbeddingEvents: ep, PositionInterval: 50 * time.Millisecond}
	w, err := worker.New(cfg, servetest.New(servetest.Config{Card: servetest.ModelCard("m")}), planes, worker.NewMetrics(obs.NewMetrics()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	<-published // what is asked for before that is not there
	r := newZMQReader(t, ep)
	event := func(kind embfeed.Kind, n int) embfeed.Event {
		return embfeed.Event{Kind: kind, Key: embeddingKey(n), Rows: 1, Bytes: 64}
	}
	expect := func(what string, got embfeed.EventRecord, first uint64, events ...embfeed.Event) {
		t.Helper()
		if got.Worker.ID != 7 || got.Epoch != 3 || got.First != first || !cmp.Equal(got.Events, events) {
			t.Errorf("%s: %+v, want %d %+v", what, got, first, events)
		}
	}
	begin := r.replay(1)
	if len(begin) != 1 {
		t.Fatalf("the beginning: %+v", begin)
	}
	expect("the beginning", begin[0], 1, embfeed.Event{Kind: embfeed.Cleared}, event(embfeed.Added, 1))
	cache.toggle(2)
	entry := r.next()
	if entry.First == 1 { // the subscription was there when the beginning was published
		entry = r.next()
	}
	expect("an entry", entry, 3, event(embfeed.Added, 2))
	cache.toggle(1)
	expect("an eviction", r.next(), 4, event(embfeed.Evicted, 1))
	again := r.replay(3)
	if len(again) != 2 {
		t.Fatalf("asked for 3: %+v", again)
	}
	expect("asked for 3", again[0], 3, event(embfeed.Added, 2))
	expect("asked for 3", again[1], 4, event(embfeed.Evicted, 1))
	if none := r.replay(5); len(none) > 0 {
		t.Errorf("asked for the next one: %+v", none)
	}
	if none := r.replay(77); len(none) > 0 {
		t.Errorf("asked for what was not reached: %+v", none)
	}
	expect("the description", r.next(), 5, embfeed.Event{Kind: embfeed.Cleared}, event(embfeed.Added, 2))
	// Requests in another form get no answer, and disturb none.
	for _, frames := range [][][]byte{{nil}, {nil, {1}}, {[]byte("x"), make([]byte, 8)}, {nil, make([]byte, 8), nil}} {
		if err := r.ask.Send(t.Context(), frames...); err != nil {
			t.Fatal(err)
		}
	}
	if after := r.replay(5); len(after) != 1 {
		t.Errorf("after them: %+v", after)
	}
	// A record without events tells an idle subscriber where the feed is. One with an earlier number may have been made while
	// the description was published.
	for rec := (embfeed.EventRecord{}); rec.First < 7; {
		select {
		case frames := <-r.live:
			rec = r.decode(frames)
		case <-time.After(within):
			t.Fatal("an idle publisher is silent")
		}
		want := embfeed.EventRecord{Worker: begin[0].Worker, Epoch: 3, First: max(rec.First, 5)}
		if diff := cmp.Diff(want, rec, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	}
}

// failingBus is a bus which publishes nothing.
type failingBus struct{ bus.Bus }

func (failingBus) Publish(context.Context, bus.Topic, string, []byte) error {
	return errors.New("the event plane is away")
}
