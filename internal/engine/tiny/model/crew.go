package model

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// crew spreads the tasks of one step over goroutines. They live as long as one
// call of do, which waits for them, so a crew at rest has none. The caller works
// too and is worker 0. A crew is for one caller at a time; once warm, do
// allocates nothing.
type crew struct {
	helpers []func() // bodies of the goroutines beside the caller
	wait    sync.WaitGroup

	// The step in progress. job and tasks are written before the helpers start.
	job   func(task, worker int)
	tasks int64
	next  atomic.Int64
	panic atomic.Pointer[panicked]
}

// panicked carries a panic from a helper to the caller of do.
type panicked struct {
	value any
	stack []byte
}

func newCrew(width int) *crew {
	c := &crew{}
	for worker := 1; worker < width; worker++ {
		c.helpers = append(c.helpers, func() {
			defer c.wait.Done()
			c.work(worker)
		})
	}
	return c
}

// do runs job once for each task in [0, tasks) and returns when all are done.
// Tasks must not depend on each other. A panic in a job is raised again here,
// after every goroutine has ended; of several, one.
func (c *crew) do(tasks int, job func(task, worker int)) {
	c.job, c.tasks = job, int64(tasks)
	c.next.Store(0)
	helpers := min(len(c.helpers), tasks-1)
	for i := range helpers {
		c.wait.Add(1)
		go c.helpers[i]()
	}
	c.work(0)
	c.wait.Wait()
	if p := c.panic.Swap(nil); p != nil {
		panic(fmt.Sprintf("%v\n\nin a worker:\n%s", p.value, p.stack))
	}
}

func (c *crew) work(worker int) {
	defer func() {
		if v := recover(); v != nil {
			c.panic.CompareAndSwap(nil, &panicked{v, debug.Stack()})
		}
	}()
	for {
		task := c.next.Add(1) - 1
		if task >= c.tasks {
			return
		}
		c.job(int(task), worker)
	}
}
