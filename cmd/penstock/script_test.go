package main

import (
	"os"
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
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Setup: func(env *testscript.Env) error {
			url, stop := startTalker()
			env.Defer(stop)
			env.Setenv("TALKER", url)
			env.Setenv("VERSION", version)
			return nil
		},
	})
}
