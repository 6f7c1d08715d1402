package planner

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/fixturetest"
)

// onAllThreads calls do in n goroutines at once, each of which is locked to a thread: the idle ones, as long as there are some.
func onAllThreads(n int, do func()) (ended *sync.WaitGroup) {
	var running sync.WaitGroup
	ended = &sync.WaitGroup{}
	running.Add(n)
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			running.Done()
			running.Wait() // all of them have a thread of their own
			do()
		})
	}
	running.Wait()
	return ended
}

// holdMainThread keeps goroutines from the main thread, which does not end, until the returned function is called.
func holdMainThread() (release func()) {
	released := make(chan struct{})
	held := onAllThreads(64, func() {
		if syscall.Gettid() == os.Getpid() {
			<-released
		}
		runtime.UnlockOSThread()
	})
	return func() {
		close(released)
		held.Wait()
	}
}

// endIdleThreads ends the threads which no goroutine is locked to, more goroutines than there are threads: a thread ends with a
// goroutine which stays locked to it.
func endIdleThreads(t *testing.T) {
	t.Helper()
	threads := func() []string {
		all, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	var mu sync.Mutex
	var used []string
	ended := onAllThreads(2*len(threads())+8, func() {
		if syscall.Gettid() == os.Getpid() {
			runtime.UnlockOSThread()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		used = append(used, fmt.Sprintf("/proc/self/task/%d", syscall.Gettid()))
	})
	ended.Wait()
	if err := backoff.Poll(fixturetest.PatientContext(t), 5*time.Millisecond, func() bool {
		return !slices.ContainsFunc(threads(), func(thread string) bool { return slices.Contains(used, thread) })
	}); err != nil {
		t.Errorf("threads %v of %v: %v", threads(), used, err)
	}
}

// TestChildOutlivesThread: the kernel ends a child when the thread which started it ends. No other goroutine gets that
// thread, which could end with it: all threads which may end do so, and the process lives on.
func TestChildOutlivesThread(t *testing.T) {
	defer holdMainThread()()
	t.Setenv(childVariable, "1")
	p, err := launchCommand(os.Args[0], nil, t.TempDir(), fixturetest.TimeLeft(t))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(p.Output())
	if !lines.Scan() {
		t.Error("the process ended before it was ready")
	}
	endIdleThreads(t)
	if err := p.(*launchedCommand).cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if !lines.Scan() || lines.Text() != "interrupted" {
		t.Error("the process ended with the thread")
	}
	_ = p.Drain() // it may have ended
	for lines.Scan() {
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}
