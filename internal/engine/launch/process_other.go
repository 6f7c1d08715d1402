//go:build !unix

package launch

import (
	"os"
	"os/exec"
)

func isolateProcess(*exec.Cmd) {}

func terminate(p *os.Process) { _ = p.Kill() } // there is no SIGTERM

func killGroup(p *os.Process) { _ = p.Kill() }

func exitCode(s *os.ProcessState) int { return s.ExitCode() }

func forwardSignals(*os.Process) (stop func()) { return func() {} }
