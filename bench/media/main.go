// Command media measures the cost and the benefit of routing by the media of requests.
//
// path: the media of one request are resolved, counted, put into the prompt and hashed, for 1, 4 and 10
// images of 1280 by 720 pixels (JPEG) by Qwen2-VL's rules, by each identity: as data: URIs, and by URLs of a
// server on this machine, seen before or not. Beside it, in the same run: the standard library's time for the
// sizes and SHA-256 of the same data: URIs, and the same request without images.
//
// pool: simulated workers, and requests with one image each of a pool of 1,024, four fifths of them repeated,
// routed by cache, at the default weight of reuse and at four times that, and round-robin; the cached share
// and the time to the first token.
//
//	go build -o penstock ./cmd/penstock && go run ./bench/media -bin ./penstock
//
// It prints its figures as tables and, with -json, as one document.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"penstock/bench/child"
)

// runTimeout bounds the whole run.
const runTimeout = 15 * time.Minute

// mediaSettings are the flags.
type mediaSettings struct {
	bin      string
	only     string
	each     time.Duration
	workers  int
	blocks   int
	requests int
	rate     float64
	pool     int
	asJSON   bool
}

// mediaDocument is the output of -json.
type mediaDocument struct {
	Path []pathRow `json:"path,omitempty"`
	Pool []poolRow `json:"pool,omitempty"`
	// Workload is the pool's.
	Workload string `json:"pool_workload,omitempty"`
}

func main() {
	var s mediaSettings
	flag.StringVar(&s.bin, "bin", "./penstock", "the binary")
	flag.StringVar(&s.only, "only", "", "path or pool; empty is both")
	flag.DurationVar(&s.each, "each", time.Second, "how long each row of path is measured")
	flag.IntVar(&s.workers, "workers", 4, "simulated workers")
	flag.IntVar(&s.blocks, "blocks", 8192, "KV-cache blocks of a worker, of 16 tokens")
	flag.IntVar(&s.requests, "requests", 5120, "requests of each way of routing")
	flag.Float64Var(&s.rate, "rate", 60, "requests a second")
	flag.IntVar(&s.pool, "pool", 1024, "pictures")
	flag.BoolVar(&s.asJSON, "json", false, "print one JSON document")
	flag.Parse()
	child.Main("bench/media", runTimeout, s.runAll)
}

func (s *mediaSettings) runAll(ctx context.Context) error {
	var out mediaDocument
	var err error
	if s.only != "pool" {
		if out.Path, err = s.measurePath(ctx); err != nil {
			return fmt.Errorf("path: %w", err)
		}
	}
	if s.only != "path" {
		out.Workload = s.describeWorkload()
		if out.Pool, err = s.measurePool(ctx); err != nil {
			return fmt.Errorf("pool: %w", err)
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

func (d *mediaDocument) printTables() {
	if len(d.Path) > 0 {
		fmt.Printf("%-9s %-8s %-12s %9s %10s %12s %14s %12s\n", "PICTURES", "IDENTITY", "FROM", "TOKENS", "us", "STD LIB us", "OF STD LIB", "TEXT us")
		for _, r := range d.Path {
			fmt.Printf("%-9d %-8s %-12s %9d %10.0f %12.0f %14.2f %12.0f\n", r.Pictures, r.Identity, r.From, r.Tokens, r.Micros, r.Standard, r.Micros/r.Standard, r.Text)
		}
		fmt.Println("us: of one request, one at a time; STD LIB: base64, image.DecodeConfig and SHA-256 of the same pictures; TEXT: the same request without pictures.")
	}
	if len(d.Pool) > 0 {
		fmt.Printf("\n%s\n%-14s %8s %6s %9s %14s %13s %13s\n", d.Workload, "ROUTED BY", "REQUESTS", "ERRORS", "CACHED %", "TTFT MEAN ms", "P50 ms", "P99 ms")
		for _, r := range d.Pool {
			fmt.Printf("%-14s %8d %6d %9.2f %14.1f %13.1f %13.1f\n", r.Routing, r.Requests, r.Errors, 100*r.CachedShare, r.TTFTMean, r.TTFTP50, r.TTFTP99)
		}
	}
}
