//go:build unix && !linux

package launch

import "syscall"

func endWithParent(*syscall.SysProcAttr) {}
