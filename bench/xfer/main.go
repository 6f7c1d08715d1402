// Command xfer measures the transfer plane between two processes of this machine, and beside it, in
// the same run and in turns, what the machine can do without it.
//
//	go run ./bench/xfer [-each 300ms] [-rounds 7] [-json]
//
// Shared memory is compared with a plain loop of copy, digest, copy in one goroutine; memcpy is
// stated beside it. TCP over loopback is compared with a bare Go TCP stream between the same two
// processes, which computes no digest, and with iperf3 if it is installed. Transfers of 64 KiB are
// measured with 16 in flight, larger ones one at a time. Every figure is the median of the rounds.
// The second part has the latency of a single transfer of 64 KiB, alone and beside 16 bulk ones of
// 64 MiB. The third compares digests.
//
// This process is the owner; it starts itself again as the writer.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// runTimeout bounds the whole run.
const runTimeout = 10 * time.Minute

// settings are the flags.
type settings struct {
	each   time.Duration
	rounds int
	bytes  int
	asJSON bool
	writer string // not empty in the writer
	failed error  // of a measurement
}

// document is the output of -json.
type document struct {
	Machine string `json:"machine"`
	// Load is the system's load averages before the run: other processes change the ratios.
	Load     string         `json:"load_before"`
	Rates    []rateRow      `json:"rates"`
	Latency  []latencyRow   `json:"latency"`
	Digests  []digestRow    `json:"digests"`
	Settings map[string]any `json:"settings"`
}

func main() {
	var s settings
	flag.DurationVar(&s.each, "each", 300*time.Millisecond, "how long one measurement takes, at least")
	flag.IntVar(&s.rounds, "rounds", 7, "measurements of each figure")
	flag.IntVar(&s.bytes, "bytes", 0, "measure only the rates of this size; 0 is everything")
	flag.BoolVar(&s.asJSON, "json", false, "print one JSON document")
	flag.StringVar(&s.writer, "writer", "", "used by the program itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	var err error
	if s.writer != "" {
		err = serveWriter(ctx, s.writer)
	} else {
		err = s.runAll(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/xfer:", err)
		cancel()
		stop()
		os.Exit(1)
	}
}

func (s *settings) runAll(ctx context.Context) error {
	out := document{
		Machine:  fmt.Sprintf("%s/%s, %d processors", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
		Settings: map[string]any{"each": s.each.String(), "rounds": s.rounds, "go": runtime.Version(), "scheduling": schedulingPolicy()},
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		out.Load = strings.TrimSpace(string(load))
	}
	if s.bytes == 0 {
		out.Digests = s.measureDigests()
	}
	pair, err := startPair(ctx)
	if err != nil {
		return err
	}
	defer pair.close()
	if out.Rates, err = s.measureRates(ctx, pair); err != nil {
		return err
	}
	if s.bytes == 0 {
		if out.Latency, err = s.measureLatency(ctx, pair); err != nil {
			return err
		}
	}
	if s.asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(out)
	}
	out.printTables()
	return nil
}

// schedulingPolicy is the policy of this process and of processes which it starts. Under a real-time one, processes of
// others do not disturb it.
func schedulingPolicy() string {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return "unknown"
	}
	// The name, in parentheses, may have spaces; the policy is field 41.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 39 {
		return "unknown"
	}
	return map[string]string{"0": "normal", "1": "fifo", "2": "round-robin", "3": "batch"}[fields[38]]
}

func (d *document) printTables() {
	fmt.Printf("%-6s %8s %6s %9s %10s  %s\n", "PLANE", "BYTES", "FLIGHT", "GB/s", "CPU us/MiB", "OF")
	for _, r := range d.Rates {
		fmt.Printf("%-6s %8d %6d %9.2f %10.0f ", r.Plane, r.Bytes, r.InFlight, r.GBps, r.CPU)
		for _, b := range r.Baselines {
			fmt.Printf(" %s %.2f GB/s (%.0f %%, CPU %.0f)", b.Name, b.GBps, 100*b.Ratio, b.CPU)
		}
		fmt.Println()
	}
	fmt.Printf("\n%-6s %8s %10s %10s %10s\n", "PLANE", "BESIDE", "P50 us", "P99 us", "SAMPLES")
	for _, r := range d.Latency {
		fmt.Printf("%-6s %8d %10.1f %10.1f %10d\n", r.Plane, r.Beside, r.P50, r.P99, r.Samples)
	}
	fmt.Printf("\n%-10s %8s %9s\n", "DIGEST", "BYTES", "GB/s")
	for _, r := range d.Digests {
		fmt.Printf("%-10s %8d %9.2f\n", r.Digest, r.Bytes, r.GBps)
	}
}
