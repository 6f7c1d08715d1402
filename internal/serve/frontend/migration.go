package frontend

import (
	"cmp"
	"context"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/backoff"
)

// The pace of further attempts. The first comes at once: most failures are one
// worker's, and every stream of it waits. Those that follow wait longer and
// longer, each a little differently.
const (
	leastPace = 20 * time.Millisecond
	mostPace  = time.Second
)

// How often the router is asked while it has no worker. What can be seen coming, a
// change of the set of workers, ends the wait at once.
const (
	leastPoll = 10 * time.Millisecond
	mostPoll  = 500 * time.Millisecond
)

// reprieve is how long after its failure a worker may be tried again when there is
// no other. A router that has found it not to answer does not offer it.
const reprieve = 500 * time.Millisecond

// migration is the account of one task on its way from worker to worker. It
// belongs to one goroutine.
//
// Nothing but these bounds limits further attempts; there is no budget that
// requests share. When half of the workers die at once each of their streams needs
// one further attempt, and a budget would make of the ones it refuses the failures
// that migration is there to hide. A storm is held down by what each request may
// do: MigrationLimit failures, spaced; waiting that calls nobody; and no second
// call to a worker that failed while there is another.
type migration struct {
	f        *Frontend
	task     task
	failures []failure // by worker, the last of each
	last     error     // of the last attempt; nil before it failed
	tried    uint32    // attempts that failed
	counted  int       // those of them that count against the limit
	pace     backoff.Backoff
	epoch    uint64 // of the worker chosen last, if known
	known    bool
	// lost is when the task lost its worker, out how many tokens were out then:
	// it has been without progress since.
	lost time.Time
	out  int
	// bound says that the task has had a worker that failed it or left, so that
	// it is worth waiting for the next.
	bound bool
}

// failure is a worker's last one.
type failure struct {
	worker kv.WorkerID
	epoch  uint64 // of the life that it failed in
	code   fault.Code
	at     time.Time
}

func newMigration(f *Frontend, t task) *migration {
	return &migration{f: f, task: t, pace: backoff.Backoff{Least: leastPace, Most: mostPace}}
}

// choose asks the router for a worker. A task that never had one is refused as the
// router says. One that lost its worker waits for the next, within MigrationWait:
// its client has been promised an answer.
func (m *migration) choose(ctx context.Context, attempt uint32) (route.Decision, error) {
	poll := backoff.Backoff{Least: leastPoll, Most: mostPoll}
	waiting := false
	defer func() {
		if waiting {
			m.f.metrics.waiting.Dec()
		}
	}()
	for {
		snap := m.f.catalog.snap.Load()
		failed := m.failed(snap)
		d, err := m.task.choose(ctx, attempt, failed)
		if barred := m.barred(failed); err != nil && len(barred) < len(failed) && ctx.Err() == nil {
			d, err = m.task.choose(ctx, attempt, barred)
		}
		switch {
		case err == nil:
			m.epoch, m.known = snap.epoch(d.Worker.ID)
			return d, nil
		case ctx.Err() != nil:
			return d, ended(ctx)
		case m.last == nil:
			return d, err
		}
		left := m.patience()
		if code := fault.Of(err); left <= 0 || !refusal(code) && code != fault.Unavailable {
			return d, exhausted(m.last, m.tried)
		}
		if !waiting {
			waiting = true
			m.f.metrics.waiting.Inc()
		}
		wait := time.NewTimer(min(poll.Next(), left))
		select {
		case <-wait.C:
		case <-snap.superseded:
			poll.Reset() // the router may hear of it a moment later
		case <-ctx.Done():
		}
		wait.Stop()
	}
}

// patience is how long the task may still go without a worker.
func (m *migration) patience() time.Duration {
	if !m.bound {
		return 0
	}
	return m.f.cfg.MigrationWait - time.Since(m.lost)
}

// failed returns the workers that failed this task in the life that they are in
// now.
func (m *migration) failed(snap *snapshot) []kv.WorkerID {
	var ids []kv.WorkerID
	for _, f := range m.failures {
		if epoch, known := snap.epoch(f.worker); !known || epoch == f.epoch {
			ids = append(ids, f.worker)
		}
	}
	return ids
}

// barred returns those of the failed that must not be tried even if there is
// no other: they have no reprieve, or leave.
func (m *migration) barred(failed []kv.WorkerID) []kv.WorkerID {
	var ids []kv.WorkerID
	for _, f := range m.failures {
		if slices.Contains(failed, f.worker) && (f.code == fault.Draining || time.Since(f.at) < reprieve) {
			ids = append(ids, f.worker)
		}
	}
	return ids
}

// again notes the failure of an attempt and returns when it is time for the next;
// an error if there is none. Moves that a worker planned do not count. Nor do
// refusals for lack of room once the task is bound: they are waited out.
func (m *migration) again(ctx context.Context, d route.Decision, err error) error {
	code := fault.Of(err)
	m.note(d.Worker.ID, code)
	m.last = err
	m.tried++
	if m.tried == maxAttempts {
		return exhausted(err, m.tried)
	}
	switch {
	case code == fault.Draining:
		return nil
	case refusal(code) && m.patience() > 0:
		return nil
	}
	if m.counted++; m.counted > m.f.cfg.MigrationLimit {
		return exhausted(err, m.tried)
	}
	if m.counted > 1 && m.pace.Wait(ctx) != nil {
		return ended(ctx)
	}
	return nil
}

// note keeps the books of a failure.
func (m *migration) note(id kv.WorkerID, code fault.Code) {
	now := time.Now()
	if !m.known { // the router heard of it first
		m.epoch, _ = m.f.catalog.snap.Load().epoch(id)
	}
	m.failures = slices.DeleteFunc(m.failures, func(f failure) bool { return f.worker == id })
	m.failures = append(m.failures, failure{worker: id, epoch: m.epoch, code: code, at: now})
	if out := m.task.tokens(); m.lost.IsZero() || out > m.out {
		m.lost, m.out = now, out
	}
	m.bound = m.bound || m.out > 0 || !refusal(code)
}

// refusal reports whether a worker, or the router for all of them, had no room:
// nothing is wrong with it.
func refusal(code fault.Code) bool { return code == fault.Overloaded || code == fault.Limited }

// epoch returns the life that a worker is in; known is false for one that is not
// registered.
func (s *snapshot) epoch(id kv.WorkerID) (epoch uint64, known bool) {
	i, ok := slices.BinarySearchFunc(s.instances, id, func(in instance, id kv.WorkerID) int { return cmp.Compare(in.ID, id) })
	if !ok {
		return 0, false
	}
	return s.instances[i].Epoch, true
}
