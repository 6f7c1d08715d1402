package shm

import (
	"strings"
	"testing"
)

// TestNames: no name from outside leads to another file than a segment.
func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "/etc/passwd", "../etc/passwd", "penstock-/../../etc/passwd", "penstock-a/b", "penstock-A", "penstock-a\x00", "penstock-a b", "other-a", "penstock-.", "penstock-" + strings.Repeat("a", 200)} {
		if _, err := Open(name, 1); err == nil || checkName(name) == nil {
			t.Errorf("%q is taken for a segment's name", name)
		}
	}
	a, err := newSegmentName("media")
	if err != nil || checkName(a) != nil {
		t.Errorf("%s: %v", a, err)
	}
	if b, _ := newSegmentName("media"); a == b {
		t.Error("names can be guessed")
	}
	for _, prefix := range []string{"a/b", "A", "..", strings.Repeat("a", 100)} {
		if _, err := newSegmentName(prefix); err == nil {
			t.Errorf("prefix %q is taken", prefix)
		}
	}
}

// FuzzName: what is taken for a name is the name of a file in the directory itself.
func FuzzName(f *testing.F) {
	f.Add("penstock-media-00")
	f.Add("penstock-../x")
	f.Fuzz(func(t *testing.T, name string) {
		if checkName(name) == nil && (strings.ContainsAny(name, "/\\\x00.") || !strings.HasPrefix(name, "penstock-")) {
			t.Fatalf("%q is taken for a name", name)
		}
	})
}
