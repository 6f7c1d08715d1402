// Command replicas measures the cost of two routers in a fleet, and the benefit of exchanging their requests.
// For each of three modes (one router; two which know only their own requests; two which exchange them) it
// starts a fleet of real processes: one with the NATS server inside, the workers of the simulated engine, and
// the frontends, each with its router inside. It sends the same workload, alternating between the frontends,
// and prints how evenly the workers were loaded and how much of the prompts they had cached.
//
//	go build -o penstock ./cmd/penstock && go run ./bench/replicas -bin ./penstock
//
// It prints its figures as tables and, with -json, as one document. The workload and its send times depend
// only on the seed; the rest varies with real time.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// runTimeout bounds the whole run.
const runTimeout = 15 * time.Minute

// replicaSettings are the flags.
type replicaSettings struct {
	bin      string
	workers  int
	requests int
	rate     float64 // requests a second
	generate string
	blocks   int     // of a worker's cache
	speedup  float64 // of the engines
	seed     uint64
	asJSON   bool
}

func main() {
	var s replicaSettings
	flag.StringVar(&s.bin, "bin", "./penstock", "the binary")
	flag.IntVar(&s.workers, "workers", 64, "workers, each a process")
	flag.IntVar(&s.requests, "requests", 2000, "requests of each way")
	flag.Float64Var(&s.rate, "rate", 40, "requests a second")
	flag.StringVar(&s.generate, "generate", "shared:groups=256,prefix=4096,input=1024,output=128", "the workload, as for penstock replay")
	flag.IntVar(&s.blocks, "blocks", 16384, "KV-cache blocks of a worker, of 16 tokens")
	flag.Float64Var(&s.speedup, "sim-speedup", 0.5, "how many times as fast the engines are as their model of time says")
	flag.Uint64Var(&s.seed, "seed", 1, "of the workload")
	flag.BoolVar(&s.asJSON, "json", false, "print one JSON document")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	if err := s.runAll(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench/replicas:", err)
		cancel()
		stop()
		os.Exit(1)
	}
}

// routingMode is how the fleet is routed.
type routingMode struct {
	name      string
	frontends int
	sync      string
}

// replicaDocument is the output of -json.
type replicaDocument struct {
	Workers  int       `json:"workers"`
	Requests int       `json:"requests"`
	Rate     float64   `json:"requests_per_s"`
	Workload string    `json:"workload"`
	Blocks   int       `json:"blocks_per_worker"`
	Speedup  float64   `json:"sim_speedup"`
	Rows     []modeRow `json:"rows"`
}

func (s *replicaSettings) runAll(ctx context.Context) error {
	out := replicaDocument{
		Workers: s.workers, Requests: s.requests, Rate: s.rate, Workload: s.generate, Blocks: s.blocks, Speedup: s.speedup,
	}
	for _, w := range []routingMode{{"one router", 1, "on"}, {"two, sync off", 2, "off"}, {"two, sync on", 2, "on"}} {
		fmt.Fprintf(os.Stderr, "%s: %d workers, %d requests\n", w.name, s.workers, s.requests)
		r, err := s.measureMode(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		out.Rows = append(out.Rows, r)
	}
	if s.asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(out)
	}
	printTable(out.Rows)
	return nil
}

func printTable(rows []modeRow) {
	fmt.Printf("%-14s %8s %6s %9s %9s %13s %14s %14s %9s\n", "ROUTERS", "REQUESTS", "ERRORS", "CACHED %", "IMBALANCE", "BUSIEST NOW", "MEAN NOW", "TTFT MEAN ms", "P99 ms")
	for _, r := range rows {
		fmt.Printf("%-14s %8d %6d %9.2f %9.3f %13.2f %14.2f %14.1f %9.1f\n", r.Routers, r.Requests, r.Errors, 100*r.CachedShare, r.Imbalance, r.Busiest, r.Active, r.TTFTMean, r.TTFTP99)
	}
	fmt.Println("IMBALANCE: the work of the worker that did most, over the mean; BUSIEST NOW: requests at the worker that has most of them at a moment, averaged over time; MEAN NOW: at all of them.")
	for _, r := range rows {
		if r.Late {
			fmt.Printf("%s: the client was late: the machine had too much else to do for its times to mean anything.\n", r.Routers)
		}
	}
}

func formatDecimal(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
