package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPool: a pool is off by default, belongs to engine tiny, and has a path and a size in pages.
func TestPool(t *testing.T) {
	for _, c := range []struct {
		env  string
		want *KVPool
		fail string
	}{
		{"", nil, ""},
		{"POOL=3=/dev/shm/a=b:c:2GiB", &KVPool{ID: 3, Path: "/dev/shm/a=b:c", Size: 2 << 30}, ""},
		{"POOL=0=/p:512MiB ENGINE=tiny", &KVPool{Path: "/p", Size: 512 << 20}, ""},
		{"POOL=0=/p:512MiB ENGINE=sim", nil, "only engine tiny"},
		{"POOL=/p:512MiB", nil, "ID=PATH:SIZE"},
		{"POOL=0=/p", nil, "ID=PATH:SIZE"},
		{"POOL=0=/p:big", nil, "not a size"},
		{"POOL=0=/p:1000", nil, "multiple of 4KiB"},
		{"POOL=0=/p:5000", nil, "multiple of 4KiB"},
		{"POOL=0=/p:0", nil, "multiple of 4KiB"},
	} {
		var env []string
		for _, v := range strings.Fields(c.env) {
			env = append(env, "PENSTOCK_"+v)
		}
		cfg, err := Load("", env, NoFlags(Up))
		switch {
		case c.fail != "":
			if err == nil || !strings.Contains(err.Error(), "pool: ") || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%s: %v", c.env, err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.env, err)
		default:
			if diff := cmp.Diff(c.want, cfg.SharedPool()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.env, diff)
			}
		}
	}
}
