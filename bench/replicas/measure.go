package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/internal/replay"
	"penstock/internal/replay/load"
	"penstock/test/fleet"
)

// model is the model of simulated engines.
const model = "penstock-sim"

// modeRow has the measurements of one mode.
type modeRow struct {
	Routers     string  `json:"routers"`
	Requests    int     `json:"requests"`
	Errors      int     `json:"errors"`
	CachedShare float64 `json:"cached_share"`
	// Imbalance is the busiest worker's work over the mean: prompt tokens computed and tokens generated.
	Imbalance float64 `json:"imbalance"`
	// Busiest is the number of requests at the worker with the most, averaged over time, Active the mean per
	// worker.
	Busiest  float64 `json:"busiest_requests"`
	Active   float64 `json:"mean_requests"`
	TTFTMean float64 `json:"ttft_mean_ms"`
	TTFTP99  float64 `json:"ttft_p99_ms"`
	Late     bool    `json:"late,omitempty"`
}

// measureMode starts a fleet, sends the workload, and stops it.
func (s *replicaSettings) measureMode(ctx context.Context, w routingMode) (out modeRow, err error) {
	dir, err := os.MkdirTemp("", "penstock-replicas-")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	routed := []string{"--router-replica-sync", w.sync, "--drain-grace", "0s", "--log-level", "warn"}
	f, err := fleet.Start(ctx, fleet.Config{
		Bin: s.bin, Dir: dir, Ports: fleet.NewPorts(s.seed), Workers: s.workers, Frontends: w.frontends,
		HubArgs: routed, FrontendArgs: routed,
		WorkerArgs: []string{"--engine", "sim", "--kv-cache-blocks", strconv.Itoa(s.blocks), "--sim-speedup", formatDecimal(s.speedup), "--log-level", "warn"},
	})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// The hub also has a frontend, which is not used.
	rec := &sharedRecorder{inner: replay.NewRecorder(replay.RecorderConfig{Workers: s.workers, Sender: replay.RealSender})}
	if err := s.sendWorkload(ctx, f.Frontends, rec); err != nil {
		return out, err
	}
	if err := f.CheckDied(); err != nil {
		return out, err
	}
	r := rec.inner.Run().Row
	out = modeRow{
		Routers: w.name, Requests: r.Requests, Errors: r.Errors, CachedShare: r.CachedShare, Imbalance: r.Imbalance,
		TTFTMean: r.TTFT.Mean, TTFTP99: r.TTFT.P99, Late: r.Late,
	}
	out.Busiest, out.Active = rec.workerOccupancy(s.workers)
	return out, nil
}

// sendWorkload sends the workload to the frontends in turn, each request at its time.
func (s *replicaSettings) sendWorkload(ctx context.Context, doors []*fleet.Role, rec *sharedRecorder) error {
	spec := s.generate
	if !strings.Contains(spec, "requests=") {
		spec += ",requests=" + strconv.Itoa(s.requests)
	}
	workload, err := replay.ParseGenerator(spec, s.seed)
	if err != nil {
		return err
	}
	cfg := load.Config{Model: model, Vocabulary: replay.Vocabulary{Seed: s.seed}, Form: load.RequestForm{Prompt: load.TokenPrompt, Length: load.ExactLength}}
	errs := make([]error, len(doors))
	var wg sync.WaitGroup
	for i, door := range doors {
		source, err := workload.Open()
		if err != nil {
			return err
		}
		timed, err := replay.ApplyArrival(source, replay.Arrival{Process: replay.Poisson, Rate: s.rate, Seed: s.seed})
		if err != nil {
			return err
		}
		own := cfg
		own.Endpoint.URL = door.URL()
		wg.Go(func() {
			sum, err := load.Run(ctx, own, &shareSource{Source: timed, of: len(doors), mine: i}, rec)
			if err == nil && sum.Interrupted {
				err = fmt.Errorf("send to %s: %w", door.Name(), ctx.Err())
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// shareSource is one frontend's share of a workload.
type shareSource struct {
	replay.Source
	of, mine int
	n        int
}

// Next implements replay.Source.
func (t *shareSource) Next(r *replay.Request) error {
	for {
		if err := t.Source.Next(r); err != nil {
			return err
		}
		t.n++
		if (t.n-1)%t.of == t.mine {
			return nil
		}
	}
}

// sharedRecorder records the samples of all frontends.
type sharedRecorder struct {
	mu     sync.Mutex
	inner  *replay.Recorder
	served []servedRequest
}

// servedRequest is a request at a worker.
type servedRequest struct {
	worker   uint64
	from, to time.Duration
}

// RecordSample implements load.Recorder.
func (r *sharedRecorder) RecordSample(s *replay.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inner.RecordSample(s)
	if s.Worker != 0 {
		r.served = append(r.served, servedRequest{s.Worker, s.Sent, s.Done})
	}
}

// RecordGap implements load.Recorder.
func (r *sharedRecorder) RecordGap(between time.Duration, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inner.RecordGap(between, n)
}

// workerOccupancy returns the number of requests at the worker with the most at a time, averaged over the
// time with any requests, and the mean per worker.
func (r *sharedRecorder) workerOccupancy(workers int) (busiest, active float64) {
	type change struct {
		at     time.Duration
		worker uint64
		by     int
	}
	var all []change
	for _, v := range r.served {
		all = append(all, change{v.from, v.worker, 1}, change{v.to, v.worker, -1})
	}
	slices.SortFunc(all, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	at := map[uint64]int{}
	var most, n int
	var total time.Duration
	for i, c := range all {
		if i > 0 && n > 0 {
			d := c.at - all[i-1].at
			busiest += float64(d) * float64(most)
			active += float64(d) * float64(n)
			total += d
		}
		n += c.by
		at[c.worker] += c.by
		most = 0
		for _, k := range at {
			most = max(most, k)
		}
	}
	if total == 0 {
		return 0, 0
	}
	return busiest / float64(total), active / float64(total) / float64(workers)
}

var _ load.Recorder = (*sharedRecorder)(nil)
