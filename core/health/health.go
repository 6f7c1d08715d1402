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
//	state                    entered by                      pings
//	presumed to answer       SetWorkers                      first within DoubtEvery
//	answers                  an answered ping                after silence; each DoubtEvery if unconfirmed
//	quarantined, CallFailed  a failed call                   at once, or after the last wait
//	quarantined, PingFailed  a missed ping                   with growing waits
//
// A Monitor has one owner: its methods must not run concurrently.
package health

import (
	"cmp"
	"container/heap"
	"errors"
	"slices"
	"time"

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
	RetryLeast, RetryMost time.Duration
	// SteadyAfter is how long a worker must have answered for its next quarantine to start with an immediate
	// ping; before that the waits continue to grow from the end of the last quarantine. It limits a worker
	// which answers pings but fails calls.
	Steady time.Duration
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
		{&c.RetryLeast, 50 * time.Millisecond},
		{&c.RetryMost, time.Second},
		{&c.Steady, 10 * time.Second},
	} {
		if *f.field == 0 {
			*f.field = f.v
		}
	}
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if min(c.IdleAfter, c.BusyAfter, c.DoubtEvery, c.RetryLeast, c.Steady) <= 0 {
		errs = append(errs, errors.New("health: intervals must be positive"))
	}
	if c.RetryMost < c.RetryLeast {
		errs = append(errs, errors.New("health: the longest wait before a retry must not be shorter than the first"))
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
type Machine struct {
	cfg         Config
	workers     map[kv.WorkerID]*entry
	queue       queue // workers waiting for a ping
	pings       uint64
	quarantined int
}

// workerEntry is one worker. It is in the queue unless a ping to it is outstanding.
type entry struct {
	Worker
	status Status
	heard  kv.Mono       // last sign of life
	due    kv.Mono       // time of the next ping
	ping   uint64        // number of the outstanding one; 0 for none
	retry  time.Duration // last wait of the last quarantine
	back   kv.Mono       // end of the last quarantine
	lapsed bool          // there was a quarantine
	known  bool          // this incarnation has answered a ping
	at     int           // in the queue; -1 outside
}

// New returns a monitor without workers.
func New(cfg Config) (*Machine, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Machine{cfg: cfg, workers: map[kv.WorkerID]*entry{}}, nil
}

// SetWorkers replaces the set of workers, given in any order; of two entries for one worker the larger epoch
// counts. A worker which is new, or in a new epoch, is presumed to answer, but is pinged within DoubtEvery
// even if signs of life arrive before: its address may be wrong. Workers which are not in the set are
// removed, so the set bounds the memory.
func (m *Machine) Set(now kv.Mono, workers []Worker) {
	next := slices.Clone(workers)
	slices.SortFunc(next, func(a, b Worker) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(b.Epoch, a.Epoch)) })
	next = slices.CompactFunc(next, func(a, b Worker) bool { return a.ID == b.ID })

	kept := make(map[kv.WorkerID]*entry, len(next))
	for _, w := range next {
		e := m.workers[w.ID]
		switch {
		case e == nil || e.Epoch != w.Epoch:
			if e != nil {
				m.forget(e)
			}
			e = &entry{Worker: w, heard: now, at: -1}
			m.enqueue(e, m.soon(e, now))
		case e.Confirmed != w.Confirmed:
			e.Confirmed = w.Confirmed
			if !e.status.Quarantined && e.ping == 0 {
				m.change(e, now)
			}
		}
		kept[w.ID] = e
	}
	for id, e := range m.workers {
		if kept[id] != e && e.at != gone { // the order does not matter
			m.forget(e)
		}
	}
	m.workers = kept
}

// removedIndex marks a removed entry.
const gone = -2

func (m *Machine) forget(e *entry) {
	m.dequeue(e)
	if e.status.Quarantined {
		m.quarantined--
	}
	e.at = gone
}

// reschedule sets the next ping of a worker whose confirmation changed. It never delays the ping of an
// unconfirmed worker, because confirmation may change often.
func (m *Machine) change(e *entry, now kv.Mono) {
	switch {
	case !e.Confirmed:
		m.enqueue(e, min(e.due, m.soon(e, now)))
	case e.known:
		m.enqueue(e, e.heard.Add(m.period(e)))
	}
}

// firstPingAt returns when to ping a worker which is new or unconfirmed. Many workers are so at the same
// time: the pings are spread over one interval.
func (m *Machine) soon(e *entry, now kv.Mono) kv.Mono {
	return now.Add(spread(e.ID, first, m.cfg.DoubtEvery))
}

// RecordHeard records a sign of life of a worker other than the answer to a ping. It delays the next ping of
// a confirmed worker, but not the first one: others may hear from a worker which this process cannot reach.
// It ends no quarantine. Signs of life from other epochs are ignored.
func (m *Machine) Heard(now kv.Mono, id kv.WorkerID, epoch uint64) {
	e := m.workers[id]
	if e == nil || epoch != e.Epoch {
		return
	}
	e.heard = max(e.heard, now)
	if e.Confirmed && e.known && !e.status.Quarantined && e.ping == 0 {
		m.enqueue(e, e.heard.Add(m.period(e)))
	}
}

// ExpectReports reports that a worker has outstanding work, from any router. Its reports then change; if it
// has been silent for BusyAfter it is pinged now. Without this, only the callers of a hanging worker would
// notice: other routers avoid a worker which looks busy, and would presume that it answers until they call it
// themselves.
func (m *Machine) Expect(now kv.Mono, id kv.WorkerID) {
	e := m.workers[id]
	if e == nil || e.status.Quarantined || e.ping != 0 || now.Sub(e.heard) < m.cfg.BusyAfter {
		return
	}
	m.enqueue(e, min(e.due, now))
}

