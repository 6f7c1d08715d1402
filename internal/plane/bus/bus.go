// Package bus is the event plane: ordered, replayable topics for state (KV events) and lossy topics
// for gossip (load).
package bus

import (
	"context"
	"time"
)

// Limits of every bus, whatever its transport.
const (
	// MaxData bounds the data of one message, in bytes; longer data is TooLarge. It leaves room for
	// headers under the default message limit of a NATS server, 1 MiB.
	MaxData = 768 << 10
	// MaxKey bounds a key, and MaxName the name of a topic, in bytes. Longer ones are Invalid.
	MaxKey  = 128
	MaxName = 192
	// QueueMessages and QueueBytes bound the messages of a topic that is not durable which wait for
	// one subscriber. Beyond either bound the oldest messages are lost.
	QueueMessages = 1024
	QueueBytes    = 8 << 20
)

// Meaning of 0 in a Topic.
const (
	DefaultMaxBytes = 64 << 20
	DefaultMaxAge   = time.Hour
)

// Topic names a stream of messages and sets its retention. All users of a topic must pass equal
// values.
type Topic struct {
	// Name consists of letters, digits, '-', '_' and '.'.
	Name string
	// Durable topics keep messages within the bounds below and can be read from the start. Other
	// topics reach only current subscribers, at most once.
	Durable  bool
	MaxBytes int64         // the oldest messages are dropped first; 0 means 64 MiB
	MaxAge   time.Duration // 0 means one hour
}

// Message is one published message. Data is valid only during the call which receives it.
type Message struct {
	Key  string // the publisher's key, for example a worker
	Data []byte
	// Seq numbers the messages of a durable topic from 1, without gaps except where old messages
	// were dropped. It is 0 on other topics.
	Seq uint64
	// Incarnation is that of the numbers in Seq, see [TopicState]; 0 on a topic that is not
	// durable.
	Incarnation uint64
}

// TopicState describes the retained messages of a durable topic.
type TopicState struct {
	// Incarnation identifies the topic's sequence of numbers. It is never 0, and it changes when
	// the store has lost the topic, or an operator has replaced it, and numbering starts again.
	Incarnation uint64
	// Last is the number of the newest message ever published, 0 if none; First is that of the
	// oldest retained message, or Last+1 if none is retained.
	First, Last uint64
	// Messages and Bytes are the retained messages, including the store's overhead.
	Messages, Bytes uint64
}

// Bus carries topics. Implementations are safe for concurrent use.
type Bus interface {
	// Publish appends one message. On a durable topic it returns once the message is stored; after
	// an error it is unknown whether the message was stored. Messages of one caller keep their
	// order. Publish copies data.
	Publish(ctx context.Context, t Topic, key string, data []byte) error
	// Subscribe calls sink with each message of the topic, in order, one at a time, until ctx ends
	// (it then returns nil) or sink fails (it returns sink's error). On a durable topic it starts
	// at sequence number from (0 and 1 mean the oldest retained message) and survives
	// interruptions; it calls ready, if not nil, once, when every message that existed at the start
	// has been delivered. On other topics it ignores from, calls ready when the subscription is
	// active, and drops the oldest messages if the subscriber falls behind by its bounded queue.
	Subscribe(ctx context.Context, t Topic, from uint64, sink func(Message) error, ready func()) error
	// DescribeTopic returns the current state of a durable topic. Any other topic is Invalid.
	DescribeTopic(ctx context.Context, t Topic) (TopicState, error)
	// Purge removes the messages of a durable topic with numbers less than below, for all
	// subscribers. It never removes future messages. Subscribers that have not reached below
	// continue there.
	Purge(ctx context.Context, t Topic, below uint64) error
}
