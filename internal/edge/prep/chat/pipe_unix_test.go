//go:build !windows

package chat

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"penstock/core/fault"
)

// A named pipe in the place of a file is refused; waiting for a writer would hang.
func TestPipeIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, tokenizerFile), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Ref{Kind: "dir", Dir: dir})
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v (%v)", err, fault.CodeOf(err))
	}
}
