package xfer

import "golang.org/x/sys/unix"

// yieldProcessor lets other processes run which wait for this processor: one may be the peer.
func yieldProcessor() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
