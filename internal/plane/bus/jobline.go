package bus

import (
	"bytes"
	"slices"
	"strconv"
	"time"
)

// jobLine is a queue in memory: a deterministic value to which time is an argument that never decreases. It
// is not safe for concurrent use.
type jobLine struct {
	cfg  QueueConfig
	jobs map[string]*lineJob // all jobs which are not gone or dead, by id
	// Each job is in one of these three.
	waiting  []*lineJob // in the order of Put
	returned []*lineJob // in the order in which they came back
	held     leaseTable
	ids      idMemory
	dead     []DeadJob // the oldest first
	receipts uint64
}

type lineJob struct {
	id       string
	data     []byte
	put      time.Time
	deadline time.Time
	attempts int
	receipt  string // of the delivery, if it is held
}

func newJobLine(cfg QueueConfig) *jobLine {
	return &jobLine{cfg: cfg, jobs: map[string]*lineJob{}, ids: idMemory{limit: rememberedIDs * cfg.MaxJobs}}
}

// advanceTime returns the jobs whose leases have passed, and removes what is too old.
func (l *jobLine) advanceTime(now time.Time) {
	for _, id := range l.held.removeLapsed(now) {
		l.returned = append(l.returned, l.jobs[id])
	}
	expired := func(j *lineJob) bool { return !now.Before(j.deadline) }
	l.waiting = slices.DeleteFunc(l.waiting, expired)
	l.returned = slices.DeleteFunc(l.returned, expired)
	for id, j := range l.jobs {
		if expired(j) {
			delete(l.held.leases, j.receipt)
			delete(l.jobs, id)
		}
	}
	l.ids.forgetBefore(now.Add(-l.cfg.MaxLifetime))
	l.dead = slices.DeleteFunc(l.dead, func(d DeadJob) bool { return now.Sub(d.At) >= DeadAge })
}

// putJob adds a checked job.
func (l *jobLine) putJob(now time.Time, j Job) error {
	l.advanceTime(now)
	if l.ids.knowsID(j.ID) || l.jobs[j.ID] != nil {
		return nil
	}
	if len(l.jobs) >= l.cfg.MaxJobs {
		return errQueueFull(&l.cfg)
	}
	job := &lineJob{id: j.ID, data: bytes.Clone(j.Data), put: now, deadline: now.Add(j.Lifetime)}
	l.jobs[j.ID] = job
	l.waiting = append(l.waiting, job)
	l.ids.rememberID(now, j.ID)
	return nil
}

// pullJob returns the next job; ok is false if there is none now.
func (l *jobLine) pullJob(now time.Time) (_ Delivery, ok bool) {
	l.advanceTime(now)
	for {
		from := &l.returned
		if len(*from) == 0 {
			from = &l.waiting
		}
		if len(*from) == 0 {
			return Delivery{}, false
		}
		j := (*from)[0]
		*from = slices.Delete(*from, 0, 1)
		if judgeOffer(now, j.deadline, uint64(j.attempts)+1, l.cfg.MaxAttempts) == offerDead {
			l.buryJob(now, j)
			continue
		}
		j.attempts++
		l.receipts++
		j.receipt = strconv.FormatUint(l.receipts, 10)
		d := Delivery{ID: j.id, Data: bytes.Clone(j.data), Attempt: j.attempts, Deadline: j.deadline, Receipt: j.receipt}
		l.held.grantLease(d, now.Add(l.cfg.Lease))
		return d, true
	}
}

// buryJob makes a dead letter of a job.
func (l *jobLine) buryJob(now time.Time, j *lineJob) {
	delete(l.jobs, j.id)
	if len(l.dead) == MaxDead {
		l.dead = slices.Delete(l.dead, 0, 1)
	}
	l.dead = append(l.dead, DeadJob{ID: j.id, Data: j.data, Attempts: j.attempts, At: now})
}

// extendJob implements Queue.Extend, ackJob Ack, and releaseJob Release.
func (l *jobLine) extendJob(now time.Time, d Delivery) error {
	if _, err := l.held.checkLease(now, d); err != nil {
		return err
	}
	l.held.extendLease(d, now.Add(l.cfg.Lease))
	return nil
}

func (l *jobLine) ackJob(now time.Time, d Delivery) error {
	if _, err := l.held.checkLease(now, d); err != nil {
		return err
	}
	l.held.endLease(d)
	delete(l.jobs, d.ID)
	return nil
}

func (l *jobLine) releaseJob(now time.Time, d Delivery) error {
	if _, err := l.held.checkLease(now, d); err != nil {
		return err
	}
	l.held.endLease(d)
	l.advanceTime(now) // jobs which came back before go first
	l.returned = append(l.returned, l.jobs[d.ID])
	return nil
}

func (l *jobLine) describeDepth(now time.Time) QueueDepth {
	l.advanceTime(now)
	return QueueDepth{Waiting: len(l.waiting), Started: len(l.jobs) - len(l.waiting), At: now}
}

func (l *jobLine) describeState(now time.Time) QueueState {
	s := QueueState{QueueDepth: l.describeDepth(now), Dead: len(l.dead)}
	for _, j := range l.jobs {
		if s.Oldest.IsZero() || j.put.Before(s.Oldest) {
			s.Oldest = j.put
		}
	}
	return s
}

func (l *jobLine) listDead(now time.Time) []DeadJob {
	l.advanceTime(now)
	list := slices.Clone(l.dead)
	for i := range list {
		list[i].Data = bytes.Clone(list[i].Data)
	}
	return list
}

func (l *jobLine) dropDead(id string) {
	l.dead = slices.DeleteFunc(l.dead, func(d DeadJob) bool { return d.ID == id })
}

// rememberedIDs is how many ids a queue in memory remembers for each job which it may have.
const rememberedIDs = 64

// idMemory remembers ids by the time at which they were put. Beyond its limit the oldest are forgotten.
type idMemory struct {
	limit int
	put   map[string]time.Time
	order []string // by that time
}

func (m *idMemory) knowsID(id string) bool {
	_, ok := m.put[id]
	return ok
}

// rememberID adds an id which is not known.
func (m *idMemory) rememberID(now time.Time, id string) {
	if m.put == nil {
		m.put = map[string]time.Time{}
	}
	if len(m.order) == m.limit {
		m.forgetOldest()
	}
	m.put[id] = now
	m.order = append(m.order, id)
}

// forgetBefore forgets the ids which were put at t or before.
func (m *idMemory) forgetBefore(t time.Time) {
	for len(m.order) > 0 && !m.put[m.order[0]].After(t) {
		m.forgetOldest()
	}
}

func (m *idMemory) forgetOldest() {
	delete(m.put, m.order[0])
	m.order[0] = ""
	m.order = m.order[1:]
}
