// Command planes measures the cost of requests between processes: the same load, in one run, through one
// process (penstock up) and through three (a frontend, a worker, and a process with the NATS server), for
// each number of clients. The two alternate, so that other load on the machine affects both.
//
//	go build -o penstock ./cmd/penstock
//	go run ./test/planes -bin ./penstock
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"penstock/test/fleet"
)

func main() {
	p := planeComparison{}
	flag.StringVar(&p.bin, "bin", "./penstock", "the binary to measure")
	flag.StringVar(&p.plane, "request-plane", "tcp", "what requests travel over between the three: tcp, http or nats")
	clients := flag.String("clients", "1,8,32", "numbers of clients")
	flag.DurationVar(&p.turnLength, "turn", 3*time.Second, "how long one of the two is measured at a time")
	flag.IntVar(&p.turnCount, "turns", 4, "turns of each, per number of clients")
	flag.IntVar(&p.tokens, "tokens", 32, "tokens of each answer")
	flag.Parse()
	for _, n := range strings.Split(*clients, ",") {
		c, err := strconv.Atoi(n)
		if err != nil || c < 1 {
			fmt.Fprintf(os.Stderr, "planes: -clients: %q is not a number of clients\n", n)
			os.Exit(2)
		}
		p.clients = append(p.clients, c)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := p.runComparison(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "planes:", err)
		os.Exit(1)
	}
}

type planeComparison struct {
	bin, plane        string
	clients           []int
	turnLength        time.Duration
	turnCount, tokens int
}

func (p *planeComparison) runComparison(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "penstock-planes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if p.bin, err = filepath.Abs(p.bin); err != nil {
		return err
	}
	ports := fleet.NewPorts(uint64(os.Getpid()))
	one, err := fleet.StartUp(ctx, fleet.Config{Bin: p.bin, Dir: filepath.Join(dir, "one"), Ports: ports, Workers: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	rest := filepath.Join(dir, "three")
	if err := os.MkdirAll(rest, 0o700); err != nil {
		return err
	}
	plane := []string{"--request-plane", p.plane}
	three, err := fleet.Start(ctx, fleet.Config{Bin: p.bin, Dir: rest, Ports: ports, Workers: 1, Frontends: 1, WorkerArgs: plane, FrontendArgs: plane})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, three.Close()) }()

	client := fleet.NewClient(fleet.KeepAlive)
	defer client.Close()
	mix, err := fleet.LearnAnswers(ctx, client, one.Hub.URL(), greedyOnly(fleet.RequestMix(64, p.tokens)))
	if err != nil {
		return err
	}
	fmt.Println("pkg: penstock/test/planes")
	for _, n := range p.clients {
		load := func(url string) *fleet.Load {
			return &fleet.Load{Client: client, URLs: []string{url}, Mix: mix, Fresh: 0.5, Seed: 1}
		}
		a, b := measuredSide{name: "one", load: load(one.Hub.URL())}, measuredSide{name: "three", load: load(three.Frontends[0].URL())}
		for turn := range 2*p.turnCount + 2 {
			s := []*measuredSide{&a, &b}[turn%2]
			if err := s.measureTurn(ctx, n, p.turnLength, turn >= 2); err != nil { // the first turn of each warms up
				return err
			}
		}
		if err := printReport(n, &a, &b); err != nil {
			return err
		}
	}
	return nil
}

// greedyOnly keeps the greedy requests of a mix, to leave out the cost of sampling.
func greedyOnly(mix []fleet.Request) []fleet.Request {
	var plain []fleet.Request
	for _, r := range mix {
		if r.Name == "greedy" {
			plain = append(plain, r)
		}
	}
	return plain
}

// measuredSide is one of the two setups.
type measuredSide struct {
	name  string
	load  *fleet.Load
	tally fleet.OutcomeCounts
	took  time.Duration
}

func (s *measuredSide) measureTurn(ctx context.Context, clients int, length time.Duration, count bool) error {
	began := time.Now()
	running := s.load.StartClients(ctx, clients)
	t := time.NewTimer(length)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	tally, _ := running.FinishLoad()
	if count {
		s.tally.MergeCounts(&tally)
		s.took += time.Since(began)
	}
	return ctx.Err()
}

// printReport prints both in the format of go test -bench, with the ratio of three processes to one.
func printReport(clients int, one, three *measuredSide) error {
	for _, s := range []*measuredSide{one, three} {
		t := &s.tally
		if t.Right != t.Sent || t.Sent == 0 {
			return fmt.Errorf("%s: of %d requests %d were answered as they should: %v %v", s.name, t.Sent, t.Right, t.Errors, t.Differences)
		}
		fmt.Printf("BenchmarkPlanes/processes=%s/clients=%d %d %.1f requests/s %.0f ttft-p50-us %.0f ttft-p99-us %.1f token-p50-us %.1f token-p99-us\n",
			s.name, clients, t.Right, s.requestRate(), toMicroseconds(t.First.Percentile(50)), toMicroseconds(t.First.Percentile(99)), toMicroseconds(t.Token.Percentile(50)), toMicroseconds(t.Token.Percentile(99)))
	}
	ratio := func(a, b float64) float64 { return b / a }
	fmt.Printf("BenchmarkPlanes/three-over-one/clients=%d %d %.3f requests-ratio %.3f ttft-p50-ratio %.3f ttft-p99-ratio %.3f token-p50-ratio %.0f ttft-p50-more-us %.1f token-p50-more-us\n",
		clients, three.tally.Right, ratio(one.requestRate(), three.requestRate()),
		ratio(toMicroseconds(one.tally.First.Percentile(50)), toMicroseconds(three.tally.First.Percentile(50))), ratio(toMicroseconds(one.tally.First.Percentile(99)), toMicroseconds(three.tally.First.Percentile(99))),
		ratio(toMicroseconds(one.tally.Token.Percentile(50)), toMicroseconds(three.tally.Token.Percentile(50))),
		toMicroseconds(three.tally.First.Percentile(50))-toMicroseconds(one.tally.First.Percentile(50)), toMicroseconds(three.tally.Token.Percentile(50))-toMicroseconds(one.tally.Token.Percentile(50)))
	return nil
}

func (s *measuredSide) requestRate() float64 { return float64(s.tally.Right) / s.took.Seconds() }

func toMicroseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
