package bus

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/backoff"
	"penstock/internal/plane/natsd"
)

// NATSBusConfig configures a bus over NATS.
type NATSBusConfig struct {
	// Prefix is the prefix of every subject and stream name; all processes which communicate use
	// the same. Its syntax is that of a topic's name. Empty means "penstock".
	Prefix string
	// Replicas is the replica count of each stream that this bus creates, for a cluster of servers.
	// 0 means 1.
	Replicas int
	// Log receives interruptions of subscriptions. Nil discards them.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *NATSBusConfig) EnsureDefaults() {
	c.Prefix = cmp.Or(c.Prefix, "penstock")
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all problems of c.
func (c *NATSBusConfig) Validate() error {
	var errs []error
	errs = append(errs, checkPrefix(c.Prefix))
	if c.Replicas < 1 || c.Replicas > 5 {
		errs = append(errs, fault.New(fault.Invalid, "bus replicas: have %d, JetStream allows 1 to 5", c.Replicas))
	}
	return errors.Join(errs...)
}

// maxPrefix bounds a prefix, in bytes, so that stream names stay within the 255 bytes that a server
// allows.
const maxPrefix = 60

func checkPrefix(prefix string) error {
	if err := checkName(prefix); err != nil {
		return fault.New(fault.Invalid, "bus prefix: %w", err)
	}
	if len(prefix) > maxPrefix {
		return fault.New(fault.Invalid, "bus prefix: %d bytes, at most %d are allowed", len(prefix), maxPrefix)
	}
	return nil
}

// NATSBus is the event plane over a NATS server: a durable topic is a JetStream file stream, any
// other topic is plain publish and subscribe. docs/format/bus.md documents subjects, stream names
// and limits.
type NATSBus struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	cfg       NATSBusConfig
	dropped   atomic.Uint64
	malformed atomic.Uint64
	mu        struct {
		sync.Mutex
		topics map[string]*natsTopic
		queues map[string]*NATSQueue
	}
}

var _ Bus = (*NATSBus)(nil)

// NewNATSBus returns a bus over nc, which remains owned by the caller. The bus uses the server only
// when it is used itself, and has no goroutines.
func NewNATSBus(nc *nats.Conn, cfg NATSBusConfig) (*NATSBus, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, natsd.WrapUnavailable("open bus "+cfg.Prefix, err)
	}
	b := &NATSBus{nc: nc, js: js, cfg: cfg}
	b.mu.topics, b.mu.queues = make(map[string]*natsTopic), make(map[string]*NATSQueue)
	return b, nil
}

// Dropped returns how many messages of topics that are not durable were lost because subscribers
// fell behind.
func (b *NATSBus) Dropped() uint64 { return b.dropped.Load() }

// Malformed returns how many messages were ignored because no user of this package can have sent
// them.
func (b *NATSBus) Malformed() uint64 { return b.malformed.Load() }

// natsTopic is the state of a topic on this bus.
type natsTopic struct {
	topic  Topic
	base   string     // subject up to and including the dot before the key
	stream natsStream // of a durable topic
}

// Publish implements Bus.
func (b *NATSBus) Publish(ctx context.Context, t Topic, key string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	nt, err := b.lookupTopic(t)
	if err != nil {
		return err
	}
	if err := checkMessage(nt.topic, key, data); err != nil {
		return err
	}
	subject := string(appendKey([]byte(nt.base), key))
	if nt.topic.Durable {
		return b.publishStored(ctx, "publish "+nt.topic.Name, &nt.stream, &nats.Msg{Subject: subject, Data: data})
	}
	if err := b.nc.Publish(subject, data); err != nil {
		return natsd.WrapUnavailable("publish "+nt.topic.Name, err)
	}
	return nil
}

