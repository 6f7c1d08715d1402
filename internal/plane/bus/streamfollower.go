package bus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/backoff"
	"penstock/internal/plane/natsd"
)

// Bounds of the backoff while the server is unreachable.
const (
	minRetry = 25 * time.Millisecond
	maxRetry = time.Second
)

// streamFollower is one subscription to a durable topic over NATS. It reads the stream from the
// next message it needs, and resumes there after every interruption, so that its sink gets each
// message once.
type streamFollower struct {
	bus     *NATSBus
	topic   *natsTopic
	next    uint64    // sequence number of the next message for the sink
	created time.Time // creation time of the stream that next refers to
	sink    func(Message) error
	ready   func() // nil once called
}

func (f *streamFollower) follow(ctx context.Context) error {
	retry := backoff.Backoff{Min: minRetry, Max: maxRetry}
	interrupted := false
	for {
		var sinkErr error
		err := f.readStream(ctx, func(m natsd.Msg) error {
			sinkErr = f.deliverMessage(m)
			return sinkErr
		}, func() {
			retry.Reset()
			if interrupted {
				interrupted = false
				f.bus.cfg.Log.Info("event stream resumed", "topic", f.topic.topic.Name)
			}
			if f.ready != nil {
				f.ready()
				f.ready = nil
			}
		})
		switch {
		case ctx.Err() != nil && sinkErr == nil:
			return nil
		case sinkErr != nil:
			return sinkErr
		case f.bus.nc.IsClosed():
			return natsd.WrapUnavailable("subscribe "+f.topic.topic.Name, nats.ErrConnectionClosed)
		case !isTransient(err):
			return natsd.WrapUnavailable("subscribe "+f.topic.topic.Name, err)
		}
		if !interrupted {
			interrupted = true
			f.bus.cfg.Log.Warn("event stream interrupted", "topic", f.topic.topic.Name, "err", err)
		}
		_ = retry.Wait(ctx) // the next attempt detects that ctx has ended
	}
}

// readStream passes messages from f.next on to sink until an error, or until ctx or the connection
// ends.
func (f *streamFollower) readStream(ctx context.Context, sink func(natsd.Msg) error, caughtUp func()) error {
	cctx, stop := natsd.WhileConnected(ctx, f.bus.nc)
	s, err := f.bus.openStream(cctx, &f.topic.stream)
	if cctx.Err() != nil {
		err = context.Cause(cctx)
	}
	stop()
	if err != nil {
		return err
	}
	f.adjustPosition(s.CachedInfo())
	from := natsd.TailStart{Subjects: []string{f.topic.base + "*"}, Seq: f.next}
	return natsd.Tail(ctx, f.bus.nc, f.bus.js, f.topic.stream.config.Name, from, sink, caughtUp)
}

// adjustPosition moves f.next back if the stream is not the one it refers to, or has lost its end:
// other messages will get, or got, those numbers.
func (f *streamFollower) adjustPosition(info *jetstream.StreamInfo) {
	known := !f.created.IsZero()
	if known && !f.created.Equal(info.Created) {
		f.next = 1
	}
	if known && f.next > info.State.LastSeq+1 {
		f.next = info.State.LastSeq + 1
	}
	f.created = info.Created
}

func (f *streamFollower) deliverMessage(m natsd.Msg) error {
	f.next = m.Seq + 1
	key, err := decodeKey(strings.TrimPrefix(m.Subject, f.topic.base))
	if err != nil {
		f.bus.malformed.Add(1)
		return nil
	}
	return f.sink(Message{Key: key, Data: m.Data, Seq: m.Seq, Incarnation: incarnationOf(f.created)})
}

// isTransient reports whether a retry may succeed after err: true unless the server refused for a
// permanent reason.
func isTransient(err error) bool {
	var api *jetstream.APIError
	if errors.Is(err, natsd.ErrInterrupted) || !errors.As(err, &api) {
		return true
	}
	switch api.Code {
	case 404, 408, 409, 503: // not found, timed out, conflict, not ready
		return true
	}
	return false
}
