// Package bus is the event plane: ordered, replayable topics for state (KV
// events) and lossy ones for gossip (load).
package bus

import (
	"context"
	"time"
)

// Limits that every bus keeps, whatever carries it.
const (
	// MaxData bounds the data of one message, in bytes; a longer one is TooLarge.
	// It leaves room for headers under the default limit of a NATS server, 1 MiB.
	MaxData = 768 << 10
	// MaxKey bounds a key, in bytes, and MaxName the name of a topic; longer
	// ones are Invalid.
	MaxKey  = 128
	MaxName = 192
	// Queue is how many messages of a topic that is not durable wait for a
	// subscriber, and QueueBytes how many bytes of them. Beyond either the
	// oldest are lost.
	Queue      = 1024
	QueueBytes = 8 << 20
)

// What 0 stands for in a Topic.
const (
	DefaultMaxBytes = 64 << 20
	DefaultMaxAge   = time.Hour
)

// Topic names a stream of messages and says how it is kept. Everyone who uses a
// topic passes an equal value.
type Topic struct {
	// Name is of letters, digits, '-', '_' and '.'.
	Name string
	// Durable topics keep messages within the bounds below and can be read from
	// the start; others reach only those who are subscribed, at most once.
	Durable  bool
	MaxBytes int64         // oldest messages go first; 0 is 64 MiB
	MaxAge   time.Duration // 0 is one hour
}

// Message is one published message. Data belongs to the receiver of the call
// and must not be kept after it returns.
type Message struct {
	Key  string // the publisher's key, for example a worker
	Data []byte
	// Seq counts the messages of a durable topic from 1, with no gap except
	// where old ones were dropped; 0 on a topic that is not durable.
	Seq uint64
	// Life is that of the numbers in Seq, see [Span]; 0 on a topic that is not durable.
	Life uint64
}

// Span is what a durable topic keeps.
type Span struct {
	// Life names the topic's numbers. It is another one, never 0, when the store has
	// lost the topic, or somebody replaced it, and numbers are given again.
	Life uint64
	// Last is the number of the newest message that there ever was, 0 if none; First
	// that of the oldest that is kept, Last+1 if none is.
	First, Last uint64
	// Messages and Bytes are what is kept, with the store's own overhead.
	Messages, Bytes uint64
}

// Bus carries topics. Implementations are safe for concurrent use.
type Bus interface {
	// Publish appends one message. It returns once a durable topic has kept it;
	// an error means that this is not known. Messages of one caller keep their
	// order. It copies data.
	Publish(ctx context.Context, t Topic, key string, data []byte) error
	// Subscribe calls sink with each message of the topic, in order, one at a
	// time, until ctx ends (it returns nil then) or sink fails (its error). On a
	// durable topic it starts at sequence from (0 and 1: the oldest kept) and
	// survives interruptions; ready, if not nil, is called once when every
	// message that was there at the start has been delivered. On another topic
	// from is ignored, ready is called when the subscription is in force, and a
	// subscriber that falls behind by its bounded queue loses the oldest
	// messages.
	Subscribe(ctx context.Context, t Topic, from uint64, sink func(Message) error, ready func()) error
	// Span tells what a durable topic keeps now; any other topic is Invalid.
	Span(ctx context.Context, t Topic) (Span, error)
	// Purge removes the messages of a durable topic with numbers less than below,
	// for everybody, and no message that is still to come. Who reads there goes on
	// at below.
	Purge(ctx context.Context, t Topic, below uint64) error
}
