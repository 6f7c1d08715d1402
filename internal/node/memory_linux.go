package node

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryLimit returns how many bytes of memory this process may use: the machine's memory or, if lower, the
// limit of its control groups. 0 means unknown.
func memoryLimit() uint64 {
	var total uint64
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		total = uint64(info.Totalram) * uint64(info.Unit)
	}
	if limit := cgroupLimit(os.DirFS("/")); limit != 0 && (total == 0 || limit < total) {
		return limit
	}
	return total
}
