package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"penstock/internal/engine/tiny"
)

// explainMemory adds to a lack of memory what the operator can do.
func explainMemory(err error) error {
	var over *tiny.MemoryError
	if !errors.As(err, &over) {
		return err
	}
	return fmt.Errorf("%w; lower --kv-cache-blocks or --workers", err)
}

// Memory returns how many bytes of memory this process may have: those of the
// machine or, if that is less, of its control groups. 0 is not known.
func Memory() uint64 { return memory() }

// cgroupLimit returns the least memory limit of the control groups that this
// process is in, in bytes, 0 if there is none. root is the root of the file
// system. Both versions of control groups are read, with every group above the
// process's own, because each of them has a limit of its own. A container may see
// its own group as the root of the hierarchy whatever its name: groups that are
// not there are left out.
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
