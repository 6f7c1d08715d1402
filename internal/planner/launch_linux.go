package planner

import "syscall"

// endWithParent makes the kernel ask a process to drain when the thread which started it is gone, however that ended. The
// process has a group of its own: signals of the terminal do not reach it.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
}
