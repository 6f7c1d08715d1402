package worker

import (
	"context"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/plane/bus"
)

// busSink publishes the records of a feed on the bus.
type busSink struct {
	bus   bus.Bus
	topic bus.Topic
	key   string
}

func (s *busSink) sendRecord(ctx context.Context, r feedRecord) error {
	return s.bus.Publish(ctx, s.topic, s.key, r.data)
}

// kvCacheFeed is the feed of a KV cache.
type kvCacheFeed struct {
	kvfeed.RecordSplitter
	blockSize uint32
}

var _ cacheFeed[kv.Event] = (*kvCacheFeed)(nil)

func (f *kvCacheFeed) encodeRecord(s kvfeed.Span, events []kv.Event) []byte {
	return kvfeed.AppendRecord(nil, &kvfeed.Record{Worker: s.Worker, Epoch: s.Epoch, First: s.First, BlockSize: f.blockSize, Events: events})
}

func (f *kvCacheFeed) clearedEvent() kv.Event { return kv.Event{Kind: kv.Cleared} }

func (f *kvCacheFeed) kindOf(ev *kv.Event) string { return ev.Kind.String() }

// embeddingFeed is the feed of an embedding cache.
type embeddingFeed struct{ events []embfeed.Event }

var _ cacheFeed[embfeed.Event] = (*embeddingFeed)(nil)

func (f *embeddingFeed) Reset(events []embfeed.Event) { f.events = events }

func (f *embeddingFeed) Next() (part []embfeed.Event) {
	n := min(len(f.events), embfeed.MaxRecordEvents)
	part, f.events = f.events[:n], f.events[n:]
	return part
}

func (f *embeddingFeed) encodeRecord(s kvfeed.Span, events []embfeed.Event) []byte {
	return embfeed.AppendRecord(nil, &embfeed.EventRecord{Worker: s.Worker, Epoch: s.Epoch, First: s.First, Events: events})
}

func (f *embeddingFeed) clearedEvent() embfeed.Event { return embfeed.Event{Kind: embfeed.Cleared} }

func (f *embeddingFeed) kindOf(ev *embfeed.Event) string { return ev.Kind.String() }
