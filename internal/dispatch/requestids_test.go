package dispatch

import "testing"

// TestRequestIDs: running requests of one id get ids of their own, and a freed id can be claimed again.
func TestRequestIDs(t *testing.T) {
	var s RequestIDs
	claimed := map[string]bool{}
	for range 50 {
		id := s.Claim("a")
		if claimed[id] {
			t.Fatalf("%q is claimed twice", id)
		}
		claimed[id] = true
	}
	if !claimed["a"] || !claimed["a~1"] || s.Len() != 50 {
		t.Errorf("%d ids are claimed: %v", s.Len(), claimed)
	}
	if other := s.Claim("b"); other != "b" {
		t.Errorf("claimed %q", other)
	}
	s.Release("a")
	if again := s.Claim("a"); again != "a" {
		t.Errorf("after its release: %q", again)
	}
	for id := range claimed {
		s.Release(id)
	}
	if s.Release("b"); s.Len() != 0 {
		t.Errorf("%d ids are claimed", s.Len())
	}
}
