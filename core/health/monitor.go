// Package health decides which workers answer, from signs of life, failed calls and pings, and when to ping
// them.
//
// A worker is presumed to answer until a call or a ping to it fails. Then it is quarantined: it is pinged, at
// once and then at growing intervals, and the first ping which it answers ends the quarantine. Quarantine
// starts and ends quickly, so a wrong suspicion takes one worker away for some milliseconds, and a dead
// worker costs one request one attempt. Until a ping has failed too, the worker is only suspected: a
// connection may break for many reasons.
//
// A worker which has answered once and sends other signs of life is pinged only if discovery does not confirm
// it. Signs of life through a third party end no quarantine: they do not show that this process can reach the
// worker.
//
// A Monitor has one owner: its methods must not run concurrently.
package health

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Config is the policy of a Monitor.
type Config struct {
	// IdleAfter is the silence after which a worker is pinged. It should be no less than the interval at
	// which workers report on their own.
	IdleAfter time.Duration
	// BusyAfter is the same for a worker with outstanding work, see [Monitor.ExpectReports]. It should be
	// longer than the interval at which workers report changes.
	BusyAfter time.Duration
	// DoubtEvery is the interval between pings to a worker which discovery does not confirm.
	DoubtEvery time.Duration
	// MinRetry and MaxRetry bound the wait before a quarantined worker is pinged again. It doubles with each
	// failed ping.
	MinRetry, MaxRetry time.Duration
	// SteadyAfter is how long a worker must have answered for its next quarantine to start with an immediate
	// ping; before that the waits continue to grow from the end of the last quarantine. It limits a worker
	// which answers pings but fails calls.
	SteadyAfter time.Duration
}

// EnsureDefaults fills in the fields which are not set: 5 s, 1 s, 1 s, 50 ms, 1 s and 10 s.
func (c *Config) EnsureDefaults() {
	for _, f := range [...]struct {
		field *time.Duration
		v     time.Duration
	}{
		{&c.IdleAfter, 5 * time.Second},
		{&c.BusyAfter, time.Second},
		{&c.DoubtEvery, time.Second},
		{&c.MinRetry, 50 * time.Millisecond},
		{&c.MaxRetry, time.Second},
		{&c.SteadyAfter, 10 * time.Second},
	} {
		if *f.field == 0 {
			*f.field = f.v
		}
	}
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if min(c.IdleAfter, c.BusyAfter, c.DoubtEvery, c.MinRetry, c.SteadyAfter) <= 0 {
		errs = append(errs, fault.New(fault.Invalid, "health: intervals must be positive"))
	}
	if c.MaxRetry < c.MinRetry {
		errs = append(errs, fault.New(fault.Invalid, "health: the longest wait before a retry must not be shorter than the first"))
	}
	return errors.Join(errs...)
}

// Worker is a worker which discovery knows.
type Worker struct {
	ID    kv.WorkerID
	Epoch uint64 // of its incarnation; a later one is larger
	// Confirmed says that discovery confirms the worker.
	Confirmed bool
}

// Cause is why a worker is in quarantine.
type Cause uint8

// The causes; the zero value is for a worker which answers.
const (
	None       Cause = iota
	CallFailed       // a call to it ended without its answer; no ping has failed yet
	PingFailed       // a ping failed
)

// String returns the cause in words.
func (c Cause) String() string {
	switch c {
	case CallFailed:
		return "a call to it failed"
	case PingFailed:
		return "a ping to it failed"
	}
	return "none"
}

// Status is the state of a worker.
type Status struct {
	// Quarantined says that it has not answered since Since, because of Cause: only pings may be sent to it
	// while there is another worker, and after PingFailed nothing else at all.
	Quarantined bool
	Since       kv.Mono
	Cause       Cause
}

// Ping is a ping to be sent. The caller of DuePings ends it with RecordAnswer or RecordMissed, whatever its
// result.
type Ping struct {
	ID    kv.WorkerID
	Epoch uint64 // of the pinged incarnation
	// Number distinguishes the pings of one monitor.
	Number uint64
}

