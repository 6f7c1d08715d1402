package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/plane/natsd"
)

// ensure makes sure, once, that the stream of nt exists and has its limits.
func (b *NATS) ensure(ctx context.Context, nt *natsTopic) error {
	if nt.ensured.Load() {
		return nil
	}
	_, err := b.openStream(ctx, nt)
	return err
}

// openStream returns the stream of nt as it is on the server now; it creates it
// if it is missing. Of one that exists only the topic's limits are changed:
// replicas and placement are the operator's.
func (b *NATS) openStream(ctx context.Context, nt *natsTopic) (jetstream.Stream, error) {
	s, err := b.js.Stream(ctx, nt.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = b.createStream(ctx, nt)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another was faster
			s, err = b.js.Stream(ctx, nt.stream)
		}
	}
	if err != nil {
		return nil, err
	}
	cfg := s.CachedInfo().Config
	if cfg.MaxBytes != nt.topic.MaxBytes || cfg.MaxAge != nt.topic.MaxAge {
		cfg.MaxBytes, cfg.MaxAge = nt.topic.MaxBytes, nt.topic.MaxAge
		cfg.Duplicates = min(cfg.Duplicates, cfg.MaxAge)
		if s, err = b.js.UpdateStream(ctx, cfg); err != nil {
			return nil, err
		}
	}
	nt.ensured.Store(true)
	return s, nil
}

func (b *NATS) createStream(ctx context.Context, nt *natsTopic) (jetstream.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, done := natsd.SeeThrough(ctx, b.nc)
	defer done()
	return b.js.CreateStream(ctx, b.streamConfig(nt))
}

// Span implements Bus.
func (b *NATS) Span(ctx context.Context, t Topic) (span Span, err error) {
	err = b.onStream(ctx, "look at", t, func(_ context.Context, s jetstream.Stream) error {
		span = spanOf(s.CachedInfo())
		return nil
	})
	return span, err
}

// Purge implements Bus.
func (b *NATS) Purge(ctx context.Context, t Topic, below uint64) error {
	return b.onStream(ctx, "purge", t, func(ctx context.Context, s jetstream.Stream) error {
		span := spanOf(s.CachedInfo())
		below = min(below, span.Last+1) // the server would skip the numbers in between
		if below <= span.First {
			return nil
		}
		return s.Purge(ctx, jetstream.WithPurgeSequence(below))
	})
}

// spanOf reads a stream's state. When nothing is kept the server says 0 for the
// first number, or the next one.
func spanOf(info *jetstream.StreamInfo) Span {
	s := Span{
		Life: life(info.Created), First: info.State.FirstSeq, Last: info.State.LastSeq,
		Messages: info.State.Msgs, Bytes: info.State.Bytes,
	}
	if s.Messages == 0 {
		s.First = s.Last + 1
	}
	return s
}

// life names a stream by when it was created, which the server keeps for it.
func life(created time.Time) uint64 { return max(uint64(created.UnixNano()), 1) }

// onStream runs f with the stream of a durable topic as it is now, but not beyond
// the connection to it.
func (b *NATS) onStream(ctx context.Context, op string, t Topic, f func(context.Context, jetstream.Stream) error) error {
	t, err := t.lasting(op)
	if err != nil {
		return err
	}
	nt, err := b.topic(t)
	if err != nil {
		return err
	}
	return natsd.While(ctx, b.nc, op+" "+t.Name, func(ctx context.Context) error {
		s, err := b.openStream(ctx, nt)
		if err != nil {
			return err
		}
		return f(ctx, s)
	})
}

func (b *NATS) streamConfig(nt *natsTopic) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:      nt.stream,
		Subjects:  []string{nt.base + "*"},
		Storage:   jetstream.FileStorage,
		Retention: jetstream.LimitsPolicy,
		Discard:   jetstream.DiscardOld,
		MaxBytes:  nt.topic.MaxBytes,
		MaxAge:    nt.topic.MaxAge,
		Replicas:  b.cfg.Replicas,
	}
}
