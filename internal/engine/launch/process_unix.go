//go:build unix

package launch

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"penstock/internal/backoff"
)

// isolateProcess gives the process a group of its own, so that Ctrl-C in a terminal does not reach the engine before its
// requests are finished.
func isolateProcess(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
}

// terminate asks the process to end.
func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) }

// killGroup kills what is left of the group of the process.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// reapGroup waits for what is left of the killed group, as far as it consists of children of this process: a process whose
// parent ended becomes a child of process 1, which this one is in a container without an init.
func reapGroup(p *os.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	_ = backoff.Poll(ctx, reapInterval, func() bool {
		for {
			pid, err := syscall.Wait4(-p.Pid, nil, syscall.WNOHANG, nil)
			if err == nil && pid == 0 {
				return false // some are still ending
			}
			if err != nil && err != syscall.EINTR {
				return true // there are no children in the group
			}
		}
	})
}

const (
	// reapTimeout bounds the wait for killed processes: one may hang in a driver.
	reapTimeout  = time.Second
	reapInterval = 10 * time.Millisecond
)

// terminatedCode is the exit code of a process which terminate ended.
const terminatedCode = 128 + int(syscall.SIGTERM)

// WithHangup returns a context which also ends when the terminal of this process is closed (SIGHUP), unless the process
// ignores that, as under nohup.
func WithHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	if signal.Ignored(syscall.SIGHUP) {
		return context.WithCancel(ctx)
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// exitCode returns the exit code as shells say it.
func exitCode(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.ExitCode()
}

// forwardSignals sends SIGUSR1 and SIGUSR2 on to the process until the returned function is called.
func forwardSignals(p *os.Process) (stop func()) {
	signals, done := make(chan os.Signal, 4), make(chan struct{})
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case s := <-signals:
				_ = p.Signal(s)
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(signals)
		close(done)
		running.Wait()
	}
}
