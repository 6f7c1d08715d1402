package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock/test/fleet"
)

// fleetSoak is the soak of a whole fleet: two frontends beside the hub (one uses a router) and three workers,
// under clients which check their answers, while the memory of every process is sampled.
type fleetSoak struct {
	bin      string
	clients  int
	length   time.Duration
	requests int64
	tokens   int
	every    time.Duration
	maxSlope float64 // allowed growth of a process in MiB per hour
}

// minJudgedTime is the shortest time for a meaningful slope: for minutes after the start, pools and caches
// still grow.
const minJudgedTime = 5 * time.Minute

func (l *fleetSoak) runFleetSoak(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "penstock-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if l.bin, err = filepath.Abs(l.bin); err != nil {
		return err
	}
	f, err := fleet.Start(ctx, fleet.Config{
		Bin: l.bin, Dir: dir, Ports: fleet.NewPorts(uint64(os.Getpid())),
		Workers: 3, Frontends: 2, Routers: 1, Routed: 1,
		WorkerArgs: []string{"--kv-cache-blocks", "512"}, // full soon
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.CheckDied(), f.Close()) }()
	client := fleet.NewClient(fleet.KeepAlive)
	defer client.Close()
	mix, err := fleet.LearnAnswers(ctx, client, f.Hub.URL(), fleet.RequestMix(64, l.tokens))
	if err != nil {
		return err
	}
	load := &fleet.Load{Client: client, Mix: mix, Fresh: 0.1, Seed: 1, Limit: l.requests}
	for _, door := range f.ClientRoles() {
		load.URLs = append(load.URLs, door.URL())
	}
	began := time.Now()
	running := load.StartClients(ctx, l.clients)
	memory := &memoryHistory{roles: f.AllRoles(), began: time.Now(), mib: make([][]float64, len(f.AllRoles()))}
	err = memory.sampleDuring(ctx, running, l.length, l.every)
	tally, _ := running.FinishLoad()
	took := time.Since(began)
	fmt.Printf("%d clients for %v: %d requests sent, %d right, %d failed, %d refused, %d with tokens twice, %d with tokens missing, %d altered; %.0f requests/s, %.0f tokens/s\n",
		l.clients, took.Round(time.Second), tally.Sent, tally.Right, tally.Failed, tally.Refused, tally.Duplicated, tally.Missing, tally.Altered,
		float64(tally.Right)/took.Seconds(), float64(tally.Tokens)/took.Seconds())
	fmt.Printf("first token: %v\n", &tally.First)
	grew := memory.reportSlopes(l.maxSlope)
	switch {
	case err != nil:
		return err
	case tally.Right != tally.Sent || tally.Sent == 0:
		return fmt.Errorf("not every request was answered as it should: %v %v", tally.Errors, tally.Differences)
	}
	return grew
}

// memoryHistory is the resident memory of a fleet's processes over time.
type memoryHistory struct {
	roles  []*fleet.Role
	began  time.Time
	hours  []float64
	mib    [][]float64 // by role, one per sample
	length time.Duration
}

// sampleDuring samples at regular intervals until the time is over, the load has sent all its requests, or
// ctx ends.
func (m *memoryHistory) sampleDuring(ctx context.Context, running *fleet.RunningLoad, length, every time.Duration) error {
	over := make(chan struct{})
	go func() {
		running.WaitClients()
		close(over)
	}()
	end := time.NewTimer(length)
	defer end.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case <-over:
			return nil
		case <-tick.C:
			if err := m.sampleMemory(); err != nil {
				return err
			}
		}
		if n := len(m.hours); n%12 == 0 {
			t := running.CountsSoFar()
			fmt.Fprintf(os.Stderr, "%6.0fs %d requests, %d failed; resident MiB: %s\n", time.Since(m.began).Seconds(), t.Sent, t.Failed+t.Refused+t.CountWrong(), m.describeNow())
		}
	}
}

func (m *memoryHistory) sampleMemory() error {
	m.length = time.Since(m.began)
	m.hours = append(m.hours, m.length.Hours())
	for i, r := range m.roles {
		bytes, err := fleet.ResidentBytes(r.PID())
		if err != nil {
			return errors.Join(err, r.CheckDied())
		}
		m.mib[i] = append(m.mib[i], float64(bytes)/(1<<20))
	}
	return nil
}

func (m *memoryHistory) describeNow() string {
	s := ""
	for i, r := range m.roles {
		s += fmt.Sprintf(" %s %.0f", r.Name(), m.mib[i][len(m.hours)-1])
	}
	return s
}

// reportSlopes prints each process's memory over the second half of the time, and returns an error if one
// grew by more than allowed.
func (m *memoryHistory) reportSlopes(most float64) error {
	half := len(m.hours) / 2
	var errs []error
	for i, r := range m.roles {
		per := fitSlope(m.hours[half:], m.mib[i][half:])
		last := 0.0
		if n := len(m.mib[i]); n > 0 {
			last = m.mib[i][n-1]
		}
		said := ""
		if m.length/2 < minJudgedTime {
			said = ", too short to judge"
		}
		fmt.Printf("%-12s %7.1f MiB resident at the end, %+8.2f MiB/hour over the last %v%s\n", r.Name(), last, per, (m.length / 2).Round(time.Second), said)
		if m.length/2 >= minJudgedTime && per > most {
			errs = append(errs, fmt.Errorf("%s grows by %.1f MiB/hour, more than %.1f", r.Name(), per, most))
		}
	}
	return errors.Join(errs...)
}

// fitSlope is the slope of the least-squares line through the points, 0 if there is none.
func fitSlope(x, y []float64) float64 {
	n := float64(len(x))
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	if d := n*sxx - sx*sx; d > 0 {
		return (n*sxy - sx*sy) / d
	}
	return 0
}
