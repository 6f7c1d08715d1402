package node

import "golang.org/x/sys/unix"

// memoryLimit returns how many bytes of memory the machine has; 0 means unknown.
func memoryLimit() uint64 {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return total
}
