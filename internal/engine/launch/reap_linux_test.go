package launch

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestProcessReapsGroup: where the processes which an engine leaves become children of this process, as they do in a
// container without an init, they are killed and leave no zombies.
func TestProcessReapsGroup(t *testing.T) {
	setSubreaper(t, 1)
	defer setSubreaper(t, 0)
	s := newShell(t, "sleep 1000 & echo $!; exit 3", ProcessConfig{}).start(t)
	orphan := strings.TrimSpace(receive(t, s.lines))
	if err := receive(t, s.result); err == nil {
		t.Error("the engine ended without an error")
	}
	if state, err := os.ReadFile("/proc/" + orphan + "/stat"); !os.IsNotExist(err) {
		t.Errorf("the orphan is still there: %s, %v", state, err)
	}
}

// setSubreaper makes this process the parent of descendants whose parents end, or not.
func setSubreaper(t *testing.T, on uintptr) {
	t.Helper()
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER of prctl(2)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, on, 0); errno != 0 {
		t.Fatal(errno)
	}
}
