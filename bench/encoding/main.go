// Command encoding measures what the lifecycle of media in requests (core/encode) costs, and what memory it holds.
//
// benchmarks: the figures of go test -bench in a file, beside the bounds which a published description of such a lifecycle
// states: submit, merge, staging.
//
// memory: a shell of this program runs the machine of core/encode with encoders which really write rows into memory of
// the system and copy them into staging memory: 100 videos of 125 MB of rows at once, within budgets which hold a few of
// them; and 64 requests with pictures and videos. The resident memory of this process is read from the kernel, and every
// row is checked where it is merged.
//
//	tools/bench/encoding.sh
//
// It prints tables and, with -json, one document. It needs Linux.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// encodingSettings are the flags.
type encodingSettings struct {
	benchmarks string
	cpu        int64
	staging    int64
	encoders   int
	asJSON     bool
}

// encodingDocument is the output of -json.
type encodingDocument struct {
	Go         string           `json:"go"`
	CPUs       int              `json:"cpus"`
	Benchmarks []benchmark      `json:"benchmarks,omitempty"`
	Videos     memoryFigures    `json:"videos"`
	Requests   memoryFigures    `json:"requests"`
	Chart      []chartRow       `json:"chart"`
	Violations []string         `json:"violations,omitempty"`
	Budgets    map[string]int64 `json:"budgets"`
}

func main() {
	var s encodingSettings
	flag.StringVar(&s.benchmarks, "benchmarks", "", "a file with the output of go test -bench")
	flag.Int64Var(&s.cpu, "cpu", 1_000_000_000, "budget for encoded rows in bytes")
	flag.Int64Var(&s.staging, "staging", 500_000_000, "budget for staged rows in bytes")
	flag.IntVar(&s.encoders, "encoders", 4, "encoders, each a goroutine")
	flag.BoolVar(&s.asJSON, "json", false, "print one JSON document")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.runAll(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench/encoding:", err)
		os.Exit(1)
	}
}

func (s *encodingSettings) runAll(ctx context.Context) (err error) {
	out := encodingDocument{Go: runtime.Version(), CPUs: runtime.NumCPU(), Budgets: map[string]int64{"cpu": s.cpu, "staging": s.staging}}
	if s.benchmarks != "" {
		if out.Benchmarks, err = readBenchmarks(s.benchmarks); err != nil {
			return err
		}
	}
	if out.Videos, err = s.measureMemory(ctx, videoRequests()); err != nil {
		return fmt.Errorf("videos: %w", err)
	}
	mixed := mixedRequests()
	if out.Requests, err = s.measureMemory(ctx, mixed); err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	out.Chart = chartOf(mixed, &out.Requests)
	out.Violations = findViolations(s, &out)
	if s.asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", " ")
		err = e.Encode(out)
	} else {
		printTables(os.Stdout, s, &out)
	}
	if len(out.Violations) > 0 {
		return errors.Join(err, fmt.Errorf("%d figures are beyond their bounds: %q", len(out.Violations), out.Violations))
	}
	return err
}