// Monitor tracks the health of a set of workers.
//
//	state                event                          next                     next ping
//	none, earlier epoch  SetWorkers                     presumed to answer       within DoubtEvery
//	presumed, answers    RecordFailedCall               quarantined, CallFailed  at once; soon after another, later
//	presumed, answers    RecordMissed                   quarantined, PingFailed  after MinRetry; the same
//	quarantined          RecordMissed                   quarantined, PingFailed  after twice the wait, to MaxRetry
//	any                  RecordAnswer                   answers                  after IdleAfter, see below
//	answers              RecordHeard                    answers                  after IdleAfter, if confirmed
//	presumed, answers    ExpectReports after BusyAfter  as before                at once
//
// A worker which discovery does not confirm is pinged after DoubtEvery instead of IdleAfter. DuePings returns the
// pings, at Deadline.
type Monitor struct {
	cfg         Config
	workers     map[kv.WorkerID]*workerEntry
	queue       pingQueue // workers waiting for a ping
	lastNumber  uint64
	quarantined int
}

// workerEntry is one worker. It is in the queue unless a ping to it is outstanding.
type workerEntry struct {
	Worker
	status         Status
	lastHeard      kv.Mono       // last sign of life
	nextPing       kv.Mono       // time of the next ping
	outstanding    uint64        // number of the outstanding one; 0 for none
	retry          time.Duration // last wait of the last quarantine
	recovered      kv.Mono       // end of the last quarantine
	wasQuarantined bool          // there was a quarantine
	answered       bool          // this incarnation has answered a ping
	index          int           // in the queue; -1 outside
}

// New returns a monitor without workers.
func New(cfg Config) (*Monitor, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Monitor{cfg: cfg, workers: map[kv.WorkerID]*workerEntry{}}, nil
}

// SetWorkers replaces the set of workers, given in any order; of two entries for one worker the larger epoch
// counts. A worker which is new, or in a new epoch, is presumed to answer, but is pinged within DoubtEvery
// even if signs of life arrive before: its address may be wrong. Workers which are not in the set are
// removed, so the set bounds the memory.
func (m *Monitor) SetWorkers(now kv.Mono, workers []Worker) {
	next := slices.Clone(workers)
	slices.SortFunc(next, func(a, b Worker) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(b.Epoch, a.Epoch)) })
	next = slices.CompactFunc(next, func(a, b Worker) bool { return a.ID == b.ID })

	kept := make(map[kv.WorkerID]*workerEntry, len(next))
	for _, w := range next {
		e := m.workers[w.ID]
		switch {
		case e == nil || e.Epoch != w.Epoch:
			if e != nil {
				m.removeEntry(e)
			}
			e = &workerEntry{Worker: w, lastHeard: now, index: -1}
			m.schedulePing(e, m.firstPingAt(e, now))
		case e.Confirmed != w.Confirmed:
			e.Confirmed = w.Confirmed
			if !e.status.Quarantined && e.outstanding == 0 {
				m.reschedule(e, now)
			}
		}
		kept[w.ID] = e
	}
	for id, e := range m.workers {
		if kept[id] != e && e.index != removedIndex { // the order does not matter
			m.removeEntry(e)
		}
	}
	m.workers = kept
}

// removedIndex marks a removed entry.
const removedIndex = -2

func (m *Monitor) removeEntry(e *workerEntry) {
	m.unschedulePing(e)
	if e.status.Quarantined {
		m.quarantined--
	}
	e.index = removedIndex
}

// reschedule sets the next ping of a worker whose confirmation changed. It never delays the ping of an
// unconfirmed worker, because confirmation may change often.
func (m *Monitor) reschedule(e *workerEntry, now kv.Mono) {
	switch {
	case !e.Confirmed:
		m.schedulePing(e, min(e.nextPing, m.firstPingAt(e, now)))
	case e.answered:
		m.schedulePing(e, e.lastHeard.Add(m.pingInterval(e)))
	}
}

// firstPingAt returns when to ping a worker which is new or unconfirmed. Many workers are so at the same
// time: the pings are spread over one interval.
func (m *Monitor) firstPingAt(e *workerEntry, now kv.Mono) kv.Mono {
	return now.Add(spreadDelay(e.ID, spreadFirst, m.cfg.DoubtEvery))
}

// RecordHeard records a sign of life of a worker other than the answer to a ping. It delays the next ping of
// a confirmed worker, but not the first one: others may hear from a worker which this process cannot reach.
// It ends no quarantine. Signs of life from other epochs are ignored.
func (m *Monitor) RecordHeard(now kv.Mono, id kv.WorkerID, epoch uint64) {
	e := m.workers[id]
	if e == nil || epoch != e.Epoch {
		return
	}
	e.lastHeard = max(e.lastHeard, now)
	if e.Confirmed && e.answered && !e.status.Quarantined && e.outstanding == 0 {
		m.schedulePing(e, e.lastHeard.Add(m.pingInterval(e)))
	}
}

