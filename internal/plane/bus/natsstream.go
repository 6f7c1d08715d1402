package bus

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// natsStream is a stream of this package.
type natsStream struct {
	config  jetstream.StreamConfig // 0 for a limit which is left to the operator
	ensured atomic.Bool
}

// ensureStream creates a stream, or updates its limits, once.
func (b *NATSBus) ensureStream(ctx context.Context, ns *natsStream) error {
	if ns.ensured.Load() {
		return nil
	}
	_, err := b.openStream(ctx, ns)
	return err
}

// openStream returns the current stream; it creates the stream if it is missing. In an existing
// stream it changes only the limits: replicas and placement are the operator's choice.
func (b *NATSBus) openStream(ctx context.Context, ns *natsStream) (jetstream.Stream, error) {
	s, err := b.js.Stream(ctx, ns.config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = b.createStream(ctx, ns)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			s, err = b.js.Stream(ctx, ns.config.Name)
		}
	}
	if err != nil {
		return nil, err
	}
	if cfg := s.CachedInfo().Config; adoptLimits(&cfg, &ns.config) {
		if s, err = b.js.UpdateStream(ctx, cfg); err != nil {
			return nil, err
		}
	}
	ns.ensured.Store(true)
	return s, nil
}

// adoptLimits gives cfg the limits of want, and reports whether it had others.
func adoptLimits(cfg, want *jetstream.StreamConfig) bool {
	old := *cfg
	cfg.MaxBytes, cfg.MaxAge = want.MaxBytes, want.MaxAge
	cfg.MaxMsgs, cfg.MaxMsgSize = cmp.Or(want.MaxMsgs, cfg.MaxMsgs), cmp.Or(want.MaxMsgSize, cfg.MaxMsgSize)
	cfg.Duplicates = cmp.Or(want.Duplicates, min(cfg.Duplicates, cfg.MaxAge))
	return cfg.MaxBytes != old.MaxBytes || cfg.MaxAge != old.MaxAge || cfg.MaxMsgs != old.MaxMsgs ||
		cfg.MaxMsgSize != old.MaxMsgSize || cfg.Duplicates != old.Duplicates
}

func (b *NATSBus) createStream(ctx context.Context, ns *natsStream) (jetstream.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, done := natsd.DetachedContext(ctx, b.nc)
	defer done()
	for try := 1; ; try++ {
		s, err := b.js.CreateStream(ctx, ns.config)
		if !natsd.IsStoreNotCreated(err) || try == 5 {
			return s, err
		}
		// The server removes the directories of its last stream after it has answered that the
		// stream is deleted: they can vanish while it makes the next one's.
		time.Sleep(20 * time.Millisecond)
	}
}

// maxUnanswered is the number of consecutive reads which bring nothing and which the server does not
// answer in time, 5 s each by the client library, after which a read fails. A server on a busy
// machine is slow, not gone: without a connection a read ends at once.
const maxUnanswered = 6

// readStored passes the current messages of a subject of a stream to sink: with seq 0 the last one of
// each subject, perhaps more than once, otherwise all from seq on, once. Without a stream there are
// none. It continues a read which the server did not answer in time.
func readStored(ctx context.Context, js jetstream.JetStream, stream, subject string, seq uint64, sink func(natsd.Msg) error) error {
	for unanswered := 0; ; {
		err := readStoredOnce(ctx, js, stream, subject, seq, func(m natsd.Msg) error {
			unanswered = 0
			if seq > 0 {
				seq = m.Seq + 1
			}
			return sink(m)
		})
		late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, natsd.ErrInterrupted)
		if unanswered++; !late || ctx.Err() != nil || unanswered >= maxUnanswered {
			return err
		}
	}
}

// readStoredOnce is readStored without another attempt.
func readStoredOnce(ctx context.Context, js jetstream.JetStream, stream, subject string, seq uint64, sink func(natsd.Msg) error) error {
	rctx, done := context.WithCancel(ctx)
	defer done()
	var failed error
	err := natsd.Tail(rctx, js.Conn(), js, stream, natsd.TailStart{Subjects: []string{subject}, Seq: seq}, func(m natsd.Msg) error {
		failed = sink(m)
		return failed
	}, done)
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil
	}
	return cmp.Or(err, ctx.Err())
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
		s, err := b.openStream(ctx, &nt.stream)
		if err != nil {
			return err
		}
		return f(ctx, s)
	})
}

// subjectBase returns the subjects of a name up to and including the dot before the key.
func (b *NATSBus) subjectBase(name string) string { return b.cfg.Prefix + "." + name + "." }

// streamConfig returns the configuration of a stream which keeps the messages of a name, without its
// limits.
func (b *NATSBus) streamConfig(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:     strings.ReplaceAll(b.cfg.Prefix+"_"+name, ".", "+"),
		Subjects: []string{b.subjectBase(name) + "*"},
		Storage:  jetstream.FileStorage,
		Replicas: b.cfg.Replicas,
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
