//go:build !unix

package launch

import (
	"context"
	"os"
	"os/exec"
)

func isolateProcess(*exec.Cmd) {}

func terminate(p *os.Process) { _ = p.Kill() } // there is no SIGTERM

func killGroup(p *os.Process) { _ = p.Kill() }

func reapGroup(*os.Process) {}

// terminatedCode is the exit code of a process which terminate ended.
const terminatedCode = 1

// WithHangup returns a context which the caller can end: there is no SIGHUP.
func WithHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

func exitCode(s *os.ProcessState) int { return s.ExitCode() }

func forwardSignals(*os.Process) (stop func()) { return func() {} }
