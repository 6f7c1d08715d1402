package bus

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
)

// MemBus is the event plane within one process. It has no goroutines: messages pass from Publish to
// the goroutines which are in Subscribe.
type MemBus struct {
	dropped atomic.Uint64
	mu      struct {
		sync.Mutex
		topics map[string]*memTopic
		queues map[string]*MemQueue
	}
}

var _ Bus = (*MemBus)(nil)

// NewMemBus returns a bus without messages.
func NewMemBus() *MemBus {
	b := &MemBus{}
	b.mu.topics, b.mu.queues = make(map[string]*memTopic), make(map[string]*MemQueue)
	return b
}

// Dropped returns how many messages of topics that are not durable were lost because subscribers
// fell behind.
func (b *MemBus) Dropped() uint64 { return b.dropped.Load() }

type memTopic struct {
	topic       Topic
	incarnation uint64
	mu          struct {
		sync.Mutex
		journal journal         // for a durable topic
		wakes   []chan struct{} // of its subscribers, capacity one each
		queues  []*messageQueue // of subscribers to another topic
	}
}

// Publish implements Bus. It never blocks on subscribers.
func (b *MemBus) Publish(ctx context.Context, t Topic, key string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	mt, err := b.lookupTopic(t)
	if err != nil {
		return err
	}
	if err := checkMessage(mt.topic, key, data); err != nil {
		return err
	}
	b.deliverMessage(mt, key, bytes.Clone(data))
	return nil
}

// deliverMessage passes a message to the subscribers of a topic. It keeps data, which must not
// change any more.
func (b *MemBus) deliverMessage(mt *memTopic, key string, data []byte) {
	mt.mu.Lock()
	defer mt.mu.Unlock()
	if mt.topic.Durable {
		mt.mu.journal.appendEntry(journalEntry{key, data, time.Now()})
		for _, w := range mt.mu.wakes {
			select {
			case w <- struct{}{}:
			default:
			}
		}
		return
	}
	for _, q := range mt.mu.queues {
		b.dropped.Add(q.push(Message{Key: key, Data: data}))
	}
}

// Subscribe implements Bus.
func (b *MemBus) Subscribe(ctx context.Context, t Topic, from uint64, sink func(Message) error, ready func()) error {
	mt, err := b.lookupTopic(t)
	if err != nil {
		return err
	}
	if mt.topic.Durable {
		return mt.followJournal(ctx, from, sink, ready)
	}
	q := mt.addQueue()
	defer mt.removeQueue(q)
	if ready != nil {
		ready()
	}
	return drainQueue(ctx, q, sink)
}

// DescribeTopic implements Bus.
func (b *MemBus) DescribeTopic(ctx context.Context, t Topic) (TopicState, error) {
	mt, err := b.durableTopic(ctx, "look at", t)
	if err != nil {
		return TopicState{}, err
	}
	mt.mu.Lock()
	defer mt.mu.Unlock()
	j := &mt.mu.journal
	j.enforceBounds(time.Now())
	return TopicState{Incarnation: mt.incarnation, First: j.first, Last: j.lastSeq(), Messages: uint64(len(j.entries)), Bytes: uint64(j.bytes)}, nil
}

// Purge implements Bus.
func (b *MemBus) Purge(ctx context.Context, t Topic, below uint64) error {
	mt, err := b.durableTopic(ctx, "purge", t)
	if err != nil {
		return err
	}
	mt.mu.Lock()
	defer mt.mu.Unlock()
	mt.mu.journal.purgeBelow(below)
	return nil
}

// durableTopic returns the state of a durable topic.
func (b *MemBus) durableTopic(ctx context.Context, op string, t Topic) (*memTopic, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t, err := t.requireDurable(op)
	if err != nil {
		return nil, err
	}
	return b.lookupTopic(t)
}

// drainQueue passes the messages of q to sink until ctx ends or sink fails.
func drainQueue(ctx context.Context, q *messageQueue, sink func(Message) error) error {
	var buf []byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-q.wake:
		}
		for ctx.Err() == nil {
			m, ok := q.pop()
			if !ok {
				break
			}
			buf = append(buf[:0], m.Data...) // other subscribers share the data
			m.Data = buf
			if err := sink(m); err != nil {
				return err
			}
		}
	}
}

// lookupTopic returns the state of t. t must equal the first topic of its name.
func (b *MemBus) lookupTopic(t Topic) (*memTopic, error) {
	t, err := t.withDefaults()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	mt := b.mu.topics[t.Name]
	if mt == nil {
		mt = &memTopic{topic: t, incarnation: max(rand.Uint64(), 1)}
		mt.mu.journal = journal{maxBytes: t.MaxBytes, maxAge: t.MaxAge, first: 1}
		b.mu.topics[t.Name] = mt
	}
	if mt.topic != t {
		return nil, errTopicMismatch(t, mt.topic)
	}
	return mt, nil
}

