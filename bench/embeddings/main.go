// Command embeddings measures what embedding caches and encode workers save: with the cache off, with one in each
// worker, with workers which ask one another, and with encode workers. It counts how often an encoder ran, and measures
// throughput and the time to the first token, for pictures of which a share was shown before, for pictures of which none
// was, and for pictures which eight workers miss at once.
//
// real: fleets of processes of engine tiny on this machine, one for each way, which take turns with the same requests,
// so that what else the machine does hits all of them. Requests begin with text of their own: the KV cache has no
// picture.
//
// simulated: penstock replay with the same shares, at the sizes of an 8B model on GPUs, also for conversations which
// show a window of pictures.
//
//	go build -o penstock ./cmd/penstock && go run ./bench/embeddings -bin ./penstock
//
// region: rows in the memory of another process of this host, copied out as a worker does, beside a plain loop of copy and
// digest over memory of the own process, and beside memcpy. Ratios are to the plain loop.
//
// Ratios are otherwise to the row with the cache off. It prints tables and, with -json, one document.
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

// runTimeout bounds the whole run, also on a machine with much other work.
const runTimeout = 2 * time.Hour

// settings are the flags.
type settings struct {
	bin      string
	only     string
	requests int
	repeated float64
	turns    int
	streams  int
	side     int
	seed     uint64
	asJSON   bool
	owner    int // the program is an owner of rows of so many bytes
}

// row is one way with one traffic. Times are in milliseconds.
type row struct {
	Traffic string `json:"traffic"`
	Encoder string `json:"encoder,omitempty"` // model of its time, if simulated
	Way     string `json:"way"`
	// Workers serve, EncodeWorkers encode.
	Workers       int `json:"workers"`
	EncodeWorkers int `json:"encode_workers"`
	Requests      int `json:"requests"`
	Errors        int `json:"errors"`
	// Pictures were shown, Different of them are different ones, and EncoderRuns is how often an encoder ran.
	Pictures    int64 `json:"pictures"`
	Different   int   `json:"different"`
	EncoderRuns int64 `json:"encoder_runs"`
	// HitShare is the hits' share of look-ups in embedding caches of workers which serve.
	HitShare float64 `json:"hit_share"`
	// Misses are the other look-ups, and Fetched the pictures whose rows came from a worker which held them, if simulated.
	Misses            int64   `json:"misses"`
	Fetched           int64   `json:"fetched,omitempty"`
	TTFTMean          float64 `json:"ttft_mean_ms"`
	TTFTP50           float64 `json:"ttft_p50_ms"`
	TTFTP90           float64 `json:"ttft_p90_ms"`
	TTFTP99           float64 `json:"ttft_p99_ms"`
	RequestsPerSecond float64 `json:"requests_per_s"`
	// Ratios to the row of the same traffic with the cache off.
	TTFTMeanRatio   float64 `json:"ttft_mean_ratio"`
	TTFTP99Ratio    float64 `json:"ttft_p99_ratio"`
	ThroughputRatio float64 `json:"throughput_ratio"`
}

// document is the output of -json.
type document struct {
	Baseline  string `json:"baseline"`
	Real      []row  `json:"real,omitempty"`
	Simulated []row  `json:"simulated,omitempty"`
	Region    []rate `json:"region,omitempty"`
	// AtOnce are pictures which several workers miss at once.
	AtOnce []row `json:"at_once,omitempty"`
	// RealWorkload and SimulatedWorkload describe what was sent.
	RealWorkload      string `json:"real_workload,omitempty"`
	SimulatedWorkload string `json:"simulated_workload,omitempty"`
}

