package model

import (
	"strings"
	"sync/atomic"
	"testing"
)

func TestCrewRunsEachTaskOnce(t *testing.T) {
	for _, width := range []int{1, 2, 5} {
		c := newWorkerPool(width)
		for tasks := range 40 {
			ran := make([]atomic.Int32, tasks)
			busy := make([]atomic.Int32, width)
			c.runTasks(tasks, width*wakeWork, func(task, worker int) {
				if busy[worker].Add(1) != 1 {
					t.Errorf("worker %d does two tasks at once", worker)
				}
				ran[task].Add(1)
				busy[worker].Add(-1)
			})
			for i := range ran {
				if n := ran[i].Load(); n != 1 {
					t.Fatalf("width %d: task %d of %d ran %d times", width, i, tasks, n)
				}
			}
		}
	}
}

// TestCrewPanic checks that a panic reaches the caller wherever it happens, after all goroutines have ended
// (goleak), and leaves the pool usable.
func TestCrewPanic(t *testing.T) {
	c := newWorkerPool(4)
	for bad := range 10 {
		func() {
			defer func() {
				text, _ := recover().(string)
				if !strings.Contains(text, "broken task") || !strings.Contains(text, "workerpool_test.go") {
					t.Fatalf("task %d: got %q, want the panic's value and where it was", bad, text)
				}
			}()
			c.runTasks(10, 4*wakeWork, func(task, _ int) {
				if task == bad {
					panic("broken task")
				}
			})
		}()
		var ran atomic.Int32
		c.runTasks(10, 4*wakeWork, func(int, int) { ran.Add(1) })
		if ran.Load() != 10 {
			t.Fatalf("after a panic %d of 10 tasks ran", ran.Load())
		}
	}
}

// TestCrewStaysSmall checks that little work wakes no helper.
func TestCrewStaysSmall(t *testing.T) {
	c := newWorkerPool(4)
	c.runTasks(100, 2*wakeWork-1, func(_, worker int) {
		if worker > 1 {
			t.Errorf("worker %d was woken", worker)
		}
	})
	c.runTasks(100, wakeWork-1, func(_, worker int) {
		if worker > 0 {
			t.Errorf("worker %d was woken", worker)
		}
	})
}
