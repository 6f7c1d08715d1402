// Command agree compares the simulation in virtual time with the same engines in real time: it sends a
// workload with "penstock bench" to "penstock up --engine sim", runs "penstock replay" on the same workload
// with the same settings, and reports the differences. Before that it sends single requests and compares
// their times with the formulas of docs/sim.md and with the times of a server whose engine takes no time: the
// rest is HTTP, the tokenizer, the router and the client.
//
// It prints its figures as tables and in the format of "go test -bench", for tools/benchjson;
// tools/bench/agree.sh runs it. It fails if a mean time to the first token is off by more than 10 % or a
// cached share by more than 2 points.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// agreeSettings are the flags.
type agreeSettings struct {
	command      []string // the binary, after its wrapper command
	workload     []string // flags that bench and replay share
	requests     int
	arrival      float64 // divisor of the workload's send times
	engine       float64 // speed-up of the engines
	workers      []int
	policies     []string
	blocks       int  // per worker
	generated    bool // the workload is generated
	extraReplays int  // further replay runs, for the spread
	single       []int
}

// defaultWorkload has mostly shared prompts, of more groups than one worker can cache, at about two thirds of
// the throughput of 8 workers with round-robin.
const defaultWorkload = "shared:requests=1500,rate=12,groups=48,prefix=8192,input=2048,output=128"

func main() {
	s, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/agree:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.runAll(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench/agree:", err)
		stop()
		os.Exit(1)
	}
}

func parseFlags() (agreeSettings, error) {
	var s agreeSettings
	bin := flag.String("bin", "./penstock", "the binary")
	under := flag.String("under", "", "command that server and client are started with, such as 'chrt -f 1'")
	trace := flag.String("trace", "", "file with the requests; empty is a workload that is made up")
	generate := flag.String("generate", defaultWorkload, "that workload")
	workers := flag.String("workers", "8", "numbers of workers")
	policies := flag.String("policies", "kv,round-robin,random", "policies of the router")
	single := flag.String("single", "1000,4096,8192,32768", "prompt tokens of single requests; empty leaves them out")
	flag.IntVar(&s.requests, "requests", 0, "the first so many requests; 0 is all")
	flag.Float64Var(&s.arrival, "speedup", 1, "divides the moments of the workload")
	flag.Float64Var(&s.engine, "sim-speedup", 1, "how many times as fast the engines are")
	flag.IntVar(&s.blocks, "blocks", blocks, "KV-cache blocks of a worker, of the workload's runs")
	flag.IntVar(&s.extraReplays, "others", 5, "more runs of replay, a little different, to show what chance does")
	flag.Parse()
	if flag.NArg() > 0 {
		return s, fmt.Errorf("%q is no flag: the trace is given with -trace", flag.Arg(0))
	}
	s.command = append(strings.Fields(*under), *bin)
	s.generated = *trace == ""
	s.workload = []string{"--trace", *trace}
	if s.generated {
		s.workload = []string{"--generate", *generate}
	}
	s.policies = strings.Split(*policies, ",")
	var errs [2]error
	s.workers, errs[0] = parseNumbers(*workers)
	s.single, errs[1] = parseNumbers(*single)
	return s, errors.Join(errs[:]...)
}

func parseNumbers(list string) (out []int, err error) {
	for _, word := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number above 0", word)
		}
		out = append(out, n)
	}
	return out, nil
}

// runAll measures everything, and then lists the excessive differences.
func (s *agreeSettings) runAll(ctx context.Context) error {
	fmt.Println("pkg: penstock/bench/agree")
	var errs []error
	if len(s.single) > 0 {
		if err := s.measureSingles(ctx); err != nil {
			return err
		}
	}
	for _, workers := range s.workers {
		for _, policy := range s.policies {
			off, err := s.compareRuns(ctx, policy, workers)
			if err != nil {
				return err
			}
			errs = append(errs, off)
		}
	}
	return errors.Join(errs...)
}
