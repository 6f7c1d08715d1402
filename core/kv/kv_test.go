package kv

import (
	"strings"
	"testing"
	"time"
)

func TestMediaHash(t *testing.T) {
	digest := "3acc1f94a89006af" + strings.Repeat("0", 48)
	for id, want := range map[string]uint64{
		digest:                  0x3acc1f94a89006af,
		strings.ToUpper(digest): 0x3acc1f94a89006af,
		"my-image-42":           0x56e507b37183735a,
	} {
		if got, ok := MediaHash(id); !ok || got != want {
			t.Errorf("hash of %q is %x, want %x", id, got, want)
		}
	}
	for _, id := range []string{digest[1:], digest + "0", "g" + digest[1:], "-" + digest[1:]} {
		if got, ok := MediaHash(id); !ok || got == 0x3acc1f94a89006af || got == 0xacc1f94a89006af0 {
			t.Errorf("%q is not a digest, and hashes to %x", id, got)
		}
	}
	if _, ok := MediaHash(""); ok {
		t.Error("the empty identifier has a hash")
	}
}

func TestWorkerCompare(t *testing.T) {
	order := []Worker{{0, 0}, {0, 1}, {1, 0}, {1, 7}, {MaxWorkerID, 0}}
	for i, a := range order {
		for j, b := range order {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%v compared with %v is %d, want %d", a, b, got, want)
			}
		}
	}
	// A float64 represents it exactly.
	if id := MaxWorkerID; WorkerID(float64(id)) != id || WorkerID(float64(id-1)) != id-1 {
		t.Error("the largest worker id does not survive JSON")
	}
}

func TestMono(t *testing.T) {
	m := Mono(-5).Add(2 * time.Second)
	if got := m.Sub(-5); got != 2*time.Second {
		t.Errorf("2s later is %v later", got)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		TierDevice.String():   "device",
		TierHost.String():     "host",
		TierDisk.String():     "disk",
		TierPool.String():     "pool",
		Tier(9).String():      "tier?",
		Stored.String():       "stored",
		Removed.String():      "removed",
		Cleared.String():      "cleared",
		EventKind(0).String(): "kind?",
	} {
		if got != want {
			t.Errorf("name is %q, want %q", got, want)
		}
	}
	if TierDevice != 0 {
		t.Error("the zero tier is not the engine's own memory")
	}
}
