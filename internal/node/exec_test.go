package node

import "testing"

func TestPickPort(t *testing.T) {
	const all = lastPort - firstPort + 1
	for _, n := range []int{1, all - 1, all} {
		if first, ok := pickPort(n); !ok || first < firstPort || first+n-1 > lastPort {
			t.Errorf("%d ports from %d: %v", n, first, ok)
		}
	}
	if first, ok := pickPort(all + 1); ok {
		t.Errorf("more ports than there are, from %d", first)
	}
}