// ExpectReports reports that a worker has outstanding work, from any router. Its reports then change; if it
// has been silent for BusyAfter it is pinged now. Without this, only the callers of a hanging worker would
// notice: other routers avoid a worker which looks busy, and would presume that it answers until they call it
// themselves.
func (m *Monitor) ExpectReports(now kv.Mono, id kv.WorkerID) {
	e := m.workers[id]
	if e == nil || e.status.Quarantined || e.outstanding != 0 || now.Sub(e.lastHeard) < m.cfg.BusyAfter {
		return
	}
	m.schedulePing(e, min(e.nextPing, now))
}

// RecordFailedCall records that a call to a worker in an epoch ended without its answer, and reports whether
// that starts its quarantine.
func (m *Monitor) RecordFailedCall(now kv.Mono, id kv.WorkerID, epoch uint64) bool {
	e := m.workers[id]
	if e == nil || epoch != e.Epoch || e.status.Quarantined {
		return false
	}
	m.startQuarantine(e, now, CallFailed)
	return true
}

// startQuarantine starts a quarantine. An outstanding ping was sent before the failure and proves nothing
// about the time after it, so it is ignored.
func (m *Monitor) startQuarantine(e *workerEntry, now kv.Mono, why Cause) {
	e.status = Status{Quarantined: true, Since: now, Cause: why}
	m.quarantined++
	e.outstanding = 0
	again := e.wasQuarantined && now.Sub(e.recovered) < m.cfg.SteadyAfter
	if !again {
		e.retry = 0
	}
	if again || why == PingFailed {
		m.lengthenRetry(e)
	}
	e.wasQuarantined = true
	m.schedulePing(e, now.Add(m.retryDelay(e)))
}

// lengthenRetry makes the wait before the next ping longer.
func (m *Monitor) lengthenRetry(e *workerEntry) {
	e.retry = min(max(2*e.retry, m.cfg.MinRetry), m.cfg.MaxRetry)
}

// DuePings appends to dst the pings which must be sent now, at most limit of them, the longest due first. A
// worker has at most one outstanding ping.
func (m *Monitor) DuePings(now kv.Mono, dst []Ping, limit int) []Ping {
	for n := 0; n < limit && len(m.queue) > 0 && m.queue[0].nextPing <= now; n++ {
		e := m.queue[0]
		m.unschedulePing(e)
		m.lastNumber++
		e.outstanding = m.lastNumber
		dst = append(dst, Ping{ID: e.ID, Epoch: e.Epoch, Number: e.outstanding})
	}
	return dst
}

// Deadline returns when DuePings will have a ping; ok is false if no worker waits for one.
func (m *Monitor) Deadline() (at kv.Mono, ok bool) {
	if len(m.queue) == 0 {
		return 0, false
	}
	return m.queue[0].nextPing, true
}

// RecordAnswer ends a ping which a worker answered in an epoch, and reports whether that ends a quarantine.
// An answer from an earlier epoch than the pinged one counts as missed.
func (m *Monitor) RecordAnswer(now kv.Mono, p Ping, epoch uint64) bool {
	if epoch < p.Epoch {
		return m.RecordMissed(now, p)
	}
	e := m.takePing(p)
	if e == nil {
		return false
	}
	was := e.status.Quarantined
	if was {
		m.quarantined--
		e.recovered = now
	}
	e.status, e.lastHeard, e.answered = Status{}, max(e.lastHeard, now), true
	m.schedulePing(e, now.Add(m.pingInterval(e)))
	return was
}

// RecordMissed ends a ping which was not answered, and reports whether that starts the worker's quarantine.
func (m *Monitor) RecordMissed(now kv.Mono, p Ping) bool {
	e := m.takePing(p)
	switch {
	case e == nil:
		return false
	case !e.status.Quarantined:
		m.startQuarantine(e, now, PingFailed)
		return true
	}
	e.status.Cause = PingFailed
	m.lengthenRetry(e)
	m.schedulePing(e, now.Add(m.retryDelay(e)))
	return false
}

// takePing ends the outstanding ping p and returns its worker, or nil if p is no longer valid.
func (m *Monitor) takePing(p Ping) *workerEntry {
	e := m.workers[p.ID]
	if e == nil || p.Number == 0 || e.outstanding != p.Number {
		return nil
	}
	e.outstanding = 0
	return e
}

// StatusOf returns the state of a worker; ok is false for one which is not in the set.
func (m *Monitor) StatusOf(id kv.WorkerID) (s Status, ok bool) {
	e := m.workers[id]
	if e == nil {
		return Status{}, false
	}
	return e.status, true
}