// publishStored publishes to a stream and waits for the acknowledgement, at most until the connection
// is lost. op describes the operation.
func (b *NATSBus) publishStored(ctx context.Context, op string, ns *natsStream, m *nats.Msg, opts ...jetstream.PublishOpt) error {
	cctx, stop := natsd.WhileConnected(ctx, b.nc)
	defer stop()
	opts = append(opts, jetstream.WithExpectStream(ns.config.Name))
	for attempt := 1; ; attempt++ {
		err := b.ensureStream(cctx, ns)
		if err == nil {
			_, err = b.js.PublishMsg(cctx, m, opts...)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// No stream received the message, so it was not stored: the stream was deleted after
		// ensureStream.
		if attempt == 1 && errors.Is(err, jetstream.ErrNoStreamResponse) {
			ns.ensured.Store(false)
			continue
		}
		if natsd.IsStreamFull(err) {
			return fault.New(fault.Overloaded, "%s: the stream has %d messages already", op, ns.config.MaxMsgs)
		}
		if cctx.Err() != nil {
			err = context.Cause(cctx)
		}
		return natsd.WrapUnavailable(op, err)
	}
}

// Subscribe implements Bus. If the server returns without its data, or with less than was already
// delivered, Seq goes back; the messages that follow are new.
func (b *NATSBus) Subscribe(ctx context.Context, t Topic, from uint64, sink func(Message) error, ready func()) error {
	nt, err := b.lookupTopic(t)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	if ready == nil {
		ready = func() {}
	}
	if nt.topic.Durable {
		f := &streamFollower{bus: b, topic: nt, next: max(from, 1), sink: sink, ready: ready}
		return f.follow(ctx)
	}
	return b.subscribePlain(ctx, nt, sink, ready)
}

// subscribePlain receives the messages of a topic that is not durable.
func (b *NATSBus) subscribePlain(ctx context.Context, nt *natsTopic, sink func(Message) error, ready func()) error {
	lctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := newMessageQueue()
	sub, err := b.nc.Subscribe(nt.base+"*", func(m *nats.Msg) {
		key, err := decodeKey(strings.TrimPrefix(m.Subject, nt.base))
		if err != nil {
			b.malformed.Add(1)
			return
		}
		b.dropped.Add(q.push(Message{Key: key, Data: m.Data})) // Data is owned by this subscription
	})
	if err != nil {
		return natsd.WrapUnavailable("subscribe "+nt.topic.Name, err)
	}
	defer sub.Unsubscribe()
	sub.SetClosedHandler(func(string) { cancel() })

	if b.awaitSubscription(lctx) {
		ready()
	}
	err = drainQueue(lctx, q, sink)
	if err == nil && ctx.Err() == nil {
		err = natsd.WrapUnavailable("subscribe "+nt.topic.Name, nats.ErrConnectionClosed)
	}
	return err
}

// awaitSubscription waits until the server has processed all subscriptions of the connection; it
// returns false if ctx ended first. An interruption does no harm, because the NATS library
// resubscribes by itself.
func (b *NATSBus) awaitSubscription(ctx context.Context) bool {
	retry := backoff.Backoff{Min: minRetry, Max: maxRetry}
	for ctx.Err() == nil {
		fctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := b.nc.FlushWithContext(fctx)
		cancel()
		if err == nil {
			return true
		}
		_ = retry.Wait(ctx) // the loop condition checks ctx
	}
	return false
}

// lookupTopic returns the state of t. t must equal the first topic of its name.
func (b *NATSBus) lookupTopic(t Topic) (*natsTopic, error) {
	t, err := t.withDefaults()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	nt := b.mu.topics[t.Name]
	if nt == nil {
		nt = &natsTopic{topic: t, base: b.subjectBase(t.Name)}
		nt.stream.config = b.streamConfig(t.Name)
		nt.stream.config.Discard, nt.stream.config.MaxBytes, nt.stream.config.MaxAge = jetstream.DiscardOld, t.MaxBytes, t.MaxAge
		b.mu.topics[t.Name] = nt
	}
	if nt.topic != t {
		return nil, errTopicMismatch(t, nt.topic)
	}
	return nt, nil
}
