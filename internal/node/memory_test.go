package node

import (
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"penstock/internal/config"
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

// A cache too large for any machine is an error that says so, not the end of the process.
func TestTooMuchCache(t *testing.T) {
	if runtime.GOOS == "linux" && memoryLimit() == 0 {
		t.Fatal("how much memory the machine has is not known")
	}
	if memoryLimit() == 0 {
		return
	}
	cfg, err := config.Load("", []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_KV_CACHE_BLOCKS=16777216", "PENSTOCK_WORKERS=1024"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = RunUp(t.Context(), cfg, io.Discard, func(Ready) { t.Error("ready") })
	if err == nil || !strings.Contains(err.Error(), "GiB are needed") || !strings.Contains(err.Error(), "lower --kv-cache-blocks or --workers") {
		t.Errorf("got %v", err)
	}
}

func TestGCPercent(t *testing.T) {
	for _, c := range []struct {
		live, room uint64
		want       int
	}{
		{0, 192 << 20, 4800},
		{24 << 20, 192 << 20, 800},
		{96 << 20, 192 << 20, 200},
		{192 << 20, 192 << 20, 100},
		{8 << 30, 192 << 20, 100},
		{64 << 20, 0, 100},
	} {
		if got := gcPercent(c.live, c.room); got != c.want {
			t.Errorf("%d bytes alive, room for %d: %d %%, want %d", c.live, c.room, got, c.want)
		}
	}
}
