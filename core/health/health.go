// Package health tells which workers answer, from signs of life, failed calls and
// pings, and says when to ping whom.
//
// A worker is taken to answer until a call or a ping to it fails. From then on it is
// quarantined: it is pinged, at once and then at growing intervals, and the first
// ping that it answers brings it back. Doubt is cheap and trust is cheap to regain, so
// that a wrong suspicion costs some milliseconds of one worker, and a dead worker
// costs one request one attempt. Until a ping has failed too the worker is no more
// than suspected: a connection may break for many reasons.
//
// A worker that has answered once and is heard of otherwise is pinged only if
// discovery is in doubt about it. What one hears through a third party ends no quarantine: it does not show that
// the worker can be reached.
//
// A Machine has one owner: no method may run beside another one.
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

// Config is a Machine's policy.
type Config struct {
	// IdleAfter is how long nothing may be heard of a worker before it is pinged.
	// It should be no less than the interval at which workers report by themselves.
	IdleAfter time.Duration
	// BusyAfter is the same for a worker that has work, see [Machine.Expect]. It should be
	// longer than the interval at which workers report what changes.
	BusyAfter time.Duration
	// DoubtEvery is how often a worker is pinged that discovery does not confirm.
	DoubtEvery time.Duration
	// RetryLeast and RetryMost bound the wait before a worker in quarantine is
	// pinged again. It doubles with each ping that fails.
	RetryLeast, RetryMost time.Duration
	// Steady is how long a worker must have answered for its next quarantine to
	// begin with a ping at once; before that the waits go on growing from where the
	// last one ended. It holds back a worker that answers pings and fails calls.
	Steady time.Duration
}

// EnsureDefaults fills in what is not set: 5 s, 1 s, 1 s, 50 ms, 1 s and 10 s.
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

// Worker is a worker that discovery knows.
type Worker struct {
	ID    kv.WorkerID
	Epoch uint64 // of its life; a later one is higher
	// Confirmed says that discovery has no doubt about it.
	Confirmed bool
}

// Cause is why a worker is in quarantine.
type Cause uint8

