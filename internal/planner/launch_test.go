package planner

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/fixturetest"
)

// childVariable makes the test program a worker's process.
const childVariable = "PLANNER_TEST_CHILD"

// runChild is a worker: it says that it is ready, and ends when it is asked to drain. It says it again after an interrupt.
func runChild() {
	asked := make(chan os.Signal, 2)
	signal.Notify(asked, syscall.SIGTERM, os.Interrupt)
	fmt.Fprintln(os.Stderr, "log of", strings.Join(os.Args[1:], " "))
	fmt.Println(`{"role":"worker","worker_id":77}`)
	for s := range asked {
		if s == syscall.SIGTERM {
			return
		}
		fmt.Println("interrupted")
	}
}

// TestLaunchProcess: a real process gets its arguments, its log is a file of its own, and SIGTERM drains it.
func TestLaunchProcess(t *testing.T) {
	t.Setenv(childVariable, "1")
	dir := t.TempDir()
	p, err := launchCommand(os.Args[0], []string{"worker", "--role=decode"}, dir, fixturetest.TimeLeft(t))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(p.Output())
	if !lines.Scan() || lines.Text() != `{"role":"worker","worker_id":77}` {
		t.Errorf("it says %q", lines.Text())
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	if log, err := os.ReadFile(filepath.Join(dir, workerLog)); err != nil || string(log) != "log of worker --role=decode\n" {
		t.Errorf("log %q, %v", log, err)
	}
}

// TestLogHeldOpen: the end of a process is found although another one, which it has left, holds its log open.
func TestLogHeldOpen(t *testing.T) {
	p, err := launchCommand("/bin/sh", []string{"-c", "sleep 1000 >/dev/null & echo $!"}, t.TempDir(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	if _, err := fmt.Fscan(p.Output(), &left); err != nil {
		t.Error(err)
	}
	if err := p.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("error %v", err)
	}
	if err := syscall.Kill(left, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestBoundedLog: a log which is full begins anew, and the one before stays.
func TestBoundedLog(t *testing.T) {
	dir := t.TempDir()
	l, err := openBoundedLog(filepath.Join(dir, workerLog))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, maxLog/4)
	for range 13 {
		if n, err := l.Write(block); n != len(block) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{workerLog: maxLog / 4, earlierLog: maxLog} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() != want {
			t.Errorf("%s has %v bytes, %v, want %d", name, st.Size(), err, want)
		}
	}
}
