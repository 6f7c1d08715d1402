package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"penstock/test/fleet"
)

const (
	// expiryWritten is longer than a NATS server takes to persist key expiries (2 minutes): for a key which
	// expired before that, and returns when the server is killed, nothing is persisted.
	expiryWritten = 170 * time.Second
	// deadBound bounds the time from the start of the NATS server to the end of the registrations which it
	// restored: one and a half leases, and the start.
	deadBound = fleet.Lease*3/2 + 10*time.Second
)

// runStoreRestart kills all workers but one, then the NATS server and the frontend around it, and restarts
// those: no router keeps the dead workers, neither the restarted one nor the surviving one. In the short form
// the workers' liveness keys lose their expiry by hand instead of by the server's death.
func runStoreRestart(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	alive, dead := f.Workers[0], f.Workers[1:]
	load := e.newLoad(f.Frontends...).StartClients(ctx, 2) // the hub has none: it is killed
	defer load.AbandonStreams()
	for _, w := range dead {
		w.Kill()
		if !e.short {
			continue
		}
		if err := fleet.RemoveExpiry(ctx, f.NATS, w.ID); err != nil {
			return err
		}
	}
	if err := sleepContext(ctx, longOrShort(e, expiryWritten, time.Second)); err != nil {
		return err
	}
	f.Store.Kill()
	began := time.Now()
	if err := f.Store.Start(); err != nil {
		return err
	}
	back, err := countRevived(ctx, f, dead)
	if err != nil {
		return err
	}
	r.addFigure("dead workers", float64(len(dead)), "")
	r.addFigure("of them with a liveness key after the restart of NATS", float64(back), "")
	if back == 0 {
		r.addNote("the NATS server brought no liveness key back: nothing was put to the test")
	}
	if _, err := fleet.WaitUntil(ctx, 50*time.Millisecond, deadBound, func(ctx context.Context) error {
		return checkOnlyAlive(ctx, f, alive)
	}); err != nil {
		return err
	}
	r.addTime("start of NATS to routers and store without the dead", time.Since(began))
	tally, _ := load.FinishLoad()
	r.requireFlawless(&tally)
	r.addDurations("longest pause of any stream", &tally.Pause)
	return nil
}

// countRevived waits for the NATS server, and returns how many of the dead workers have a liveness key in it.
func countRevived(ctx context.Context, f *fleet.Fleet, dead []*fleet.Role) (back int, err error) {
	var reg fleet.Registry
	if _, err := fleet.WaitUntil(ctx, 10*time.Millisecond, returnPatience, func(ctx context.Context) (err error) {
		reg, err = fleet.ReadRegistry(ctx, f.NATS)
		return err
	}); err != nil {
		return 0, err
	}
	for _, w := range dead {
		if reg.Leases[w.ID] {
			back++
		}
	}
	return back, nil
}

// checkOnlyAlive returns nil if every router has exactly the one worker ready, and the store has no other
// liveness key.
func checkOnlyAlive(ctx context.Context, f *fleet.Fleet, alive *fleet.Role) error {
	reg, err := fleet.ReadRegistry(ctx, f.NATS)
	if err != nil {
		return err
	}
	if len(reg.Leases) != 1 || !reg.Leases[alive.ID] {
		return fmt.Errorf("the store has liveness keys of the workers %v", reg.Leases)
	}
	for _, door := range f.ClientRoles() {
		if err := f.CheckSees(ctx, door, alive); err != nil {
			return err
		}
		rows, err := fleet.ReadWorkers(ctx, door.URL())
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(rows, func(row fleet.WorkerRow) bool { return row.ID != alive.ID }); i >= 0 {
			return fmt.Errorf("%s still has the dead worker %d, %s", door.Name(), rows[i].ID, rows[i].State)
		}
	}
	return nil
}

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
