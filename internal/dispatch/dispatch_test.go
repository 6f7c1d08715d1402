package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/obs"
)

var (
	errGone     = fault.New(fault.Unavailable, "gone")
	errLeaves   = fault.New(fault.Draining, "leaving")
	errFull     = fault.New(fault.Overloaded, "full")
	errNoWorker = fault.New(fault.Unavailable, "no worker is there")
	errDefect   = fault.New(fault.Internal, "a defect")
	errUnknown  = fault.New(fault.NotFound, "it serves another model")
)

// view is the registered workers with their epochs.
type view struct {
	lives map[kv.WorkerID]uint64
	over  chan struct{}
}

func (v *view) WorkerEpoch(id kv.WorkerID) (uint64, bool) {
	epoch, known := v.lives[id]
	return epoch, known
}

func (v *view) Superseded() <-chan struct{} { return v.over }

// job is a scripted task with its router and its workers. The lowest worker that is registered and not
// excluded is chosen.
type job struct {
	runner Dispatcher
	view   atomic.Pointer[view]
	began  time.Time
	// does is the workers' behavior in an attempt.
	does   func(ctx context.Context, j *job, worker kv.WorkerID) error
	tokens int
	hidden kv.WorkerID // only the router knows it
	log    []string    // what happened, and when
	cut    context.CancelFunc
}

func newJob(limits migrate.Config, workers int, does func(ctx context.Context, j *job, worker kv.WorkerID) error) *job {
	j := &job{does: does, began: time.Now()}
	lives := map[kv.WorkerID]uint64{}
	for i := range workers {
		lives[kv.WorkerID(i+1)] = 1
	}
	j.view.Store(&view{lives, make(chan struct{})})
	j.runner = Dispatcher{
		Limits:       limits,
		Router:       failures{job: j},
		Log:          obs.NewThrottle(slog.New(slog.DiscardHandler), time.Second),
		View:         func() WorkerView { return j.view.Load() },
		ContextError: func(ctx context.Context) error { return ctx.Err() },
		Moves:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moves"}, []string{"kind"}),
		Waiting:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "waiting"}),
	}
	return j
}

// run makes attempts from a number on.
func (j *job) run(ctx context.Context, first uint32) error {
	return j.runner.runTask(ctx, j, "r", first, j.runner.Limits.Pinned)
}

// failures is a router that notes which calls failed.
type failures struct {
	Router
	job *job
}

func (f failures) ReportFailure(w kv.Worker, err error) {
	f.job.note("failed %d %v", w.ID, fault.CodeOf(err))
}

// set changes a worker's epoch; 0 removes it.
func (j *job) set(id kv.WorkerID, epoch uint64) {
	old := j.view.Load()
	lives := map[kv.WorkerID]uint64{id: epoch}
	for other, e := range old.lives {
		if other != id {
			lives[other] = e
		}
	}
	if epoch == 0 {
		delete(lives, id)
	}
	j.view.Store(&view{lives, make(chan struct{})})
	close(old.over)
}

func (j *job) note(format string, args ...any) {
	j.log = append(j.log, fmt.Sprintf("%v ", time.Since(j.began))+fmt.Sprintf(format, args...))
}

func (j *job) ChooseWorker(_ context.Context, _ uint32, exclude []kv.WorkerID) (route.Decision, error) {
	var free []kv.WorkerID
	for id := range j.view.Load().lives {
		if !slices.Contains(exclude, id) {
			free = append(free, id)
		}
	}
	if j.hidden > 0 && !slices.Contains(exclude, j.hidden) {
		free = append(free, j.hidden)
	}
	if len(free) == 0 {
		return route.Decision{}, errNoWorker
	}
	return route.Decision{Worker: kv.Worker{ID: slices.Min(free)}}, nil
}

func (j *job) RunAttempt(ctx context.Context, attempt uint32, d route.Decision) error {
	j.note("attempt %d at %d", attempt, d.Worker.ID)
	return j.does(ctx, j, d.Worker.ID)
}

