package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFleetScriptBuildFails: tools/fleet.sh ends with the output of the build and leaves no files.
func TestFleetScriptBuildFails(t *testing.T) {
	bin, temp := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\necho 'no space left on device' >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", filepath.Join("..", "..", "tools", "fleet.sh"))
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+temp, "PENSTOCK=")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	said := string(out)
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Contains(said, "unbound") ||
		!strings.Contains(said, "no space left on device") || !strings.Contains(said, "fleet: go build failed") {
		t.Errorf("%v: %s", err, said)
	}
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("%s is left", left[0].Name())
	}
}
