package bustest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

// fencedReceiver is a receiver of results which refuses late attempts, as the users of a queue must have one.
type fencedReceiver struct {
	mu struct {
		sync.Mutex
		attempts map[string]map[int]string // by job and attempt: the receipt
		results  map[string]int            // by job: the attempt whose result counts
		problems []string
	}
}

func newFencedReceiver() *fencedReceiver {
	r := &fencedReceiver{}
	r.mu.attempts, r.mu.results = map[string]map[int]string{}, map[string]int{}
	return r
}

// beginAttempt records a delivery. It reports whether it is the first copy of it.
func (r *fencedReceiver) beginAttempt(d bus.Delivery) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if string(d.Data) != "job "+d.ID || d.Attempt < 1 {
		r.mu.problems = append(r.mu.problems, fmt.Sprintf("delivery %+v", d))
	}
	of := r.mu.attempts[d.ID]
	if of == nil {
		of = map[int]string{}
		r.mu.attempts[d.ID] = of
	}
	receipt, ok := of[d.Attempt]
	if ok && receipt != d.Receipt {
		r.mu.problems = append(r.mu.problems, fmt.Sprintf("two deliveries are attempt %d of %s: %s, %s", d.Attempt, d.ID, receipt, d.Receipt))
	}
	of[d.Attempt] = d.Receipt
	return !ok
}

// acceptResult takes the result of an attempt unless a later one has begun.
func (r *fencedReceiver) acceptResult(d bus.Delivery) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for attempt := range r.mu.attempts[d.ID] {
		if attempt > d.Attempt {
			return false
		}
	}
	r.mu.results[d.ID] = d.Attempt
	return true
}

func (r *fencedReceiver) countResults() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.results)
}

// testQueueFaults: through lost calls, lost deliveries, lost acknowledgements, duplicates, delays and a lost
// connection every job gets its result, and nothing is left.
func testQueueFaults(t *testing.T, qs bus.Queues) {
	const jobs, workers = 40, 4
	inner := openQueue(t, qs, bus.QueueConfig{Lease: 500 * time.Millisecond, MaxAttempts: 1 << 20})
	faults := QueueFaults{Fail: 0.2, Duplicate: 0.2, Delay: 2 * time.Millisecond}
	q := NewFaultyQueue(inner, 1, faults)
	receiver := newFencedReceiver()
	patient := fixturetest.PatientContext(t)
	ctx, cancel := context.WithCancel(patient)
	defer cancel()

	progress := make(chan int, 1<<20)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				d, err := q.Pull(ctx)
				if err != nil {
					checkFault(t, ctx, "pull", err, fault.Unavailable)
					continue
				}
				if receiver.beginAttempt(d) {
					workOnJob(t, ctx, q, receiver, d)
				}
				progress <- receiver.countResults()
			}
		})
	}
	for i := range jobs {
		job := bus.Job{ID: fmt.Sprint(i), Data: fmt.Appendf(nil, "job %d", i), Lifetime: 10 * time.Minute}
		for err := q.Put(ctx, job); err != nil; err = q.Put(ctx, job) {
			checkFault(t, ctx, "put", err, fault.Unavailable)
			if ctx.Err() != nil {
				t.Fatal("jobs cannot be put")
			}
		}
		if i == jobs/2 {
			q.Set(QueueFaults{Cut: true})
			if err := q.Put(ctx, job); fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("put without a connection: %v", err)
			}
			q.Set(faults)
		}
	}
	for n := 0; n < jobs; {
		select {
		case n = <-progress:
		case <-patient.Done():
			t.Fatalf("%d jobs of %d have results", receiver.countResults(), jobs)
		}
	}
	// Jobs whose acknowledgement was lost are still there, until an attempt is acknowledged.
	q.Set(QueueFaults{})
	for {
		depth, err := inner.DescribeDepth(patient)
		if err != nil {
			t.Fatal(err)
		}
		if depth.Waiting+depth.Started == 0 {
			break
		}
		select {
		case <-progress:
		case <-patient.Done():
			t.Fatalf("%d jobs wait and %d are started", depth.Waiting, depth.Started)
		}
	}
	cancel()
	all.Wait()
	checkDead(t, inner)
	for _, p := range receiver.mu.problems {
		t.Error(p)
	}
}

// workOnJob is a worker which has a job: a heartbeat, the result, the acknowledgement.
func workOnJob(t *testing.T, ctx context.Context, q bus.Queue, receiver *fencedReceiver, d bus.Delivery) {
	if err := q.Extend(ctx, d); err != nil {
		checkFault(t, ctx, "extend", err, fault.Unavailable, fault.Conflict)
		if fault.CodeOf(err) == fault.Conflict {
			return
		}
	}
	if !receiver.acceptResult(d) {
		return
	}
	for {
		err := q.Ack(ctx, d)
		if err == nil {
			return
		}
		checkFault(t, ctx, "ack", err, fault.Unavailable, fault.Conflict)
		if fault.CodeOf(err) == fault.Conflict || ctx.Err() != nil {
			return
		}
	}
}

// checkFault reports an error which has none of the codes, and not because ctx has ended.
func checkFault(t *testing.T, ctx context.Context, what string, err error, codes ...fault.Code) {
	if ctx.Err() != nil {
		return
	}
	for _, code := range codes {
		if fault.CodeOf(err) == code {
			return
		}
	}
	t.Errorf("%s: %v", what, err)
}