func main() {
	var s settings
	flag.StringVar(&s.bin, "bin", "./penstock", "the binary")
	flag.StringVar(&s.only, "only", "", "real, simulated or region; empty is all")
	flag.IntVar(&s.owner, "owner", 0, "used by the program itself")
	flag.IntVar(&s.requests, "requests", 1024, "requests of each way, a picture each")
	flag.Float64Var(&s.repeated, "repeated", 0.8, "share of the pictures that were shown before")
	flag.IntVar(&s.turns, "turns", 8, "turns which each fleet takes")
	flag.IntVar(&s.streams, "streams", 4, "requests at once to a fleet")
	flag.IntVar(&s.side, "side", 224, "side of a picture in pixels")
	flag.Uint64Var(&s.seed, "seed", 1, "seed of the workloads")
	flag.BoolVar(&s.asJSON, "json", false, "print one JSON document")
	flag.Parse()
	child.Main("bench/embeddings", runTimeout, s.runAll)
}

func (s *settings) runAll(ctx context.Context) (err error) {
	if s.owner > 0 {
		return serveRegion(ctx, s.owner)
	}
	out := document{Baseline: wayOff}
	if s.only == "" || s.only == "region" {
		if out.Region, err = measureRegions(ctx); err != nil {
			return fmt.Errorf("region: %w", err)
		}
	}
	if s.only == "" || s.only == "real" {
		out.RealWorkload = s.describeReal()
		if out.Real, err = s.measureFleets(ctx); err != nil {
			return fmt.Errorf("real: %w", err)
		}
	}
	if s.only == "" || s.only == "simulated" {
		out.SimulatedWorkload = s.describeSimulated()
		if out.Simulated, err = s.simulateAll(ctx); err != nil {
			return fmt.Errorf("simulated: %w", err)
		}
	}
	if out.AtOnce, err = s.measureMisses(ctx); err != nil {
		return fmt.Errorf("misses at once: %w", err)
	}
	setRatios(out.Real)
	setRatios(out.Simulated)
	setRatios(out.AtOnce)
	if s.asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(out)
	}
	printRates(out.Region)
	printTable("real: "+out.RealWorkload, out.Real)
	printTable("simulated: "+out.SimulatedWorkload, out.Simulated)
	printTable(fmt.Sprintf("missed at once: %d requests for each picture, one to each of %d workers", missWorkers, missWorkers), out.AtOnce)
	return nil
}

// The ways of real and of simulated workers: wayOff is the baseline.
const (
	wayOff      = "cache off"
	wayAlone    = "a cache in each worker"
	wayShared   = "workers ask one another"
	waySessions = "…, sessions stay"
)

// setRatios compares rows with that of the same traffic with the cache off, which comes first.
func setRatios(rows []row) {
	var off *row
	for i := range rows {
		r := &rows[i]
		if r.Way == wayOff {
			off = r
		}
		if off != nil && off.TTFTMean > 0 && off.TTFTP99 > 0 && off.RequestsPerSecond > 0 {
			r.TTFTMeanRatio, r.TTFTP99Ratio = r.TTFTMean/off.TTFTMean, r.TTFTP99/off.TTFTP99
			r.ThroughputRatio = r.RequestsPerSecond / off.RequestsPerSecond
		}
	}
}

func printTable(title string, rows []row) {
	if len(rows) == 0 {
		return
	}
	fmt.Printf("%s\n%-24s %-16s %-26s %8s %9s %8s %7s %9s %9s %9s %9s %8s %9s %9s %9s\n", title, "TRAFFIC", "ENCODER", "WAY",
		"PICTURES", "DIFFERENT", "ENCODED", "HITS %", "TTFT ms", "p50", "p90", "p99", "REQ/S", "TTFT ×", "p99 ×", "REQ/S ×")
	for _, r := range rows {
		fmt.Printf("%-24s %-16s %-26s %8d %9d %8d %7.1f %9.1f %9.1f %9.1f %9.1f %8.2f %9.2f %9.2f %9.2f\n", r.Traffic, r.Encoder, r.Way, r.Pictures, r.Different,
			r.EncoderRuns, 100*r.HitShare, r.TTFTMean, r.TTFTP50, r.TTFTP90, r.TTFTP99, r.RequestsPerSecond, r.TTFTMeanRatio, r.TTFTP99Ratio, r.ThroughputRatio)
	}
	fmt.Println()
}
