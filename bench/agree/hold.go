package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"penstock/internal/replay"
)

// The limits of agreement.
const (
	maxTTFTDistance  = 0.10 // of the mean time to the first token
	maxShareDistance = 2.0  // of the cached share
)

// compareRuns runs the workload both ways and prints the differences. off lists the excessive ones.
func (s *agreeSettings) compareRuns(ctx context.Context, policy string, workers int) (off, err error) {
	bench, err := s.runBench(ctx, policy, workers)
	if err != nil {
		return nil, err
	}
	base, err := s.runReplay(ctx, policy, workers, 0)
	if err != nil {
		return nil, err
	}
	fmt.Printf("\n%s, %d workers of %d blocks, %d requests\n", policy, workers, s.blocks, base.Requests)
	printRows(base, bench)
	if err := s.printSpread(ctx, policy, workers); err != nil {
		return nil, err
	}
	if bench.Late {
		fmt.Println("  The client was late: the machine had too much else to do for its times to mean anything.")
	}
	a, b := &base.TTFT, &bench.TTFT
	fmt.Printf("BenchmarkAgree/policy=%s/workers=%d/blocks=%d %d %.3f replay-ttft-ms %.3f bench-ttft-ms %.4f ttft-ratio %.4f ttft-p50-ratio %.4f ttft-p99-ratio %.4f itl-ratio %.4f e2e-ratio %.3f replay-cached-percent %.3f bench-cached-percent %.3f cached-points %d errors\n",
		policy, workers, s.blocks, bench.Requests, a.Mean, b.Mean, b.Mean/a.Mean, b.P50/a.P50, b.P99/a.P99, bench.ITL.Mean/base.ITL.Mean, bench.E2E.Mean/base.E2E.Mean,
		100*base.CachedShare, 100*bench.CachedShare, cachedSharePoints(base, bench), bench.Errors)
	return checkDistance(policy, workers, base, bench), nil
}

// runBench measures in real time.
func (s *agreeSettings) runBench(ctx context.Context, policy string, workers int) (_ *replay.Row, err error) {
	srv, err := s.startServer(workers, "--router-mode", policy, "--kv-cache-blocks", strconv.Itoa(s.blocks), "--sim-speedup", formatDecimal(s.engine))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, srv.stopServer()) }()
	args := append([]string{"bench", "--url", srv.url, "--requests", strconv.Itoa(s.requests), "--speedup", formatDecimal(s.arrival)}, s.workload...)
	return s.runAndReadRow(ctx, args...)
}

// runReplay measures in virtual time. Runs other than 0 differ in irrelevant ways: their send times scale by
// a thousandth more each, and, where that does not change the workload, so does the seed.
func (s *agreeSettings) runReplay(ctx context.Context, policy string, workers, run int) (*replay.Row, error) {
	seed := 1
	if !s.generated {
		seed += run
	}
	arrival := s.arrival * (1 + float64(run)/1000)
	args := append([]string{
		"replay", "--requests", strconv.Itoa(s.requests), "--arrival", "trace:speedup=" + formatDecimal(arrival), "--speedup", formatDecimal(s.engine),
		"--policy", policy, "--workers", strconv.Itoa(workers), "--blocks-per-worker", strconv.Itoa(s.blocks), "--seed", strconv.Itoa(seed),
	}, s.workload...)
	return s.runAndReadRow(ctx, args...)
}

// printSpread prints the spread of further replay runs, which differ only in irrelevant ways.
func (s *agreeSettings) printSpread(ctx context.Context, policy string, workers int) error {
	if s.extraReplays == 0 {
		return nil
	}
	least, most := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{}
	for i := range s.extraReplays {
		row, err := s.runReplay(ctx, policy, workers, i+1)
		if err != nil {
			return err
		}
		for j, v := range [2]float64{row.TTFT.Mean, 100 * row.CachedShare} {
			least[j], most[j] = min(least[j], v), max(most[j], v)
		}
	}
	fmt.Printf("  %d other runs of replay: TTFT mean %.1f to %.1f ms, cached %.2f to %.2f %%\n", s.extraReplays, least[0], most[0], least[1], most[1])
	return nil
}

// printRows prints two rows side by side.
func printRows(a, b *replay.Row) {
	fmt.Printf("  %-10s %12s %12s %12s\n", "", "replay", "bench", "bench/replay")
	for _, d := range []struct {
		name string
		a, b *replay.Distribution
	}{{"TTFT", &a.TTFT, &b.TTFT}, {"ITL", &a.ITL, &b.ITL}, {"E2E", &a.E2E, &b.E2E}} {
		for _, v := range []struct {
			name string
			a, b float64
		}{{"mean", d.a.Mean, d.b.Mean}, {"p50", d.a.P50, d.b.P50}, {"p99", d.a.P99, d.b.P99}} {
			fmt.Printf("  %-10s %9.2f ms %9.2f ms %12.3f\n", d.name+" "+v.name, v.a, v.b, v.b/v.a)
		}
	}
	fmt.Printf("  %-10s %10.2f %% %10.2f %% %+5.2f points\n", "cached", 100*a.CachedShare, 100*b.CachedShare, cachedSharePoints(a, b))
	fmt.Printf("  %-10s %12.2f %12.2f %12.3f\n", "imbalance", a.Imbalance, b.Imbalance, b.Imbalance/a.Imbalance)
	fmt.Printf("  %-10s %12d %12d\n", "errors", a.Errors, b.Errors)
	if b.Lateness != nil {
		fmt.Printf("  %-10s %12s %9.2f ms\n", "late p99", "", b.Lateness.P99)
	}
}

// cachedSharePoints is how much more of its prompts b found in caches, in percentage points.
func cachedSharePoints(a, b *replay.Row) float64 { return 100 * (b.CachedShare - a.CachedShare) }

// checkDistance lists the excessive differences of two rows.
func checkDistance(policy string, workers int, a, b *replay.Row) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s, %d workers: "+format, append([]any{policy, workers}, args...)...))
	}
	if b.Errors > a.Errors {
		bad("%d errors in real time, %d in replay", b.Errors, a.Errors)
	}
	if ratio := b.TTFT.Mean / a.TTFT.Mean; !(math.Abs(ratio-1) <= maxTTFTDistance) {
		bad("a mean time to the first token of %.3f times that of replay", ratio)
	}
	if p := cachedSharePoints(a, b); !(math.Abs(p) <= maxShareDistance) {
		bad("a cached share %.2f points from that of replay", p)
	}
	return errors.Join(errs...)
}

func formatDecimal(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
