//go:build !windows

package checkpoint

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A named pipe in place of a file is refused; waiting for a writer would hang.
func TestPipesAreRefused(t *testing.T) {
	for name, read := range map[string]func(dir string) error{
		configFile:     func(dir string) error { _, err := ReadConfig(dir); return err },
		generationFile: func(dir string) error { _, err := ReadGeneration(dir); return err },
		singleFile:     func(dir string) error { _, err := Open(dir); return err },
		indexFile:      func(dir string) error { _, err := Open(dir); return err },
	} {
		dir := t.TempDir()
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := read(dir); err == nil || !strings.Contains(err.Error(), name+": not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
