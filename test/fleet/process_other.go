//go:build !linux

package fleet

import "syscall"

// The numbers of BSD and macOS; on other systems sending them is an error.
const (
	sigStop = syscall.Signal(17)
	sigCont = syscall.Signal(19)
)

// dieWithParent exists on Linux only: elsewhere a killed program leaves its processes.
func dieWithParent() *syscall.SysProcAttr { return nil }
