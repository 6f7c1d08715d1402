//go:build unix && !linux

package planner

import "syscall"

// endWithParent gives a process a group of its own: signals of the terminal do not reach it. A planner which is killed leaves
// its workers.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
