package engines

import "golang.org/x/sys/unix"

// MemoryLimit returns how many bytes of memory the machine has; 0 means unknown.
func MemoryLimit() uint64 {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return total
}
