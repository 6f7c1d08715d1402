package config

import (
	"strings"
	"testing"
)

// TestEmbeddingTiers: tiers are off by default, belong to engine tiny, and need memory above them.
func TestEmbeddingTiers(t *testing.T) {
	for _, c := range []struct {
		env  string
		has  bool
		fail string
	}{
		{"", false, ""},
		{"EMBEDDING_CACHE_DISK_CAPACITY_GB=5", false, ""},
		{"EMBEDDING_CACHE_DISK=/d", true, ""},
		{"EMBEDDING_CACHE_OBJECT_STORE_GB=0.5", true, ""},
		{"EMBEDDING_CACHE_DISK=/d ENGINE=sim", false, ""},
		{"EMBEDDING_CACHE_DISK=/d EMBEDDING_CACHE_CAPACITY_GB=0", true, "embedding-cache-capacity-gb"},
		{"EMBEDDING_CACHE_OBJECT_STORE_GB=-1", true, "embedding-cache-object-store-gb"},
	} {
		var env []string
		for _, v := range strings.Fields(c.env) {
			env = append(env, "PENSTOCK_"+v)
		}
		cfg, err := Load("", env, NoFlags(Up))
		switch {
		case c.fail != "":
			if err == nil || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%s: %v", c.env, err)
			}
		case err != nil || cfg.HasEmbeddingTiers() != c.has:
			t.Errorf("%s: %v", c.env, err)
		}
	}
}
