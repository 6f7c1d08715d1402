package node

import "testing"

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
