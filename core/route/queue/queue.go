// Package queue is the waiting room of a router: which of the requests that no worker
// should be given now goes first when one has less to do.
//
// Order is that of strict priority, then of a key which the policy defines, then of
// arrival. Nobody starves: every entry has a deadline, the sooner the higher its strict
// priority, and those past theirs go before all others, in the order of deadlines. So under
// an overload that lasts, priorities are a bounded head start and no more.
//
// Entries that wait for the same workers share a lane. When the head of a lane cannot be
// placed, nothing behind it in that lane can, and other lanes go on: a request that is
// pinned to a busy worker holds up nobody else.
//
// A Queue is a plain structure with one owner: no method may run beside another one. The
// same calls at the same times give the same order. Adding and removing one entry, the
// next one or any other, takes O(log n).
package queue

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Policy says which of the entries of one strict priority goes first.
type Policy string

// The policies.
const (
	// FCFS takes them as they came, each as if it had come its Jump earlier.
	FCFS Policy = "fcfs"
	// WSPT takes the one with the most weight for its work first: (1 + Jump in seconds) /
	// (prompt tokens left to compute). The mean wait is the shortest then (Smith's rule).
	WSPT Policy = "wspt"
)

// Config is the policy and the bounds of a Queue.
type Config struct {
	// Policy is FCFS if "".
	Policy Policy
	// Most is how many entries there may be; 0 is 1,024.
	Most int
	// MostTokens is how many prompt tokens all entries together may have; 0 is no bound. One
	// entry fits into an empty queue whatever it has.
	MostTokens int
	// Patience is after what time an entry of strict priority 0 goes before all that have
	// waited less than theirs; that of strict priority n is 1/(n+1) of it. 0 is 30 s.
	Patience time.Duration
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.Policy == "" {
		c.Policy = FCFS
	}
	if c.Most == 0 {
		c.Most = 1024
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if c.Policy != FCFS && c.Policy != WSPT {
		errs = append(errs, fmt.Errorf("queue: policy %.40q is not one of fcfs, wspt", string(c.Policy)))
	}
	if c.Most < 1 {
		errs = append(errs, fmt.Errorf("queue: at least 1 request must be able to wait, not %d", c.Most))
	}
	if c.MostTokens < 0 {
		errs = append(errs, fmt.Errorf("queue: the bound of tokens must not be negative, but is %d", c.MostTokens))
	}
	if c.Patience < 0 {
		errs = append(errs, errors.New("queue: patience must be positive"))
	}
	return errors.Join(errs...)
}

// Priority is what a request says of its own place.
type Priority struct {
	// Strict comes before every lower one.
	Strict uint32
	// Jump moves the request among those of its Strict: see the policies. Below 0 is 0.
	Jump time.Duration
}

// Item is what the queue is told of a request.
type Item struct {
	Priority Priority
	// Lane is equal for requests that wait for the same workers.
	Lane uint64
	// Tokens are those of the prompt, Cached those that a typical worker need not compute.
	Tokens, Cached int
}

// Entry is a request that waits. Its fields are for reading.
type Entry struct {
	Item
	// Value is the owner's own.
	Value any
	// Arrival is when it came.
	Arrival kv.Mono

	key      float64 // greater goes first
	deadline kv.Mono
	serial   uint64
	lane     *lane
	places   [2]int // in the heaps of its lane
}

// Queue holds the entries.
type Queue struct {
	cfg    Config
	lanes  []*lane // ascending by id; none is empty
	n      int
	tokens int
	serial uint64
	heads  []*Entry // scratch of Offer
}

type lane struct {
	id    uint64
	heaps [2]heap // by order, by deadline
}

// New returns an empty queue.
func New(cfg Config) (*Queue, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Queue{cfg: cfg}, nil
}

// Len returns how many entries wait.
func (q *Queue) Len() int { return q.n }

// Tokens returns how many prompt tokens they have.
func (q *Queue) Tokens() int { return q.tokens }

// Waits reports whether there are entries in a lane: who comes now must not overtake them.
func (q *Queue) Waits(lane uint64) bool {
	_, found := q.find(lane)
	return found
}

// Push has a request wait. It fails with Overloaded if the queue is full.
func (q *Queue) Push(now kv.Mono, item Item, value any) (*Entry, error) {
	if q.n >= q.cfg.Most {
		return nil, q.full("%d requests wait for a worker already, and no more may; try again", q.n)
	}
	if q.cfg.MostTokens > 0 && q.n > 0 && q.tokens+item.Tokens > q.cfg.MostTokens {
		return nil, q.full("%d requests with %d prompt tokens wait for a worker already, and no more than %d may; try again", q.n, q.tokens, q.cfg.MostTokens)
	}
	item.Priority.Jump = max(0, item.Priority.Jump)
	q.serial++
	e := &Entry{
		Item: item, Value: value, Arrival: now, serial: q.serial,
		key:      q.key(now, &item),
		deadline: now.Add(q.cfg.Patience / (1 + time.Duration(item.Priority.Strict))),
	}
	at, found := q.find(item.Lane)
	if !found {
		q.lanes = slices.Insert(q.lanes, at, newLane(item.Lane))
	}
	e.lane = q.lanes[at]
	for i := range e.lane.heaps {
		e.lane.heaps[i].push(e)
	}
	q.n++
	q.tokens += item.Tokens
	return e, nil
}

// full is the refusal of one more. A queue that is full needs longer than a moment.
func (q *Queue) full(format string, args ...any) error {
	err := fault.New(fault.Overloaded, format, args...)
	err.RetryAfter = max(time.Second, q.cfg.Patience/10)
	return err
}

// key returns what the policy orders by; greater goes first.
func (q *Queue) key(now kv.Mono, item *Item) float64 {
	jump := item.Priority.Jump.Seconds()
	if q.cfg.Policy == WSPT {
		return (1 + jump) / float64(max(1, item.Tokens-item.Cached))
	}
	return jump - now.Sub(0).Seconds()
}

// Remove takes an entry out, and reports whether it was still there.
func (q *Queue) Remove(e *Entry) bool {
	l := e.lane
	if l == nil {
		return false
	}
	for i := range l.heaps {
		l.heaps[i].remove(e.places[i])
	}
	e.lane = nil
	if len(l.heaps[0].entries) == 0 {
		at, _ := q.find(l.id)
		q.lanes = slices.Delete(q.lanes, at, at+1)
	}
	q.n--
	q.tokens -= e.Tokens
	return true
}

// Offer calls take with the heads of lanes, the first of them by order first, until each
// lane is empty or its head was not taken; an entry that take accepts is out of the queue
// before the next one is looked at. take must not change the queue. Beside the calls it
// takes O(n log n) of the number of lanes, and O(log n) for each entry taken.
func (q *Queue) Offer(now kv.Mono, take func(*Entry) bool) (taken int) {
	// The heads of lanes that were not refused, as a heap whose first is the next.
	heads := q.heads[:0]
	for _, l := range q.lanes {
		heads = append(heads, l.head(now))
	}
	slices.SortFunc(heads, func(a, b *Entry) int {
		switch {
		case a == b:
			return 0
		case a.before(b, now):
			return -1
		}
		return 1
	})
	for len(heads) > 0 {
		best, last := heads[0], len(heads)-1
		if take(best) {
			l := best.lane
			q.Remove(best)
			taken++
			if len(l.heaps[0].entries) > 0 {
				heads[0] = l.head(now)
				sink(heads, now)
				continue
			}
		}
		heads[0], heads[last] = heads[last], nil
		heads = heads[:last]
		sink(heads, now)
	}
	q.heads = heads[:0]
	return taken
}

// sink moves the first entry of a heap down to where it belongs.
func sink(heads []*Entry, now kv.Mono) {
	for at := 0; ; {
		child := 2*at + 1
		if child >= len(heads) {
			return
		}
		if right := child + 1; right < len(heads) && heads[right].before(heads[child], now) {
			child = right
		}
		if !heads[child].before(heads[at], now) {
			return
		}
		heads[at], heads[child] = heads[child], heads[at]
		at = child
	}
}

// before reports whether e goes before o at a time.
func (e *Entry) before(o *Entry, now kv.Mono) bool {
	late, other := e.deadline <= now, o.deadline <= now
	switch {
	case late != other:
		return late
	case late:
		return sooner(e, o)
	}
	return ahead(e, o)
}

// head returns the entry of l that goes first.
func (l *lane) head(now kv.Mono) *Entry {
	if e := l.heaps[1].entries[0]; e.deadline <= now {
		return e
	}
	return l.heaps[0].entries[0]
}

func (q *Queue) find(id uint64) (at int, found bool) {
	return slices.BinarySearchFunc(q.lanes, id, func(l *lane, id uint64) int {
		switch {
		case l.id < id:
			return -1
		case l.id > id:
			return 1
		}
		return 0
	})
}

// Typical returns how many blocks of a prompt a typical worker has, of those that have
// any: three quarters of depths, which it sorts, are not above it.
func Typical(depths []int) int {
	if len(depths) == 0 {
		return 0
	}
	slices.Sort(depths)
	return depths[(3*len(depths)+3)/4-1]
}
