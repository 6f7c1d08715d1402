package planner

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/fixturetest"
)

// TestChildOutlivesThread: the kernel ends a child when the thread which started it ends. A process lives on when a thread
// ends on which the planner ran.
func TestChildOutlivesThread(t *testing.T) {
	t.Setenv(childVariable, "1")
	dir := t.TempDir()
	launched := make(chan LaunchedProcess, 1)
	threads := make(chan int, 1)
	var start func()
	start = func() { // its thread ends with it, because it stays locked
		runtime.LockOSThread()
		if syscall.Gettid() == os.Getpid() { // the main thread does not end: another one is there while this one waits
			defer runtime.UnlockOSThread()
			next := make(chan struct{})
			go func() {
				defer close(next)
				start()
			}()
			<-next
			return
		}
		p, err := LaunchProcess(os.Args[0], nil, dir)
		if err != nil {
			t.Error(err)
		}
		threads <- syscall.Gettid()
		launched <- p
	}
	go start()
	thread, p := <-threads, <-launched
	if t.Failed() {
		return
	}
	lines := bufio.NewScanner(p.Output())
	if !lines.Scan() {
		t.Error("the process ended before it was ready")
	}
	if err := backoff.Poll(fixturetest.PatientContext(t), 5*time.Millisecond, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread))
		return os.IsNotExist(err)
	}); err != nil {
		t.Errorf("thread %d: %v", thread, err)
	}
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
