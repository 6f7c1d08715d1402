package model

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// workerPool spreads the tasks of one step over goroutines. They live as long as one call of runTasks, which
// waits for them, so an idle pool has none. The caller works too and is worker 0. A pool serves one caller at
// a time; once warm, runTasks allocates nothing.
type workerPool struct {
	helpers []func() // bodies of the goroutines other than the caller
	worth   int      // the least work that justifies waking one of them
	// yields, if not nil, says that others need the processors now: the caller then gives way between two tasks, and the
	// helpers leave it the rest.
	yields func() bool
	wait   sync.WaitGroup

	// The step in progress. job and tasks are set before the helpers start.
	job   func(task, worker int)
	tasks int64
	next  atomic.Int64
	panic atomic.Pointer[caughtPanic]
}

// caughtPanic carries a panic from a helper to the caller of runTasks.
type caughtPanic struct {
	value any
	stack []byte
}

// wakeWork is the usual worth of a helper, in multiply-adds of a product: some tens of microseconds.
const wakeWork = 1 << 18

// newWorkerPool returns a pool of width workers, including the caller.
func newWorkerPool(width int) *workerPool {
	c := &workerPool{worth: wakeWork}
	for worker := 1; worker < width; worker++ {
		c.helpers = append(c.helpers, func() {
			defer c.wait.Done()
			c.runWorker(worker)
		})
	}
	return c
}

// runTasks runs job once for each task in [0, tasks) and returns when all are done. work is their total cost:
// cheap steps stay in the calling goroutine. Tasks must not depend on each other. A panic in a job is raised
// again here, after every goroutine has ended; if several panic, only one is.
func (c *workerPool) runTasks(tasks, work int, job func(task, worker int)) {
	c.job, c.tasks = job, int64(tasks)
	c.next.Store(0)
	helpers := min(len(c.helpers), tasks-1, work/c.worth)
	if c.yields != nil && c.yields() {
		helpers = 0
	}
	for i := range helpers {
		c.wait.Add(1)
		go c.helpers[i]()
	}
	c.runWorker(0)
	c.wait.Wait()
	if p := c.panic.Swap(nil); p != nil {
		panic(fmt.Sprintf("%v\n\nin a worker:\n%s", p.value, p.stack))
	}
}

func (c *workerPool) runWorker(worker int) {
	defer func() {
		if v := recover(); v != nil {
			c.panic.CompareAndSwap(nil, &caughtPanic{v, debug.Stack()})
		}
	}()
	for {
		if c.yields != nil && c.yields() {
			if worker != 0 {
				return
			}
			runtime.Gosched()
		}
		task := c.next.Add(1) - 1
		if task >= c.tasks {
			return
		}
		c.job(int(task), worker)
	}
}
