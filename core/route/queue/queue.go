// Package queue orders the requests which wait in a router until a worker can take them.
//
// The order is by strict priority, then entries which can still meet their target before the others, then by
// the share which their clients have had, then by a key which the policy defines, then by arrival. No entry
// starves: every entry has a deadline, the sooner the higher its strict priority, and entries past their
// deadlines go before all others, in the order of deadlines. So under a lasting overload, priorities are only a
// bounded head start.
//
// Clients get equal shares of the workers' time while they wait for it, by start-time fair queueing (Goyal, Vin
// and Cheng, 1996): a client's next request starts at the virtual time at which its previous one ends, or at the
// present one if that is later; the client with the least goes first. Virtual time is in predicted ms. A client
// which has just come does not wait for the burst of another, and an idle one saves nothing up.
//
// Entries which wait for the same workers share a lane. When the head of a lane cannot be placed, no other
// entry of that lane can, but other lanes go on: a request which is pinned to a busy worker delays no request
// for other workers.
//
// A Queue is a plain structure with one owner: its methods must not run concurrently. The same calls at the
// same times give the same order. Adding and removing any entry takes O(log n).
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
	// FCFS orders by arrival, each entry as if it had arrived its Jump earlier. An entry with a target counts as if
	// it had arrived a Patience before its LatestStart, so that the one with the least slack goes first.
	FCFS Policy = "fcfs"
	// WSPT takes the entry with the most weight per work first: (1 + Jump in seconds) / (prompt tokens left
	// to compute). This minimizes the mean wait (Smith's rule).
	WSPT Policy = "wspt"
)

// Config is the policy and the bounds of a Queue.
type Config struct {
	// Policy is FCFS if "".
	Policy Policy
	// MaxEntries is the maximum number of entries; 0 is 1,024. A client may have eight times as many as are left for
	// others.
	MaxEntries int
	// MaxTokens is the maximum number of prompt tokens of all entries together, with the same bound for a client; 0
	// is no bound. An empty queue accepts an entry of any size.
	MaxTokens int
	// Patience is the wait after which an entry of strict priority 0 goes before all entries which are not
	// past their own deadlines; for strict priority n it is 1/(n+1) of that. 0 is 30 s.
	Patience time.Duration
}