func (j *job) TokensDelivered() int { return j.tokens }
func (j *job) MoveKind() string     { return MoveKind(j.tokens) }

// value is the value of a counter or a gauge.
func value(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	all, err := reg.Gather()
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	m := all[0].GetMetric()[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// always fails each attempt.
func always(err error) func(context.Context, *job, kv.WorkerID) error {
	return func(context.Context, *job, kv.WorkerID) error { return err }
}

// TestRun: the events of a task, step by step.
func TestRun(t *testing.T) {
	usual := migrate.Config{MaxFailures: 1, MaxWait: 10 * time.Second}
	const (
		lost   = "no worker could finish the request (1 tried): send it again"
		pinned = "worker 1, which the request is pinned to, could not finish it, and a pinned request does not move to another: send it again, or leave the choice to the router"
	)
	dies := func(_ context.Context, j *job, id kv.WorkerID) error {
		if j.tokens++; id == 1 && j.view.Load().lives[1] == 1 {
			j.set(1, 0)
			return errGone
		}
		return nil
	}
	for name, tt := range map[string]struct {
		limits  migrate.Config
		workers int
		does    func(context.Context, *job, kv.WorkerID) error
		later   func(*job) // happens after 3 s
		log     string
		err     string
	}{
		"completes":        {usual, 2, always(nil), nil, "0s attempt 7 at 1", "<nil>"},
		"moves":            {usual, 2, dies, nil, "0s attempt 7 at 1; 0s failed 1 unavailable; 0s attempt 8 at 2", "<nil>"},
		"waits for one":    {usual, 1, dies, func(j *job) { j.set(2, 1) }, "0s attempt 7 at 1; 0s failed 1 unavailable; 3s attempt 8 at 2", "<nil>"},
		"or the next life": {usual, 1, dies, func(j *job) { j.set(1, 2) }, "0s attempt 7 at 1; 0s failed 1 unavailable; 3s attempt 8 at 1", "<nil>"},
		"leaves do not count": {migrate.Config{}, 2, func(_ context.Context, _ *job, id kv.WorkerID) error {
			if id == 1 {
				return errLeaves
			}
			return nil
		}, nil, "0s attempt 7 at 1; 0s failed 1 draining; 0s attempt 8 at 2", "<nil>"},
		"misrouted": {usual, 1, always(errUnknown), func(j *job) { j.set(1, 0) }, "0s attempt 7 at 1; 0s failed 1 unavailable", lost},
		"a defect":  {usual, 2, always(errDefect), nil, "0s attempt 7 at 1", "a defect"},
		"no worker": {usual, 0, nil, nil, "", "no worker is there"},
		"first one": {migrate.Config{FirstWait: 4 * time.Second}, 0, always(nil), func(j *job) { j.set(5, 1) }, "3s attempt 7 at 5", "<nil>"},
		"full":      {usual, 1, always(errFull), nil, "0s attempt 7 at 1; 0s failed 1 overloaded", lost},
		"full behind tokens": {usual, 1, func(_ context.Context, j *job, id kv.WorkerID) error {
			if j.tokens++; id == 1 {
				j.set(1, 0)
				return errFull
			}
			return nil
		}, func(j *job) { j.set(2, 1) }, "0s attempt 7 at 1; 0s failed 1 overloaded; 3s attempt 8 at 2", "<nil>"},
		"pinned":   {migrate.Config{MaxFailures: 9, Pinned: true}, 2, dies, nil, "0s attempt 7 at 1; 0s failed 1 unavailable", pinned},
		"gives up": {migrate.Config{}, 2, always(errGone), nil, "0s attempt 7 at 1; 0s failed 1 unavailable", lost},
		"canceled": {usual, 2, func(_ context.Context, j *job, _ kv.WorkerID) error {
			j.cut()
			return errGone
		}, nil, "0s attempt 7 at 1", "context canceled"},
		"canceled while it waits": {usual, 1, dies, func(j *job) { j.cut() }, "0s attempt 7 at 1; 0s failed 1 unavailable", "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(tt.limits, tt.workers, tt.does)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				j.cut = cancel
				if name == "misrouted" {
					j.runner.Limits.MaxWait = 0
				}
				over := make(chan error, 1)
				go func() { over <- j.run(ctx, 7) }()
				synctest.Wait()
				if tt.later != nil {
					time.Sleep(3 * time.Second) // virtual time (synctest): the wait of a request without a worker
					tt.later(j)
				}
				err := <-over
				if d := time.Since(j.began); d > 3*time.Second {
					t.Errorf("it is over after %v", d)
				}
				if got := strings.Join(j.log, "; "); got != tt.log || fmt.Sprint(err) != tt.err {
					t.Errorf("%s, error %v\nwant %s, error %s", got, err, tt.log, tt.err)
				}
				if n := value(t, j.runner.Waiting); n != 0 {
					t.Errorf("%v wait in the end", n)
				}
			})
		})
	}
}

