// Command index measures core/prefix beside the simplest structure which can answer the same query: an
// open-addressing table with a bitmap of workers for each prefix, in which a prompt's blocks are looked up
// one after the other. Both are in one process, hold the same data and get the same queries, in turns, so
// that their ratio is meaningful on any machine. For information the same table is also queried by doubling
// steps, which is faster and finds only the best length. An oracle has the truth; the program fails if an
// answer for any worker differs.
//
//	go run ./bench/index                              # a generated workload
//	go run ./bench/index -trace mooncake.jsonl -json
//	go run ./bench/index -check -trace mooncake.jsonl # the whole trace against the oracle, with evictions
//	go run ./bench/index -churn 10000000              # does memory come back?
//
// It prints tables, then the same figures in the format of "go test -bench", for tools/benchjson;
// tools/bench/index.sh runs it and docs/index.md explains the figures.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// indexSettings are the flags.
type indexSettings struct {
	trace      string
	requests   int
	workers    []int
	prompt     int
	window     time.Duration
	rounds     int
	evictEvery int
	memory     int64
	json       bool
	check      bool
	cache      int
	churn      int
}

func main() {
	s, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/index:", err)
		os.Exit(2)
	}
	if err := s.runAll(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/index:", err)
		os.Exit(1)
	}
}

func parseFlags() (indexSettings, error) {
	var s indexSettings
	var errs [2]error
	workers := flag.String("workers", "8,64,256,7000,7000+", "numbers of workers; with + all of them hold a common prompt before each request")
	flag.StringVar(&s.trace, "trace", "", "file of requests in Mooncake's form; empty is a workload that is made up")
	flag.IntVar(&s.requests, "requests", 0, "the first so many requests; 0 is all")
	flag.IntVar(&s.prompt, "prompt", 4, "blocks of 512 tokens of that common prompt")
	flag.DurationVar(&s.window, "for", time.Second, "how long each measurement takes")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds of each throughput, of which the median counts")
	flag.IntVar(&s.evictEvery, "evict", 1000, "one block in so many is evicted wherever it is, before the last measurements")
	flag.Int64Var(&s.memory, "memory", 3<<30, "bytes that the baseline may take; beyond, the first requests that fit are measured")
	flag.BoolVar(&s.json, "json", false, "print one JSON document instead of tables")
	flag.BoolVar(&s.check, "check", false, "measure nothing: replay the workload against the oracle, with bounded caches")
	flag.IntVar(&s.cache, "cache", 16_384, "with -check: blocks of 16 tokens that a worker's cache has")
	flag.IntVar(&s.churn, "churn", 0, "measure nothing: apply so many events with prefix and worker churn, and look at the heap")
	flag.Parse()
	if flag.NArg() > 0 {
		errs[0] = fmt.Errorf("%q is no flag: the trace is given with -trace", flag.Arg(0))
	}
	if s.window <= 0 || s.rounds < 1 || s.evictEvery < 1 || s.prompt < 1 || s.cache < 1 || s.requests < 0 || s.churn < 0 {
		errs[1] = errors.New("-for, -rounds, -evict, -prompt and -cache must be above 0, -requests and -churn not below")
	}
	for word := range strings.SplitSeq(*workers, ",") {
		digits, common := strings.CutSuffix(word, "+")
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 {
			return s, fmt.Errorf("-workers: %q is not a number above 0", word)
		}
		if common {
			n = -n
		}
		s.workers = append(s.workers, n)
	}
	return s, errors.Join(errs[:]...)
}

func (s *indexSettings) runAll() error {
	if s.churn > 0 {
		return runChurn(os.Stdout, s.churn)
	}
	w, err := s.openWorkload()
	if err != nil {
		return err
	}
	if s.check {
		return s.checkReplay(w)
	}
	var r indexReport
	r.addNote("%s", w)
	wrong := s.measureSetups(w, &r)
	if s.json {
		return errors.Join(r.printJSON(os.Stdout), wrong)
	}
	err = r.printTables(os.Stdout)
	r.printBenchLines(os.Stdout)
	return errors.Join(err, wrong)
}

// measureSetups adds the figures of all setups to r, until one is wrong.
func (s *indexSettings) measureSetups(w *requestSet, r *indexReport) error {
	for _, n := range s.workers {
		set, err := s.newSetup(w, n)
		if err != nil {
			return err
		}
		if set.requestSet != w {
			r.addNote("%s: %s", set, set.requestSet)
		}
		b := setupBench{clusterSetup: set, indexReport: r, window: s.window, rounds: s.rounds, evictEvery: s.evictEvery, sample: len(w.requests)}
		if set.workers > 1000 {
			b.sample = 150 // the oracle visits all holders of each block
		}
		if err := b.runSteps(); err != nil {
			return err
		}
	}
	return nil
}

// openWorkload reads or generates the workload.
func (s *indexSettings) openWorkload() (*requestSet, error) {
	name, prompts := "made up", [][]uint64(nil)
	if s.trace == "" {
		prompts = makePrompts(madeRequests)
	} else {
		var err error
		if prompts, err = readTrace(s.trace); err != nil {
			return nil, err
		}
		name = "trace"
	}
	w, err := newRequestSet(name, prompts)
	if err != nil {
		return nil, err
	}
	return w.firstRequests(s.requests)
}

// newSetup returns the cluster of n workers, or of -n with a common prompt, with as many requests as the
// baseline has room for.
func (s *indexSettings) newSetup(w *requestSet, n int) (_ *clusterSetup, err error) {
	out := &clusterSetup{workers: max(n, -n), requestSet: w}
	for requests := len(w.requests); ; requests = requests * 3 / 4 {
		if out.requestSet, err = w.firstRequests(requests); err != nil {
			return nil, err
		}
		if int64(bitmapBytes(out.workers, out.unique)) <= s.memory || requests < 2 {
			break
		}
	}
	if n < 0 {
		out.commonBlocks = s.prompt * blocksPerID
		out.requestSet, err = out.withCommonPrompt(s.prompt)
	}
	return out, err
}