// The causes; the zero value is that of a worker that answers.
const (
	None       Cause = iota
	CallFailed       // a call to it ended without its answer, and no ping yet
	PingFailed       // a ping did
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

// Status is what is known of a worker.
type Status struct {
	// Quarantined says that it has not answered since Since, because of Cause: nothing
	// but pings must be sent to it while there is another worker, and after PingFailed
	// nothing at all.
	Quarantined bool
	Since       kv.Mono
	Cause       Cause
}

// Ping is a ping to be sent. Whoever took it from Due ends it with Answered or
// Missed, however it went.
type Ping struct {
	ID    kv.WorkerID
	Epoch uint64 // of the life that it is to
	// Number tells the pings of one machine apart.
	Number uint64
}

// Machine knows the health of a set of workers.
type Machine struct {
	cfg         Config
	workers     map[kv.WorkerID]*entry
	queue       queue // of those that will be pinged
	pings       uint64
	quarantined int
}

// entry is one worker. It is in the queue unless a ping to it is out.
type entry struct {
	Worker
	status Status
	heard  kv.Mono       // the last sign of life
	due    kv.Mono       // of the next ping
	ping   uint64        // number of the one that is out; 0 for none
	retry  time.Duration // the last wait of the last quarantine
	back   kv.Mono       // its end
	lapsed bool          // there was one
	known  bool          // this life has answered a ping
	at     int           // in the queue; -1 outside
}

// New returns a machine that knows no worker.
func New(cfg Config) (*Machine, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Machine{cfg: cfg, workers: map[kv.WorkerID]*entry{}}, nil
}

// Set replaces the set of workers, given in any order; of two entries for one
// worker the later life counts. A worker that is new, or in a new life, is taken to
// answer, but pinged within DoubtEvery even if it is heard of before: its address may
// lead nowhere. One that is gone is forgotten. Memory is bounded by the set.
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

// gone marks an entry that was forgotten.
const gone = -2

func (m *Machine) forget(e *entry) {
	m.dequeue(e)
	if e.status.Quarantined {
		m.quarantined--
	}
	e.at = gone
}

// change sets the next ping of a worker of which discovery has changed its mind. It
// puts off none of one in doubt: discovery may change its mind often.
func (m *Machine) change(e *entry, now kv.Mono) {
	switch {
	case !e.Confirmed:
		m.enqueue(e, min(e.due, m.soon(e, now)))
	case e.known:
		m.enqueue(e, e.heard.Add(m.period(e)))
	}
}

// soon is when a worker is pinged that is new, or in doubt. Many are so together: it
// is spread over one interval.
func (m *Machine) soon(e *entry, now kv.Mono) kv.Mono {
	return now.Add(spread(e.ID, first, m.cfg.DoubtEvery))
}

// Heard notes a sign of life of a worker other than the answer to a ping: it puts
// off the next ping of a worker that discovery confirms, but not the first: others
// may hear of a worker that cannot be reached from here. It ends no quarantine.
// Signs of other lives count for nothing.
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

// Expect tells that a worker has work, of whomever: what it reports changes, and if
// nothing has been heard of it for BusyAfter it is pinged now. Calls to a worker that hangs
// are noticed only by those who made them, and others avoid a worker that looks busy: they
// would take it to answer until they call it themselves.
func (m *Machine) Expect(now kv.Mono, id kv.WorkerID) {
	e := m.workers[id]
	if e == nil || e.status.Quarantined || e.ping != 0 || now.Sub(e.heard) < m.cfg.BusyAfter {
		return
	}
	m.enqueue(e, min(e.due, now))
}

// Failed notes that a call to a life of a worker ended without its answer, and
// reports whether that begins its quarantine.
func (m *Machine) Failed(now kv.Mono, id kv.WorkerID, epoch uint64) bool {
	e := m.workers[id]
	if e == nil || epoch != e.Epoch || e.status.Quarantined {
		return false
	}
	m.quarantine(e, now, CallFailed)
	return true
}

// quarantine begins a quarantine. A ping that is out was sent before the failure
// and says nothing about the time after it: it no longer counts.
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

// grow makes the wait before the next ping longer.
func (m *Machine) grow(e *entry) {
	e.retry = min(max(2*e.retry, m.cfg.RetryLeast), m.cfg.RetryMost)
}

// Due appends to dst the pings that must be sent now, at most limit of them, those
// that are due longest first. A worker has at most one ping out.
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

// Next returns when Due will have a ping; ok is false if no worker waits for one.
func (m *Machine) Next() (at kv.Mono, ok bool) {
	if len(m.queue) == 0 {
		return 0, false
	}
	return m.queue[0].due, true
}

// Answered ends a ping that a life of the worker answered, and reports whether
// that changes its status: it ends the quarantine. The answer of an earlier life
// than the one that was meant is none: the ping was missed.
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

// Missed ends a ping that was not answered, and reports whether that begins the
// worker's quarantine.
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

// out returns the worker that p is out to, nil if p counts no longer; p is not out
// any more.
func (m *Machine) out(p Ping) *entry {
	e := m.workers[p.ID]
	if e == nil || p.Number == 0 || e.ping != p.Number {
		return nil
	}
	e.ping = 0
	return e
}

// Status returns what is known of a worker; ok is false for one that Set did not
// name.
func (m *Machine) Status(id kv.WorkerID) (s Status, ok bool) {
	e := m.workers[id]
	if e == nil {
		return Status{}, false
	}
	return e.status, true
}

// Quarantined returns how many workers are in quarantine.
func (m *Machine) Quarantined() int { return m.quarantined }

// period is the time from a sign of life to the ping that the lack of another one
// brings about. It is a little more than the configured interval, so that reports
// at that interval are enough, and each worker has its own, so that those who are
// heard of together are not pinged together.
func (m *Machine) period(e *entry) time.Duration {
	d := m.cfg.IdleAfter
	if !e.Confirmed {
		d = m.cfg.DoubtEvery
	}
	return d + d/10 + spread(e.ID, later, d/5)
}

// wait is the time to the next ping of a worker in quarantine: at most its retry,
// and not the same for all that were lost together.
func (m *Machine) wait(e *entry) time.Duration {
	return e.retry - spread(e.ID, retried, e.retry/4)
}

// The uses of spread: what is the same for one of them differs for the others.
const (
	first   = iota + 1 // ping of one that is new or in doubt
	later              // pings
	retried            // pings in quarantine
)

// spread returns a duration from 0 to below d that is a worker's own for one use:
// drawn at that position of the stream of its id.
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
