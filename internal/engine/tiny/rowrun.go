package tiny

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"penstock/core/embcache"
	"penstock/core/fault"
)

// rowRuns are the computations of rows in progress. Requests which want the same rows at once share one.
type rowRuns struct {
	store *rowStore
	mu    struct {
		sync.Mutex
		byKey map[runKey]*rowRun
	}
}

func newRowRuns(store *rowStore) *rowRuns {
	f := &rowRuns{store: store}
	f.mu.byKey = map[runKey]*rowRun{}
	return f
}

// runKey names rows in progress: the number of pads decides whether an object is refused.
type runKey struct {
	embcache.RowKey
	pads int
}

// rowRun is a computation of rows.
type rowRun struct {
	of     *rowRuns
	key    runKey
	cancel context.CancelFunc
	done   chan struct{} // closed at its end
	// users counts the requests which wait for the rows or hold them, under the lock of rowRuns. Without any the
	// run is cancelled, or its rows are given back.
	users int
	ended bool

	// Set before done is closed.
	rows storedRows
	err  error
}

// errNotCached says that rows are neither there nor being computed.
var errNotCached = fault.New(fault.NotFound, "encode: no rows of the object are here: ask again with what it shows")

// has reports whether rows are being computed.
func (f *rowRuns) has(key runKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.byKey[key] != nil
}

// share returns the rows that a run for key computes, and whether it is the run of this call. A run goes on while
// a request waits for it, even if the call which began it has left. Without compute, share only joins a run, and fails
// with errNotCached if there is none.
func (f *rowRuns) share(ctx context.Context, key runKey, compute func(context.Context) (storedRows, error)) (rows storedRows, led bool, err error) {
	run, life, led := f.join(ctx, key, compute != nil)
	switch {
	case run == nil:
		return storedRows{}, false, errNotCached
	case led:
		go run.compute(life, compute) // its users wait for it
	}
	select {
	case <-run.done:
	case <-ctx.Done():
		if run.leave() {
			<-run.done // no other request waits for its end
		}
		return storedRows{}, led, ctx.Err()
	}
	if run.err != nil {
		run.leave()
		return storedRows{}, led, run.err
	}
	return run.share(), led, nil
}

// join returns the run for a key with one more user. If there is none and it may begin one, the caller leads the new
// run, and has to end it by finish; life ends when the run has no user any more. Otherwise the run is nil.
func (f *rowRuns) join(ctx context.Context, key runKey, begin bool) (run *rowRun, life context.Context, leads bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	run = f.mu.byKey[key]
	if run == nil && begin {
		run, leads = &rowRun{of: f, key: key, done: make(chan struct{})}, true
		life, run.cancel = context.WithCancel(context.WithoutCancel(ctx))
		f.mu.byKey[key] = run
	}
	if run != nil {
		run.users++
	}
	return run, life, leads
}

// share returns the rows of a run which has ended well, for one of its users.
func (r *rowRun) share() storedRows {
	return storedRows{rows: r.rows.rows, grid: r.rows.grid, raised: r.rows.raised, shared: r}
}

// compute computes the rows and ends the run.
func (r *rowRun) compute(ctx context.Context, compute func(context.Context) (storedRows, error)) {
	var rows storedRows
	err := guardPanic(func() (err error) {
		rows, err = compute(ctx)
		return err
	})
	r.finish(rows, err)
}

// finish ends the run.
func (r *rowRun) finish(rows storedRows, err error) {
	r.rows, r.err = rows, err
	r.cancel()
	r.of.mu.Lock()
	r.ended = true
	r.forgetLocked()
	abandoned := r.users == 0
	r.of.mu.Unlock()
	if abandoned {
		r.of.store.releaseRows(&r.rows)
	}
	close(r.done)
}

// forgetLocked makes later requests start another run.
func (r *rowRun) forgetLocked() {
	if r.of.mu.byKey[r.key] == r {
		delete(r.of.mu.byKey, r.key)
	}
}

// leave ends the use of a run by one request, and reports whether it cancelled the run. The last user gives its rows
// back.
func (r *rowRun) leave() (cancelled bool) {
	r.of.mu.Lock()
	r.users--
	last, ended := r.users == 0, r.ended
	if last && !ended {
		r.forgetLocked()
	}
	r.of.mu.Unlock()
	switch {
	case !last:
		return false
	case ended:
		r.of.store.releaseRows(&r.rows)
		return false
	}
	r.cancel()
	return true
}

// guardPanic calls f, and returns an error if it panics: a goroutine of this package must not end the process for a
// defect in one request.
func guardPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
