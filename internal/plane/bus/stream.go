package bus

import (
	"context"
	"errors"

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
