package kvfeed

import (
	"cmp"
	"errors"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// LogConfig bounds an EventLog.
type LogConfig struct {
	// Events is how many of the last events are kept at least, as long as their records take no more than
	// Bytes.
	Events, Bytes int
	// MinRepeat is the minimum time between two repetitions, MinDescribe between two descriptions of the
	// cache: routers which send requests at the same time, as after an outage of the event plane, share one
	// answer.
	MinRepeat, MinDescribe time.Duration
}

// EnsureDefaults fills in the fields which are not set: 1,024 events, 1 MiB, 50 ms and 1 s.
func (c *LogConfig) EnsureDefaults() {
	c.Events = cmp.Or(c.Events, 1024)
	c.Bytes = cmp.Or(c.Bytes, 1<<20)
	c.MinRepeat = cmp.Or(c.MinRepeat, 50*time.Millisecond)
	c.MinDescribe = cmp.Or(c.MinDescribe, time.Second)
}

// Validate reports every problem of c at once.
func (c *LogConfig) Validate() error {
	var errs []error
	if c.Events < 0 || c.Bytes < 0 {
		errs = append(errs, fault.New(fault.Invalid, "kvfeed: the events that are kept and their bytes must not be negative"))
	}
	if c.MinRepeat < 0 || c.MinDescribe < 0 {
		errs = append(errs, fault.New(fault.Invalid, "kvfeed: the times between answers must not be negative"))
	}
	return errors.Join(errs...)
}

// EventLog is a worker's side of one epoch of its feed: it numbers the events, keeps the last records, and
// decides how to answer the requests of routers, several of them by one answer. T is a record in the form in
// which it is published again. An EventLog has one owner: its methods must not run concurrently.
type EventLog[T any] struct {
	cfg   LogConfig
	epoch uint64
	next  uint64

	kept   []keptRecord[T] // in order, from head on
	head   int
	events int // of the kept records
	bytes  int

	describe    bool    // a description was requested
	repeatFrom  uint64  // a repetition from this number was requested; 0: none
	described   kv.Mono // start of the last description
	repeated    kv.Mono // time of the last repetition, if repeats
	hasRepeated bool
}

type keptRecord[T any] struct {
	first  uint64
	events int
	bytes  int
	record T
}

// NewEventLog returns the log of a new epoch without events.
func NewEventLog[T any](cfg LogConfig, epoch uint64) (*EventLog[T], error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &EventLog[T]{cfg: cfg, epoch: epoch, next: 1}, nil
}

// Next returns the number of the next event.
func (l *EventLog[T]) Next() uint64 { return l.next }

// AddRecord adds a published record, which takes the given number of bytes and has the given number of
// events, the first with the number Next.
func (l *EventLog[T]) AddRecord(events, bytes int, record T) {
	l.kept = append(l.kept, keptRecord[T]{l.next, events, bytes, record})
	l.next += uint64(events)
	l.events += events
	l.bytes += bytes
	for l.head < len(l.kept) {
		oldest := &l.kept[l.head]
		if l.bytes <= l.cfg.Bytes && l.events-oldest.events < l.cfg.Events {
			break
		}
		l.events -= oldest.events
		l.bytes -= oldest.bytes
		*oldest = keptRecord[T]{} // for the garbage collector
		l.head++
	}
	if l.head > len(l.kept)/2 {
		n := copy(l.kept, l.kept[l.head:])
		clear(l.kept[n:])
		l.kept, l.head = l.kept[:n], 0
	}
}

// HasFrom reports whether all events from a number on are kept, and AppendRecords has them. It is false before the first event: only a
// Cleared event tells that a feed begins.
func (l *EventLog[T]) HasFrom(from uint64) bool {
	oldest := l.next - uint64(l.events)
	return l.next > 1 && from >= oldest && from <= l.next
}

// AppendRecords appends to dst, in order, the records with the events from a number on; the first of them may
// begin earlier.
func (l *EventLog[T]) AppendRecords(dst []T, from uint64) []T {
	for i := l.head; i < len(l.kept); i++ {
		if k := &l.kept[i]; k.first+uint64(k.events) > from {
			dst = append(dst, k.record)
		}
	}
	return dst
}

// AddRequest records a request.
func (l *EventLog[T]) AddRequest(q ResyncRequest) {
	switch {
	case q.From == 0 || q.Epoch != l.epoch || !l.HasFrom(q.From):
		l.describe = true
	case l.repeatFrom == 0 || q.From < l.repeatFrom:
		l.repeatFrom = q.From
	}
}

// StartDescription records that a description of the whole cache starts: it answers all requests.
func (l *EventLog[T]) StartDescription(now kv.Mono) {
	l.described, l.describe, l.repeatFrom = now, false, 0
}

// Deadline returns when NextAnswer has something to do; ok is false if there is no request.
func (l *EventLog[T]) Deadline() (at kv.Mono, ok bool) {
	if l.describe {
		at, ok = l.described.Add(l.cfg.MinDescribe), true
	}
	if l.repeatFrom != 0 {
		due := l.described // in the past: the first repetition need not wait
		if l.hasRepeated {
			due = l.repeated.Add(l.cfg.MinRepeat)
		}
		if !ok || due < at {
			at, ok = due, true
		}
	}
	return at, ok
}

// Answer is what a worker publishes because of requests.
type Answer struct {
	// Repeat says to publish again the records from From on, as AppendRecords returns them, or a record
	// without events if there are none.
	Repeat bool
	From   uint64
	// Describe says to publish a description of the whole cache; call StartDescription when it starts.
	Describe bool
}

// NextAnswer returns what must be done at now. A repetition counts as done.
func (l *EventLog[T]) NextAnswer(now kv.Mono) Answer {
	if l.repeatFrom != 0 && !l.HasFrom(l.repeatFrom) {
		l.repeatFrom, l.describe = 0, true // it is no longer kept
	}
	switch {
	case l.describe && now.Sub(l.described) >= l.cfg.MinDescribe:
		return Answer{Describe: true}
	case l.repeatFrom != 0 && (!l.hasRepeated || now.Sub(l.repeated) >= l.cfg.MinRepeat):
		a := Answer{Repeat: true, From: l.repeatFrom}
		l.repeatFrom, l.repeated, l.hasRepeated = 0, now, true
		return a
	}
	return Answer{}
}
