//go:build !unix

package planner

import "syscall"

// endWithParent exists on Unix only: elsewhere a planner which is killed leaves its workers.
func endWithParent() *syscall.SysProcAttr { return nil }