// TestLost: the error of a task that was given up has the last one's cause and code, except that a draining
// worker does not mean that this process drains; a request which no worker can serve says why.
func TestLost(t *testing.T) {
	soon := &fault.Error{Code: fault.Unavailable, Message: "later", RetryAfter: time.Minute}
	unfit := fault.New(fault.Ineligible, "the prompt is too long")
	for _, tt := range []struct {
		ends error
		code fault.Code
		wait time.Duration
		says string
	}{
		{errGone, fault.Unavailable, 0, "no worker could finish the request (2 tried): send it again"},
		{soon, fault.Unavailable, time.Minute, "no worker could finish the request (2 tried): send it again"},
		{errLeaves, fault.Unavailable, 0, "no worker could finish the request (3 tried): send it again"},
		{errFull, fault.Overloaded, time.Second, "no worker could finish the request (2 tried): send it again"},
		{unfit, fault.Ineligible, 0, "the prompt is too long"},
	} {
		synctest.Test(t, func(t *testing.T) {
			j := newJob(migrate.Config{MaxFailures: 1}, 3, always(tt.ends))
			var f *fault.Error
			err := j.run(t.Context(), 1)
			if !errors.Is(err, tt.ends) || !errors.As(err, &f) || f.Code != tt.code || f.RetryAfter != tt.wait || f.Message != tt.says {
				t.Errorf("%v: %v: %#v", tt.ends, err, f)
			}
		})
	}
}

// TestCounts: the metrics while a task waits and after it has moved.
func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(migrate.Config{MaxFailures: 3, MaxWait: time.Minute}, 1, func(_ context.Context, j *job, id kv.WorkerID) error {
			j.set(id, 0)
			if j.tokens += 4; j.tokens == 4 {
				return errGone
			}
			return nil
		})
		over := make(chan error, 1)
		go func() { over <- j.run(t.Context(), 1) }()
		synctest.Wait()
		time.Sleep(time.Second) // virtual time (synctest): the request waits, then a worker appears
		if n := value(t, j.runner.Waiting); n != 1 {
			t.Errorf("%v wait", n)
		}
		j.set(2, 1)
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		if n := value(t, j.runner.Moves.WithLabelValues(MoveOngoingRequest)); n != 1 || value(t, j.runner.Waiting) != 0 {
			t.Errorf("%v moves", n)
		}
		if n := value(t, j.runner.Moves.WithLabelValues(MoveNewRequest)); n != 0 {
			t.Errorf("%v moves of a request without tokens", n)
		}
	})
}

// TestRouterKnowsFirst: a worker that registers only while it is tried has failed in that epoch.
func TestRouterKnowsFirst(t *testing.T) {
	j := newJob(migrate.Config{MaxFailures: 5}, 0, func(_ context.Context, j *job, id kv.WorkerID) error {
		j.set(id, 3)
		return errGone
	})
	j.hidden = 9
	if err := j.run(t.Context(), 1); fault.CodeOf(err) != fault.Unavailable || len(j.log) != 2 {
		t.Errorf("%v: %q", err, j.log)
	}
}
