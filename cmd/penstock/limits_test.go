package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestLimitsAtStart: a process logs at its start what doctor would report of this machine.
func TestLimitsAtStart(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "ulimit -n 512; exec penstock up --http-addr 127.0.0.1:0")
	log := &until{text: "msg=serving ", found: func() { _ = cmd.Process.Signal(os.Interrupt) }}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait() // it was stopped
	if said := log.all.String(); !strings.Contains(said, `detail="a process may have 512 files open, and`) || !strings.Contains(said, `remedy="raise it before the start: ulimit -n`) {
		t.Errorf("the log says\n%s", said)
	}
}
