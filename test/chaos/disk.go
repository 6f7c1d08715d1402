package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"penstock/test/fleet"
)

// diskSize is the size of the disk which is filled, with room for JetStream's reservation.
const diskSize = "512m"

// runDiskFull fills the disk of JetStream under load, and empties it again.
func runDiskFull(ctx context.Context, e *testEnv, r *scenarioResult) error {
	if os.Geteuid() != 0 {
		return skippedError{"mounting a small disk takes root"}
	}
	dir := filepath.Join(e.dir, "disk")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+diskSize, "penstock-chaos", dir).CombinedOutput(); err != nil {
		return skippedError{fmt.Sprintf("a small disk cannot be mounted here: %v: %s", err, strings.TrimSpace(string(out)))}
	}
	// Lazily: the writing processes are gone by now, but possibly not their last descriptors.
	defer func() { _ = exec.Command("umount", "-l", dir).Run() }()
	f, err := e.startFleet(ctx, fleet.Config{Workers: 3, Frontends: 2, HubData: filepath.Join(dir, "data")})
	if err != nil {
		return err
	}
	defer e.endFleet(f, r)
	r.excused = "component=nats" // reports that it cannot write
	r.addNote("JetStream's directory is on a tmpfs of %s, filled with a file", diskSize)
	full := natsAbsence{
		e, r, f, "disk full", longOrShort(e, 25*time.Second, 5*time.Second),
		func() error { return fillDisk(filepath.Join(dir, "ballast")) },
		func() error { return os.Remove(filepath.Join(dir, "ballast")) },
	}
	return full.runAbsence(ctx)
}

// fillDisk writes a file until no byte is free.
func fillDisk(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			return err
		}
	}
	return nil
}
