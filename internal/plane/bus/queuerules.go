package bus

import (
	"cmp"
	"slices"
	"time"

	"penstock/core/fault"
)

// offerVerdict says what becomes of a job which a queue's store offers to a worker.
type offerVerdict uint8

const (
	offerDeliver offerVerdict = iota // the worker gets it
	offerExpired                     // its deadline has passed: it is not delivered any more
	offerDead                        // it has had all its attempts: it becomes a dead letter
)

// judgeOffer decides that. attempt is the number of the delivery, from 1.
func judgeOffer(now, deadline time.Time, attempt uint64, maxAttempts int) offerVerdict {
	switch {
	case !now.Before(deadline):
		return offerExpired
	case attempt > uint64(maxAttempts):
		return offerDead
	}
	return offerDeliver
}

// jobLease is the right of a worker to a job.
type jobLease struct {
	id     string // of the job
	number uint64 // of the lease
	until  time.Time
}

// leaseTable has the leases of deliveries, by receipt. It is not safe for concurrent use.
type leaseTable struct {
	leases map[string]*jobLease
	last   uint64 // number of the newest lease
}

// grantLease adds the lease of a new delivery.
func (t *leaseTable) grantLease(d Delivery, until time.Time) {
	if t.leases == nil {
		t.leases = map[string]*jobLease{}
	}
	t.last++
	t.leases[d.Receipt] = &jobLease{d.ID, t.last, until}
}

// checkLease returns until when the worker of a delivery has its job. Deadline means that the job's deadline
// has passed, Conflict that the lease has, or that the delivery was acknowledged or released.
func (t *leaseTable) checkLease(now time.Time, d Delivery) (time.Time, error) {
	l := t.leases[d.Receipt]
	switch {
	case !now.Before(d.Deadline):
		return time.Time{}, fault.New(fault.Deadline, "job %.100q: its deadline has passed", d.ID)
	case l == nil || !now.Before(l.until):
		return time.Time{}, fault.New(fault.Conflict, "job %.100q: attempt %d has it no longer", d.ID, d.Attempt)
	}
	return l.until, nil
}

// extendLease begins a lease again. It has no effect on one which has ended.
func (t *leaseTable) extendLease(d Delivery, until time.Time) {
	if l := t.leases[d.Receipt]; l != nil {
		l.until = until
	}
}

// endLease removes the lease of a delivery.
func (t *leaseTable) endLease(d Delivery) { delete(t.leases, d.Receipt) }

// removeLapsed removes the leases which have passed and returns the ids of their jobs, in the order in which
// they passed.
func (t *leaseTable) removeLapsed(now time.Time) []string {
	var lapsed []*jobLease
	for receipt, l := range t.leases {
		if !now.Before(l.until) {
			lapsed = append(lapsed, l)
			delete(t.leases, receipt)
		}
	}
	slices.SortFunc(lapsed, func(a, b *jobLease) int {
		return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.number, b.number))
	})
	ids := make([]string, len(lapsed))
	for i, l := range lapsed {
		ids[i] = l.id
	}
	return ids
}

// nextLapse returns when the next lease passes; ok is false if there is none.
func (t *leaseTable) nextLapse() (at time.Time, ok bool) {
	for _, l := range t.leases {
		if !ok || l.until.Before(at) {
			at, ok = l.until, true
		}
	}
	return at, ok
}