// EnsureDefaults fills in the fields which are not set.
func (c *Config) EnsureDefaults() {
	if c.Policy == "" {
		c.Policy = FCFS
	}
	if c.MaxEntries == 0 {
		c.MaxEntries = 1024
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
	if c.MaxEntries < 1 {
		errs = append(errs, fmt.Errorf("queue: at least 1 request must be able to wait, not %d", c.MaxEntries))
	}
	if c.MaxTokens < 0 {
		errs = append(errs, fmt.Errorf("queue: the bound of tokens must not be negative, but is %d", c.MaxTokens))
	}
	if c.Patience < 0 {
		errs = append(errs, errors.New("queue: patience must be positive"))
	}
	return errors.Join(errs...)
}

// Priority is what a request says about its own position.
type Priority struct {
	// Strict comes before every lower one.
	Strict uint32
	// Jump moves the request ahead among the requests of its Strict: see the policies. A negative one is 0.
	Jump time.Duration
}

// QueuedRequest is what the queue knows of a request.
type QueuedRequest struct {
	Priority Priority
	// Lane is equal for requests which wait for the same workers.
	Lane uint64
	// Client is whose request it is; 0 is that of requests without an API key.
	Client uint64
	// LatestStart is until when the request must be placed to meet its target; 0 if it has none. Missed says that
	// the target cannot be met any more.
	LatestStart kv.Mono
	Missed      bool
	// Tokens counts the prompt's, Cached what a typical worker need not compute.
	Tokens, Cached int
}

// Entry is a request which waits. Callers must only read its fields.
type Entry struct {
	QueuedRequest
	// Value belongs to the caller.
	Value any
	// Arrival is when it was pushed.
	Arrival kv.Mono

	sortKey       float64 // greater goes first
	deadline      kv.Mono
	arrivalNumber uint64
	line          *line  // nil once removed
	positions     [2]int // in the heaps of its line and of its lane
}

// Queue holds the entries.
type Queue struct {
	cfg        Config
	lanes      []*lane // ascending by id; none is empty
	count      int
	tokens     int
	lastNumber uint64
	heads      []laneHead // scratch of OfferHeads
	shares     shareTable
}

// New returns an empty queue.
func New(cfg Config) (*Queue, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Queue{cfg: cfg, shares: newShareTable()}, nil
}

// Len returns how many entries wait.
func (q *Queue) Len() int { return q.count }

// Tokens returns how many prompt tokens the entries have.
func (q *Queue) Tokens() int { return q.tokens }

// MustFollow reports whether a new request must not overtake the requests of a lane: a request with no target, or
// with one which it can still meet, waits there.
func (q *Queue) MustFollow(lane uint64) bool {
	at, found := q.findLane(lane)
	return found && q.lanes[at].missed < len(q.lanes[at].late.entries)
}

// ChargeClient counts predicted ms of work as had by a client whose request was placed without waiting.
func (q *Queue) ChargeClient(client uint64, ms float64) {
	q.shares.chargeShare(q.shares.find(client), ms)
}

// Push adds a request. It fails with Overloaded if the queue is full, or if its client has its share of the queue.
func (q *Queue) Push(now kv.Mono, item QueuedRequest, value any) (*Entry, error) {
	if q.count >= q.cfg.MaxEntries {
		return nil, q.newFullError("%d requests wait for a worker already, and no more may; try again", q.count)
	}
	if q.cfg.MaxTokens > 0 && q.count > 0 && q.tokens+item.Tokens > q.cfg.MaxTokens {
		return nil, q.newFullError("%d requests with %d prompt tokens wait for a worker already, and no more than %d may; try again", q.count, q.tokens, q.cfg.MaxTokens)
	}
	of := q.shares.find(item.Client)
	if !of.hasRoom(&q.cfg, q.count, q.tokens) {
		whose := "of this API key"
		if item.Client == 0 {
			whose = "without an API key"
		}
		return nil, q.newFullError("%d requests %s wait for a worker already, which is their share of the queue; try again", of.waiting, whose)
	}
	item.Priority.Jump = max(0, item.Priority.Jump)
	q.lastNumber++
	e := &Entry{
		QueuedRequest: item, Value: value, Arrival: now, arrivalNumber: q.lastNumber,
		sortKey:  q.sortKey(now, &item),
		deadline: now.Add(q.cfg.Patience / (1 + time.Duration(item.Priority.Strict))),
	}
	at, found := q.findLane(item.Lane)
	if !found {
		q.lanes = slices.Insert(q.lanes, at, newLane(item.Lane))
	}
	q.shares.startWait(of, item.Tokens)
	q.lanes[at].addEntry(e, of)
	q.count++
	q.tokens += item.Tokens
	return e, nil
}

// newFullError is the error of Push if the queue is full. A full queue needs longer than a moment to drain.
func (q *Queue) newFullError(format string, args ...any) error {
	err := fault.New(fault.Overloaded, format, args...)
	err.RetryAfter = max(time.Second, q.cfg.Patience/10)
	return err
}

// sortKey returns the key by which the policy orders; greater goes first.
func (q *Queue) sortKey(now kv.Mono, item *QueuedRequest) float64 {
	jump := item.Priority.Jump.Seconds()
	if q.cfg.Policy == WSPT {
		return (1 + jump) / float64(max(1, item.Tokens-item.Cached))
	}
	if item.LatestStart != 0 && !item.Missed {
		return jump - (item.LatestStart.Sub(0) - q.cfg.Patience).Seconds()
	}
	return jump - now.Sub(0).Seconds()
}

// Remove removes an entry, and reports whether it was still in the queue.
func (q *Queue) Remove(e *Entry) bool {
	if e.line == nil {
		return false
	}
	l := e.line.lane
	e.line.share.endWait(e.Tokens)
	l.removeEntry(e)
	if len(l.late.entries) == 0 {
		at, _ := q.findLane(l.id)
		q.lanes = slices.Delete(q.lanes, at, at+1)
	}
	q.count--
	q.tokens -= e.Tokens
	return true
}

// laneHead is the head of a lane, with the start of its client's share when it became that.
type laneHead struct {
	*Entry
	start float64
}

// IsOverdue reports whether the entry's patience is over.
func (e *Entry) IsOverdue(now kv.Mono) bool { return e.deadline <= now }

// OfferHeads calls place with the heads of lanes, the first in the order first, until each lane is empty or
// its head was not placed. An entry which place accepts is removed, and its client charged the predicted ms of
// its work, before the next one is offered. place must not change the queue. Apart from the calls it takes
// O(n log n) for n lanes, and O(log n) for each entry placed.
func (q *Queue) OfferHeads(now kv.Mono, place func(*Entry) (ms float64, ok bool)) (placed int) {
	// The heads of the lanes which were not refused, as a heap whose first is the next.
	heads := q.heads[:0]
	for _, l := range q.lanes {
		heads = append(heads, q.headOf(l, now))
	}
	slices.SortFunc(heads, func(a, b laneHead) int {
		switch {
		case a.Entry == b.Entry:
			return 0
		case a.goesBefore(&b, now):
			return -1
		}
		return 1
	})
	for len(heads) > 0 {
		best, last := heads[0], len(heads)-1
		l := best.line.lane
		if best.start != best.line.share.start { // an entry of the client in another lane was placed
			heads[0] = q.headOf(l, now)
			siftDownHead(heads, now)
			continue
		}
		if ms, ok := place(best.Entry); ok {
			q.shares.chargeShare(best.line.share, ms)
			q.Remove(best.Entry)
			placed++
			if len(l.late.entries) > 0 {
				heads[0] = q.headOf(l, now)
				siftDownHead(heads, now)
				continue
			}
		}
		heads[0], heads[last] = heads[last], laneHead{}
		heads = heads[:last]
		siftDownHead(heads, now)
	}
	q.heads = heads[:0]
	return placed
}

func (q *Queue) headOf(l *lane, now kv.Mono) laneHead {
	e := l.firstEntry(q, now)
	return laneHead{e, e.line.share.start}
}

// siftDownHead moves the first entry of a heap down to its position.
func siftDownHead(heads []laneHead, now kv.Mono) {
	for at := 0; ; {
		child := 2*at + 1
		if child >= len(heads) {
			return
		}
		if right := child + 1; right < len(heads) && heads[right].goesBefore(&heads[child], now) {
			child = right
		}
		if !heads[child].goesBefore(&heads[at], now) {
			return
		}
		heads[at], heads[child] = heads[child], heads[at]
		at = child
	}
}

// goesBefore reports whether e goes before o at a time.
func (e *laneHead) goesBefore(o *laneHead, now kv.Mono) bool {
	late, other := e.IsOverdue(now), o.IsOverdue(now)
	switch {
	case late != other:
		return late
	case late:
		return lessByDeadline(e.Entry, o.Entry)
	}
	return lessByShare(e.Entry, o.Entry, e.start, o.start)
}

func (q *Queue) findLane(id uint64) (at int, found bool) {
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

// TypicalDepth returns how many blocks of a prompt a typical worker has, among the workers which have any:
// the third quartile of depths, which it sorts.
func TypicalDepth(depths []int) int {
	if len(depths) == 0 {
		return 0
	}
	slices.Sort(depths)
	return depths[(3*len(depths)+3)/4-1]
}
