package node

import (
	"io"
	"runtime"
	"strings"
	"testing"

	"penstock/internal/node/engines"

	"penstock/internal/config"
)

// A cache too large for any machine is an error that says so, not the end of the process.
func TestTooMuchCache(t *testing.T) {
	if runtime.GOOS == "linux" && engines.MemoryLimit() == 0 {
		t.Fatal("how much memory the machine has is not known")
	}
	if engines.MemoryLimit() == 0 {
		return
	}
	cfg, err := config.Load("", []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_KV_CACHE_BLOCKS=16777216", "PENSTOCK_WORKERS=1024"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = RunUp(t.Context(), cfg, io.Discard, func(Ready) { t.Error("ready") })
	if err == nil || !strings.Contains(err.Error(), "GiB are needed") || !strings.Contains(err.Error(), "lower --kv-cache-blocks, --workers or") {
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
