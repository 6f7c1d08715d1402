package planner

import "syscall"

// endWithParent makes the kernel ask a process to drain when the thread which started it is gone, however that ended.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
}
