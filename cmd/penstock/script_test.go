package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"penstock": func() { os.Exit(runCommandLine(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScript runs the command line as a user would; the scripts contain the output and the exit codes.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "queues": startQueues},
		Setup: func(env *testscript.Env) error {
			url, stop := startTalker()
			env.Defer(stop)
			env.Setenv("TALKER", url)
			env.Setenv("VERSION", version)
			return nil
		},
	})
}

// exits runs a command and requires its exit code: exits CODE COMMAND ARG...
// Standard error is kept in the file "stderr".
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

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
