//go:build !linux

package planner

import "syscall"

// endWithParent exists on Linux only: elsewhere a planner which is killed leaves its workers.
func endWithParent() *syscall.SysProcAttr { return nil }
