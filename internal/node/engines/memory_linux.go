package engines

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MemoryLimit returns how many bytes of memory this process may use: the machine's memory or, if lower, the
// limit of its control groups. 0 means unknown.
func MemoryLimit() uint64 {
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

// cgroupLimit returns the lowest memory limit of the control groups of this process, in bytes, 0 if there is
// none. root is the root of the file system. It reads both cgroup versions, and every ancestor of the
// process's own group, because each group has a limit of its own. A container may see its own group as the
// root of the hierarchy under any name, so it skips groups which do not exist.
func cgroupLimit(root fs.FS) (limit uint64) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, file := "", ""
		switch {
		case parts[1] == "":
			base, file = "sys/fs/cgroup", "memory.max"
		case parts[1] == "memory":
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			if n := readLimit(root, path.Join(base, group, file)); n != 0 && (limit == 0 || n < limit) {
				limit = n
			}
			if group == "/" {
				break
			}
		}
	}
	return limit
}

// readLimit returns the number in a file; 0 if there is none, as for "max".
func readLimit(root fs.FS, name string) uint64 {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