// QuarantinedCount returns how many workers are in quarantine.
func (m *Monitor) QuarantinedCount() int { return m.quarantined }

// pingInterval returns the time from a sign of life to the ping which follows if there is no other sign. It
// is a little longer than the configured interval, so that reports at that interval suffice, and differs
// between workers, so that workers which report at the same time are not pinged at the same time.
func (m *Monitor) pingInterval(e *workerEntry) time.Duration {
	d := m.cfg.IdleAfter
	if !e.Confirmed {
		d = m.cfg.DoubtEvery
	}
	return d + d/10 + spreadDelay(e.ID, spreadLater, d/5)
}

// retryDelay returns the time to the next ping of a quarantined worker: at most its retry, and different for
// workers which were lost at the same time.
func (m *Monitor) retryDelay(e *workerEntry) time.Duration {
	return e.retry - spreadDelay(e.ID, spreadRetry, e.retry/4)
}

// The uses of spreadDelay: a worker has an independent delay for each.
const (
	spreadFirst = iota + 1 // first ping of a new or unconfirmed worker
	spreadLater            // later pings
	spreadRetry            // pings in quarantine
)

// spreadDelay returns a duration from 0 to below d which is specific to a worker and a use: the output at
// that position of the stream of its id.
func spreadDelay(id kv.WorkerID, use uint64, d time.Duration) time.Duration {
	return time.Duration(splitmix.Mix(uint64(id)+use*splitmix.Step) % uint64(max(d, 1)))
}

func (m *Monitor) schedulePing(e *workerEntry, due kv.Mono) {
	e.nextPing = due
	if e.index >= 0 {
		heap.Fix(&m.queue, e.index)
		return
	}
	heap.Push(&m.queue, e)
}

func (m *Monitor) unschedulePing(e *workerEntry) {
	if e.index >= 0 {
		heap.Remove(&m.queue, e.index)
	}
}

// pingQueue is a heap of workers by the time of their next ping, then by id: thousands of workers send signs
// of life several times a second each.
type pingQueue []*workerEntry

var _ heap.Interface = (*pingQueue)(nil)

// Len implements sort.Interface.
func (q pingQueue) Len() int { return len(q) }

// Less implements sort.Interface.
func (q pingQueue) Less(i, j int) bool {
	return q[i].nextPing < q[j].nextPing || q[i].nextPing == q[j].nextPing && q[i].ID < q[j].ID
}

// Swap implements sort.Interface.
func (q pingQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *pingQueue) Push(x any) {
	e := x.(*workerEntry)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *pingQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.index = -1
	return e
}

// Check reports the first violated invariant, as of now. It is for tests.
func (m *Monitor) Check(now kv.Mono) error {
	quarantined, waiting := 0, 0
	for id, e := range m.workers {
		if e.status.Quarantined {
			quarantined++
		}
		if e.index >= 0 {
			waiting++
		}
		switch {
		case e.ID != id:
			return fmt.Errorf("worker %d is kept as %d", e.ID, id)
		case e.index >= 0 == (e.outstanding != 0):
			return fmt.Errorf("worker %d must either wait for a ping or have one out", id)
		case e.index >= 0 && (e.index >= len(m.queue) || m.queue[e.index] != e):
			return fmt.Errorf("worker %d is not where it says in the queue", id)
		case e.status.Quarantined == (e.status.Cause == None):
			return fmt.Errorf("worker %d: quarantined %t because of %v", id, e.status.Quarantined, e.status.Cause)
		case e.status.Quarantined && (e.retry > m.cfg.MaxRetry || e.retry < m.cfg.MinRetry && e.retry != 0):
			return fmt.Errorf("worker %d is tried again after %v", id, e.retry)
		case e.status.Quarantined && e.outstanding == 0 && e.nextPing.Sub(now) > m.cfg.MaxRetry:
			return fmt.Errorf("worker %d in quarantine waits for %v", id, e.nextPing.Sub(now))
		case !e.status.Quarantined && e.outstanding == 0 && e.nextPing.Sub(now) > 2*max(m.cfg.IdleAfter, m.cfg.DoubtEvery):
			return fmt.Errorf("worker %d is not pinged for %v", id, e.nextPing.Sub(now))
		}
	}
	if quarantined != m.quarantined || waiting != len(m.queue) {
		return fmt.Errorf("%d in quarantine and %d waiting, counted %d and %d", quarantined, waiting, m.quarantined, len(m.queue))
	}
	return nil
}
