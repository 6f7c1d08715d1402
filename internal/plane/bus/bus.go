// Package bus is the event plane: ordered, replayable topics for state (KV events) and lossy topics
// for gossip (load).
package bus

import (
	"context"
	"time"

	"penstock/core/fault"
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

// Limits of every archive.
const (
	// MaxObject bounds the data of one object, in bytes; longer data is TooLarge.
	MaxObject = 512 << 20
	// MaxObjects bounds the number of objects of an archive. A Put of a further name is Overloaded.
	MaxObjects = 1024
	// LeaseTTL is the default time after which a lock of a crashed holder expires.
	LeaseTTL = 15 * time.Second
)

// ArchiveObject describes an object in an archive.
type ArchiveObject struct {
	Name string
	Size uint64 // in bytes
}

// Archive stores a small number of objects for all processes of a deployment, and provides locks
// for working on them. Implementations are safe for concurrent use. Names of objects and locks have
// the syntax of topic names.
type Archive interface {
	// Put stores data under a name, atomically: readers see all of it or none, even if this process
	// crashes. It replaces an existing object of that name. A concurrent reader of the replaced
	// object may get Unavailable, so writers should prefer new names.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns the data of an object. A missing object is NotFound; a damaged object is
	// Unavailable. The caller owns the data.
	Get(ctx context.Context, name string) ([]byte, error)
	// List returns the objects whose names begin with prefix, sorted by name.
	List(ctx context.Context, prefix string) ([]ArchiveObject, error)
	// Delete removes an object. Deleting a missing object is no error.
	Delete(ctx context.Context, name string) error
	// Lock acquires the lock of that name, calls held, releases the lock when held has returned,
	// and returns held's error. If the lock is taken, Lock returns a Conflict and does not call
	// held. The context of held ends with ctx, or when the lock is or may be lost: a holder which
	// cannot reach the store keeps the lock no longer than LeaseTTL. token is greater than the
	// tokens of all previous holders (a fencing token).
	Lock(ctx context.Context, name string, held func(ctx context.Context, token uint64) error) error
}

// checkObject validates an object for Put.
func checkObject(name string, size int) error {
	if err := checkName(name); err != nil {
		return err
	}
	if size > MaxObject {
		return fault.New(fault.TooLarge, "put %s: the object has %d bytes, at most %d are allowed", name, size, MaxObject)
	}
	return nil
}

func errObjectNotFound(name string) error {
	return fault.New(fault.NotFound, "get %s: the archive has no object of that name", name)
}

func errArchiveFull(name string) error {
	return fault.New(fault.Overloaded, "put %s: the archive has %d objects already; delete some", name, MaxObjects)
}

func errLockHeld(name string) error {
	return fault.New(fault.Conflict, "lock %s: another process holds it; it is free when that is done, or a while after it died", name)
}
