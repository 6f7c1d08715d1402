package bus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// ensureStream creates the stream of nt, or updates its limits, once.
func (b *NATSBus) ensureStream(ctx context.Context, nt *natsTopic) error {
	if nt.ensured.Load() {
		return nil
	}
	_, err := b.openStream(ctx, nt)
	return err
}

// openStream returns the current stream of nt; it creates the stream if it is missing. In an
// existing stream it changes only the topic's limits: replicas and placement are the operator's
// choice.
func (b *NATSBus) openStream(ctx context.Context, nt *natsTopic) (jetstream.Stream, error) {
	s, err := b.js.Stream(ctx, nt.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = b.createStream(ctx, nt)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
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

func (b *NATSBus) createStream(ctx context.Context, nt *natsTopic) (jetstream.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, done := natsd.DetachedContext(ctx, b.nc)
	defer done()
	for try := 1; ; try++ {
		s, err := b.js.CreateStream(ctx, b.streamConfig(nt))
		if !natsd.IsStoreNotCreated(err) || try == 5 {
			return s, err
		}
		// The server removes the directories of its last stream after it has answered that the
		// stream is deleted: they can vanish while it makes the next one's.
		time.Sleep(20 * time.Millisecond)
	}
}

// DescribeTopic implements Bus.
func (b *NATSBus) DescribeTopic(ctx context.Context, t Topic) (span TopicState, err error) {
	err = b.withStream(ctx, "look at", t, func(_ context.Context, s jetstream.Stream) error {
		span = topicStateOf(s.CachedInfo())
		return nil
	})
	return span, err
}

// Purge implements Bus.
func (b *NATSBus) Purge(ctx context.Context, t Topic, below uint64) error {
	return b.withStream(ctx, "purge", t, func(ctx context.Context, s jetstream.Stream) error {
		span := topicStateOf(s.CachedInfo())
		below = min(below, span.Last+1) // the server would skip the numbers in between
		if below <= span.First {
			return nil
		}
		return s.Purge(ctx, jetstream.WithPurgeSequence(below))
	})
}

// topicStateOf converts a stream's state. For an empty stream the server reports FirstSeq as 0 or
// as the next number.
func topicStateOf(info *jetstream.StreamInfo) TopicState {
	s := TopicState{
		Incarnation: incarnationOf(info.Created), First: info.State.FirstSeq, Last: info.State.LastSeq,
		Messages: info.State.Msgs, Bytes: info.State.Bytes,
	}
	if s.Messages == 0 {
		s.First = s.Last + 1
	}
	return s
}

// incarnationOf identifies a stream by its creation time, which the server keeps.
func incarnationOf(created time.Time) uint64 { return max(uint64(created.UnixNano()), 1) }

// withStream calls f with the current stream of a durable topic. The context of f ends at the
// latest when the connection is lost.
func (b *NATSBus) withStream(ctx context.Context, op string, t Topic, f func(context.Context, jetstream.Stream) error) error {
	t, err := t.requireDurable(op)
	if err != nil {
		return err
	}
	nt, err := b.lookupTopic(t)
	if err != nil {
		return err
	}
	return natsd.RunWhileConnected(ctx, b.nc, op+" "+t.Name, func(ctx context.Context) error {
		s, err := b.openStream(ctx, nt)
		if err != nil {
			return err
		}
		return f(ctx, s)
	})
}

func (b *NATSBus) streamConfig(nt *natsTopic) jetstream.StreamConfig {
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

// A key is encoded as one token of a NATS subject: letters, digits, '-', '_', '/' and ':' are
// literal, any other byte is '=' and two upper-case hex digits, and the empty key is a single '='.
// The encoding is canonical: decodeKey accepts only tokens which appendKey can produce.

const hexDigits = "0123456789ABCDEF"

func isPlainByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '/' || c == ':'
}

// appendKey appends the token for key to dst.
func appendKey(dst []byte, key string) []byte {
	if key == "" {
		return append(dst, '=')
	}
	for i := range len(key) {
		if c := key[i]; isPlainByte(c) {
			dst = append(dst, c)
		} else {
			dst = append(dst, '=', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return dst
}

// decodeKey decodes the output of appendKey.
func decodeKey(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	if token == "" || len(token) > 3*MaxKey {
		return "", errBadKey(token)
	}
	if strings.IndexByte(token, '=') < 0 {
		for i := range len(token) {
			if !isPlainByte(token[i]) {
				return "", errBadKey(token)
			}
		}
		return token, nil
	}
	key := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c == '=' {
			if i+2 >= len(token) {
				return "", errBadKey(token)
			}
			hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
			if hi < 0 || lo < 0 || isPlainByte(byte(hi<<4|lo)) {
				return "", errBadKey(token)
			}
			c = byte(hi<<4 | lo)
			i += 2
		} else if !isPlainByte(c) {
			return "", errBadKey(token)
		}
		key = append(key, c)
	}
	return string(key), nil
}

func errBadKey(token string) error {
	return fault.New(fault.Invalid, "subject: a token of %d bytes is not an encoded key", len(token))
}
