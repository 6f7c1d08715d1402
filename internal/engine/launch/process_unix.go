//go:build unix

package launch

import (
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
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
