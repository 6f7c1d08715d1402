package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"time"

	"penstock/core/kvfeed"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/engine"
	"penstock/internal/zmtp"
)

// zmqTopic is the first frame of messages over ZeroMQ, and the prefix to subscribe to.
const zmqTopic = "embedding-events"

// zmqQueue bounds what waits for one subscriber or asker: more is lost, which the numbers show.
const (
	zmqQueueMessages = 4096
	zmqQueueBytes    = 8 << 20
)

// zmqSink publishes the records of a feed over ZeroMQ. It never fails and never waits for a subscriber.
type zmqSink struct{ pub *zmtp.Pub }

func (s *zmqSink) sendRecord(_ context.Context, r feedRecord) error {
	s.pub.Send([]byte(zmqTopic), binary.BigEndian.AppendUint64(nil, r.first), r.data)
	return nil
}

// publishOverZMQ publishes the events of the embedding cache at an endpoint, and repeats them at the port after it,
// until ctx ends. The feed is one of its own, which does not depend on the event plane.
func (w *Worker) publishOverZMQ(ctx context.Context, ep zmtp.Endpoint, src engine.EmbeddingSource) error {
	o := zmtp.Options{HighWater: zmqQueueMessages, QueueBytes: zmqQueueBytes, MaxMessage: 4 << 10, Linger: -1}
	next := ep.RankEndpoint(1)
	if ep.Port() == 0 {
		next = ep // the system chooses both
	}
	// First, so that subscribers can ask.
	router, err := zmtp.ListenRouter(next, o)
	if err != nil {
		return err
	}
	defer func() { _ = router.Close() }()
	pub, err := zmtp.ListenPub(ep, o)
	if err != nil {
		return err
	}
	defer func() { _ = pub.Close() }()
	sink := &zmqSink{pub}
	p, err := newFeedPublisher(w, &embeddingFeed{}, sink)
	if err != nil {
		return err
	}
	if !pub.Addr().IsLoopback() {
		w.log.Warn("the events of the embedding cache go to everything which reaches this address; keep it in a network of your own", "events", pub.Addr().String())
	}
	w.log.Info("publishing events of the embedding cache over ZeroMQ", "events", pub.Addr().String(), "replay", router.Addr().String())
	var replay sync.WaitGroup
	defer replay.Wait()
	replay.Go(func() { replayOverZMQ(ctx, router, p) })
	replay.Go(func() { p.repeatPosition(ctx) })
	return p.run(ctx, src.WatchEmbeddings)
}

// repeatPosition publishes the number of the next event, in a record without events, until ctx ends: nothing else tells
// that the last events were lost.
func (p *feedPublisher[E]) repeatPosition(ctx context.Context) {
	tick := time.NewTicker(p.w.cfg.PositionInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		next := p.next.Load()
		data := p.feed.encodeRecord(kvfeed.Span{Worker: p.worker, Epoch: p.w.cfg.Epoch, First: next}, nil)
		_ = p.sink.sendRecord(ctx, feedRecord{next, data}) // it is repeated
	}
}

// replayOverZMQ answers requests for records until ctx ends or the socket is closed.
func replayOverZMQ(ctx context.Context, router *zmtp.Router, p *feedPublisher[embfeed.Event]) {
	var records []feedRecord
	for {
		id, frames, err := router.Recv(ctx)
		if err != nil {
			return
		}
		from, ok := decodeZMQRequest(frames)
		if !ok {
			continue
		}
		records = p.appendRecords(records[:0], from)
		err = nil
		for i := 0; i < len(records) && err == nil; i++ {
			err = router.Send(id, nil, []byte(zmqTopic), binary.BigEndian.AppendUint64(nil, records[i].first), records[i].data)
		}
		if err == nil || errors.Is(err, zmtp.ErrFull) { // the end may be lost too: the asker asks again
			_ = router.Send(id, nil, nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
		}
		clear(records)
	}
}

// decodeZMQRequest returns the number of the first event which is asked for.
func decodeZMQRequest(frames [][]byte) (from uint64, ok bool) {
	if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(frames[1]), true
}

// appendRecords appends the records with the events from a number on to dst. If they are no longer kept it appends
// none, and the whole cache is described.
func (p *feedPublisher[E]) appendRecords(dst []feedRecord, from uint64) []feedRecord {
	p.mu.Lock()
	has := from > 0 && p.mu.log.HasFrom(from)
	if has {
		dst = p.mu.log.AppendRecords(dst, from)
	}
	p.mu.Unlock()
	if !has {
		p.addRequest(kvfeed.ResyncRequest{Worker: p.worker})
	}
	return dst
}