func errTopicMismatch(t, o Topic) error {
	return fault.New(fault.Conflict, "topic %s: used with %+v and with %+v; everyone must pass an equal value", t.Name, o, t)
}

func (mt *memTopic) addQueue() *messageQueue {
	q := newMessageQueue()
	mt.mu.Lock()
	defer mt.mu.Unlock()
	mt.mu.queues = append(mt.mu.queues, q)
	return q
}

func (mt *memTopic) removeQueue(q *messageQueue) {
	mt.mu.Lock()
	defer mt.mu.Unlock()
	mt.mu.queues = slices.DeleteFunc(mt.mu.queues, func(o *messageQueue) bool { return o == q })
}

// followJournal reads the journal from its own position. It has no queue which could overflow, but
// it misses messages which the journal drops first.
func (mt *memTopic) followJournal(ctx context.Context, from uint64, sink func(Message) error, ready func()) error {
	wake, target := mt.addWaiter()
	defer mt.removeWaiter(wake)
	var buf []byte
	next := max(from, 1)
	for ctx.Err() == nil {
		e, seq, ok := mt.entryFrom(next)
		next = seq
		if ready != nil && next > target {
			ready()
			ready = nil
		}
		if !ok {
			select {
			case <-ctx.Done():
			case <-wake:
			}
			continue
		}
		buf = append(buf[:0], e.data...) // other subscribers share the data
		if err := sink(Message{Key: e.key, Data: buf, Seq: seq, Incarnation: mt.incarnation}); err != nil {
			return err
		}
		next = seq + 1
	}
	return nil
}

// addWaiter returns a channel which gets a token after each message, and the number of the last
// message before.
func (mt *memTopic) addWaiter() (wake chan struct{}, last uint64) {
	wake = make(chan struct{}, 1)
	mt.mu.Lock()
	defer mt.mu.Unlock()
	mt.mu.wakes = append(mt.mu.wakes, wake)
	return wake, mt.mu.journal.lastSeq()
}

func (mt *memTopic) removeWaiter(wake chan struct{}) {
	mt.mu.Lock()
	defer mt.mu.Unlock()
	mt.mu.wakes = slices.DeleteFunc(mt.mu.wakes, func(o chan struct{}) bool { return o == wake })
}

// skipNumbers leaves n numbers unused if the journal is empty.
func (mt *memTopic) skipNumbers(n uint64) {
	mt.mu.Lock()
	defer mt.mu.Unlock()
	mt.mu.journal.skipNumbers(n)
}

// entryFrom returns the first retained message with a number of at least seq, and its number.
func (mt *memTopic) entryFrom(seq uint64) (e journalEntry, n uint64, ok bool) {
	mt.mu.Lock()
	defer mt.mu.Unlock()
	mt.mu.journal.enforceBounds(time.Now())
	return mt.mu.journal.entryFrom(seq)
}

// journal is the retained part of a durable topic in memory.
type journal struct {
	maxBytes int64
	maxAge   time.Duration
	first    uint64 // sequence number of entries[0], or of the next message if there are none
	entries  []journalEntry
	bytes    int64
}

type journalEntry struct {
	key  string
	data []byte
	at   time.Time
}

func (e journalEntry) storedSize() int64 { return int64(len(e.key)+len(e.data)) + messageOverhead }

// lastSeq returns the sequence number of the newest message ever appended.
func (j *journal) lastSeq() uint64 { return j.first + uint64(len(j.entries)) - 1 }

// appendEntry appends a message and drops the oldest messages which exceed the bounds.
func (j *journal) appendEntry(e journalEntry) {
	j.entries = append(j.entries, e)
	j.bytes += e.storedSize()
	j.enforceBounds(e.at)
}

// enforceBounds drops the oldest messages until the bounds hold.
func (j *journal) enforceBounds(now time.Time) {
	for len(j.entries) > 0 && (j.bytes > j.maxBytes || now.Sub(j.entries[0].at) > j.maxAge) {
		j.dropOldest()
	}
}

// skipNumbers leaves n numbers unused. It has no effect unless the journal is empty.
func (j *journal) skipNumbers(n uint64) {
	if len(j.entries) == 0 {
		j.first += n
	}
}

// purgeBelow drops the messages with numbers less than below.
func (j *journal) purgeBelow(below uint64) {
	for len(j.entries) > 0 && j.first < below {
		j.dropOldest()
	}
}

func (j *journal) dropOldest() {
	j.bytes -= j.entries[0].storedSize()
	j.entries[0] = journalEntry{} // release the references for the garbage collector
	j.entries = j.entries[1:]
	j.first++
}

// entryFrom returns the first retained message with a number of at least seq, and its number; ok is
// false if there is none yet.
func (j *journal) entryFrom(seq uint64) (e journalEntry, n uint64, ok bool) {
	n = max(seq, j.first)
	if n > j.lastSeq() {
		return journalEntry{}, n, false
	}
	return j.entries[n-j.first], n, true
}