// RecordFailedCall records that a call to a worker in an epoch ended without its answer, and reports whether
// that starts its quarantine.
func (m *Machine) Failed(now kv.Mono, id kv.WorkerID, epoch uint64) bool {
	e := m.workers[id]
	if e == nil || epoch != e.Epoch || e.status.Quarantined {
		return false
	}
	m.quarantine(e, now, CallFailed)
	return true
}

// startQuarantine starts a quarantine. An outstanding ping was sent before the failure and proves nothing
// about the time after it, so it is ignored.
func (m *Machine) quarantine(e *entry, now kv.Mono, why Cause) {
	e.status = Status{Quarantined: true, Since: now, Cause: why}
	m.quarantined++
	e.ping = 0
	again := e.lapsed && now.Sub(e.back) < m.cfg.Steady
	if !again {
		e.retry = 0
	}
	if again || why == PingFailed {
		m.grow(e)
	}
	e.lapsed = true
	m.enqueue(e, now.Add(m.wait(e)))
}

// lengthenRetry makes the wait before the next ping longer.
func (m *Machine) grow(e *entry) {
	e.retry = min(max(2*e.retry, m.cfg.RetryLeast), m.cfg.RetryMost)
}

// DuePings appends to dst the pings which must be sent now, at most limit of them, the longest due first. A
// worker has at most one outstanding ping.
func (m *Machine) Due(now kv.Mono, dst []Ping, limit int) []Ping {
	for n := 0; n < limit && len(m.queue) > 0 && m.queue[0].due <= now; n++ {
		e := m.queue[0]
		m.dequeue(e)
		m.pings++
		e.ping = m.pings
		dst = append(dst, Ping{ID: e.ID, Epoch: e.Epoch, Number: e.ping})
	}
	return dst
}

// Next returns when DuePings will have a ping; ok is false if no worker waits for one.
func (m *Machine) Next() (at kv.Mono, ok bool) {
	if len(m.queue) == 0 {
		return 0, false
	}
	return m.queue[0].due, true
}

// RecordAnswer ends a ping which a worker answered in an epoch, and reports whether that ends a quarantine.
// An answer from an earlier epoch than the pinged one counts as missed.
func (m *Machine) Answered(now kv.Mono, p Ping, epoch uint64) bool {
	if epoch < p.Epoch {
		return m.Missed(now, p)
	}
	e := m.out(p)
	if e == nil {
		return false
	}
	was := e.status.Quarantined
	if was {
		m.quarantined--
		e.back = now
	}
	e.status, e.heard, e.known = Status{}, max(e.heard, now), true
	m.enqueue(e, now.Add(m.period(e)))
	return was
}

// RecordMissed ends a ping which was not answered, and reports whether that starts the worker's quarantine.
func (m *Machine) Missed(now kv.Mono, p Ping) bool {
	e := m.out(p)
	switch {
	case e == nil:
		return false
	case !e.status.Quarantined:
		m.quarantine(e, now, PingFailed)
		return true
	}
	e.status.Cause = PingFailed
	m.grow(e)
	m.enqueue(e, now.Add(m.wait(e)))
	return false
}

// takePing ends the outstanding ping p and returns its worker, or nil if p is no longer valid.
func (m *Machine) out(p Ping) *entry {
	e := m.workers[p.ID]
	if e == nil || p.Number == 0 || e.ping != p.Number {
		return nil
	}
	e.ping = 0
	return e
}

// StatusOf returns the state of a worker; ok is false for one which is not in the set.
func (m *Machine) Status(id kv.WorkerID) (s Status, ok bool) {
	e := m.workers[id]
	if e == nil {
		return Status{}, false
	}
	return e.status, true
}

// QuarantinedCount returns how many workers are in quarantine.
func (m *Machine) Quarantined() int { return m.quarantined }

// pingInterval returns the time from a sign of life to the ping which follows if there is no other sign. It
// is a little longer than the configured interval, so that reports at that interval suffice, and differs
// between workers, so that workers which report at the same time are not pinged at the same time.
func (m *Machine) period(e *entry) time.Duration {
	d := m.cfg.IdleAfter
	if !e.Confirmed {
		d = m.cfg.DoubtEvery
	}
	return d + d/10 + spread(e.ID, later, d/5)
}

// retryDelay returns the time to the next ping of a quarantined worker: at most its retry, and different for
// workers which were lost at the same time.
func (m *Machine) wait(e *entry) time.Duration {
	return e.retry - spread(e.ID, retried, e.retry/4)
}

// The uses of spreadDelay: a worker has an independent delay for each.
const (
	first   = iota + 1 // first ping of a new or unconfirmed worker
	later              // later pings
	retried            // pings in quarantine
)

// spreadDelay returns a duration from 0 to below d which is specific to a worker and a use: the output at
// that position of the stream of its id.
func spread(id kv.WorkerID, use uint64, d time.Duration) time.Duration {
	return time.Duration(splitmix.Mix(uint64(id)+use*splitmix.Step) % uint64(max(d, 1)))
}

func (m *Machine) enqueue(e *entry, due kv.Mono) {
	e.due = due
	if e.at >= 0 {
		heap.Fix(&m.queue, e.at)
		return
	}
	heap.Push(&m.queue, e)
}

func (m *Machine) dequeue(e *entry) {
	if e.at >= 0 {
		heap.Remove(&m.queue, e.at)
	}
}
