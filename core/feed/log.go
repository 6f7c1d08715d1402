package feed

import (
	"errors"
	"time"

	"penstock/core/kv"
)

// LogConfig bounds a Log.
type LogConfig struct {
	// Events is how many of the last events are kept at least, as long as their
	// records take no more than Bytes.
	Events, Bytes int
	// MinRepeat is the least time between two repetitions, MinDescribe between two
	// descriptions of the cache: those who ask at once, as after the event plane was
	// away, share one.
	MinRepeat, MinDescribe time.Duration
}

// EnsureDefaults fills in what is not set: 1,024 events, 1 MiB, 50 ms and 1 s.
func (c *LogConfig) EnsureDefaults() {
	if c.Events == 0 {
		c.Events = 1024
	}
	if c.Bytes == 0 {
		c.Bytes = 1 << 20
	}
	if c.MinRepeat == 0 {
		c.MinRepeat = 50 * time.Millisecond
	}
	if c.MinDescribe == 0 {
		c.MinDescribe = time.Second
	}
}

// Validate reports every problem of c at once.
func (c *LogConfig) Validate() error {
	var errs []error
	if c.Events < 0 || c.Bytes < 0 {
		errs = append(errs, errors.New("feed: the events that are kept and their bytes must not be negative"))
	}
	if c.MinRepeat < 0 || c.MinDescribe < 0 {
		errs = append(errs, errors.New("feed: the times between answers must not be negative"))
	}
	return errors.Join(errs...)
}

// Log is a worker's side of one life of its feed: it numbers the events, keeps the last
// records, and says how the requests of routers are answered, several of them by one
// answer. T is a record in the form in which it is published again. A Log has one owner:
// no method may run beside another one.
type Log[T any] struct {
	cfg   LogConfig
	epoch uint64
	next  uint64

	kept   []kept[T] // in order, from head on
	head   int
	events int // of those kept
	bytes  int

	whole     bool    // a description was asked for
	from      uint64  // a repetition from there was asked for; 0: none was
	described kv.Mono // when the last description began
	repeated  kv.Mono // when the last repetition was, if repeats
	repeats   bool
}

type kept[T any] struct {
	first  uint64
	events int
	bytes  int
	record T
}

// NewLog returns a Log of the life epoch, of which nothing was published.
func NewLog[T any](cfg LogConfig, epoch uint64) (*Log[T], error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Log[T]{cfg: cfg, epoch: epoch, next: 1}, nil
}

// Next returns the number of the next event.
func (l *Log[T]) Next() uint64 { return l.next }

// Add notes a record that was published with so many events, the first of which had the
// number Next, and that takes so many bytes.
func (l *Log[T]) Add(events, bytes int, record T) {
	l.kept = append(l.kept, kept[T]{l.next, events, bytes, record})
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
		*oldest = kept[T]{} // for the collector
		l.head++
	}
	if l.head > len(l.kept)/2 {
		n := copy(l.kept, l.kept[l.head:])
		clear(l.kept[n:])
		l.kept, l.head = l.kept[:n], 0
	}
}

// has reports whether all events from a number on are kept. Where there are none yet
// nothing is: that a feed begins is said by a Cleared event.
func (l *Log[T]) has(from uint64) bool {
	oldest := l.next - uint64(l.events)
	return l.next > 1 && from >= oldest && from <= l.next
}

// AppendFrom appends to dst, in order, the records that have the events from a number on,
// the first of which may begin before it.
func (l *Log[T]) AppendFrom(dst []T, from uint64) []T {
	for i := l.head; i < len(l.kept); i++ {
		if k := &l.kept[i]; k.first+uint64(k.events) > from {
			dst = append(dst, k.record)
		}
	}
	return dst
}

// Ask notes a request.
func (l *Log[T]) Ask(q Request) {
	switch {
	case q.From == 0 || q.Epoch != l.epoch || !l.has(q.From):
		l.whole = true
	case l.from == 0 || q.From < l.from:
		l.from = q.From
	}
}

// Describing notes that a description of the whole cache begins: it answers all that was
// asked.
func (l *Log[T]) Describing(now kv.Mono) {
	l.described, l.whole, l.from = now, false, 0
}

// Due returns when Answer has something to say; ok is false if nothing was asked.
func (l *Log[T]) Due() (at kv.Mono, ok bool) {
	if l.whole {
		at, ok = l.described.Add(l.cfg.MinDescribe), true
	}
	if l.from != 0 {
		due := l.described // long ago: nothing stands against the first one
		if l.repeats {
			due = l.repeated.Add(l.cfg.MinRepeat)
		}
		if !ok || due < at {
			at, ok = due, true
		}
	}
	return at, ok
}

// Answer is what a worker publishes because it was asked.
type Answer struct {
	// Repeat asks for the records from From on to be published once more, as AppendFrom
	// has them, or, if there are none, for a record without events.
	Repeat bool
	From   uint64
	// Describe asks for a description of the whole cache, of which the beginning is
	// told to Describing.
	Describe bool
}

// Answer returns what must be done at now. A repetition counts as done.
func (l *Log[T]) Answer(now kv.Mono) Answer {
	if l.from != 0 && !l.has(l.from) {
		l.from, l.whole = 0, true // too much was published since
	}
	switch {
	case l.whole && now.Sub(l.described) >= l.cfg.MinDescribe:
		return Answer{Describe: true}
	case l.from != 0 && (!l.repeats || now.Sub(l.repeated) >= l.cfg.MinRepeat):
		a := Answer{Repeat: true, From: l.from}
		l.from, l.repeated, l.repeats = 0, now, true
		return a
	}
	return Answer{}
}
