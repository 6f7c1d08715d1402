package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"penstock/internal/replay"
)

const (
	singleTokens    = 64   // per response
	singleRequests  = 12   // of each length
	tokensPerPass   = 8192 // the engine's defaults
	tokensPerBlock  = 16
	blocks          = 65536
	zeroTimeSpeedup = "1000000" // a speed-up with which the engine takes no time
)

// measureSingles sends requests one after another to one worker, and prints their times beside the formulas
// and beside the times of an engine which takes no time.
func (s *agreeSettings) measureSingles(ctx context.Context) error {
	fmt.Printf("\nSingle requests: medians in ms; over is what the median is over the formula, alone the median where the engine takes no time\n")
	fmt.Printf("  %6s %31s %9s %9s   %31s %9s %9s\n", "prompt", "TTFT: formula, replay, bench", "over", "alone", "ITL: formula, replay, bench", "over", "alone")
	for _, prompt := range s.single {
		timed, err := s.runSingleBench(ctx, prompt, "1")
		if err != nil {
			return err
		}
		alone, err := s.runSingleBench(ctx, prompt, zeroTimeSpeedup)
		if err != nil {
			return err
		}
		virtual, err := s.runAndReadRow(ctx, append([]string{"replay", "--policy", "round-robin", "--workers", "1", "--arrival", "uniform", "--rate", "0.01"}, singleWorkload(prompt)...)...)
		if err != nil {
			return err
		}
		first, between := expectedTimes(prompt)
		f, i := timed.TTFT.P50, timed.ITL.P50
		fmt.Printf("  %6d %10.3f %9.3f %10.3f %9.3f %9.3f   %10.3f %9.3f %10.3f %9.3f %9.3f\n",
			prompt, first, virtual.TTFT.Mean, f, f-first, alone.TTFT.P50, between, virtual.ITL.Mean, i, i-between, alone.ITL.P50)
		fmt.Printf("BenchmarkSingle/prompt=%d %d %.4f formula-ttft-ms %.4f replay-ttft-ms %.4f bench-ttft-ms %.4f alone-ttft-ms %.4f formula-itl-ms %.4f replay-itl-ms %.4f bench-itl-ms %.4f alone-itl-ms\n",
			prompt, timed.Requests, first, virtual.TTFT.Mean, f, alone.TTFT.P50, between, virtual.ITL.Mean, i, alone.ITL.P50)
	}
	return nil
}

// singleWorkload are the flags of a workload of prompts of one length which share nothing.
func singleWorkload(prompt int) []string {
	return []string{"--generate", fmt.Sprintf("random:requests=%d,input=%d,output=%d,vary=0", singleRequests, prompt, singleTokens)}
}

// runSingleBench sends single requests to a server of one worker.
func (s *agreeSettings) runSingleBench(ctx context.Context, prompt int, speedup string) (_ *replay.Row, err error) {
	srv, err := s.startServer(1, "--sim-speedup", speedup)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, srv.stopServer()) }()
	return s.runAndReadRow(ctx, append([]string{"bench", "--url", srv.url, "--concurrency", "1", "--requests", strconv.Itoa(singleRequests)}, singleWorkload(prompt)...)...)
}

// expectedTimes returns the time to the first token and the mean time between tokens of a request alone on a
// worker, in ms, by docs/sim.md for the preset mocker.
func expectedTimes(prompt int) (first, between float64) {
	for left := prompt; left > 0; left -= tokensPerPass {
		t := float64(min(left, tokensPerPass))
		first += 16.50142 + 1.518344e-2*t + 4.209989e-7*t*t
	}
	decode := func(tokens int) float64 {
		p := float64((tokens+tokensPerBlock-1)/tokensPerBlock) / blocks
		return max(1, 5.74+54.01*p-25.74*p*p)
	}
	first += decode(prompt)
	for i := 1; i < singleTokens; i++ {
		between += decode(prompt+i) / (singleTokens - 1)
	}
	return first, between
}
