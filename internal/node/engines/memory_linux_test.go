package engines

import (
	"testing"
	"testing/fstest"
)

func TestCgroupLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"none":    {nil, 0},
		"no file": {map[string]string{"proc/self/cgroup": "0::/a\n"}, 0},
		"version 2": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "4000\n",
		}, 4000},
		"a group above is stricter": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "4000\n", "sys/fs/cgroup/a/memory.max": "3000\n",
		}, 3000},
		"no limit": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n",
		}, 0},
		"a container that sees itself as the root": {map[string]string{
			"proc/self/cgroup": "0::/docker/0123\n", "sys/fs/cgroup/memory.max": "5000\n",
		}, 5000},
		"version 1": {map[string]string{
			"proc/self/cgroup": "9:cpu:/x\n4:memory:/a/b\n0::/\n",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "7000\n",
		}, 7000},
		"garbage": {map[string]string{"proc/self/cgroup": "x\n\n0::../..\n0:memory\n", "sys/fs/cgroup/memory.max": "-1"}, 0},
	} {
		root := fstest.MapFS{}
		for path, data := range tc.files {
			root[path] = &fstest.MapFile{Data: []byte(data)}
		}
		if got := cgroupLimit(root); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
