// Command soak runs many streaming clients against a running Penstock for a while and fails if any of them
// saw an error, or if the server keeps goroutines or memory afterwards.
//
//	penstock up &
//	go run ./test/soak -clients 200 -for 60s
//
// With -bin it starts a fleet of processes instead, runs clients against it which check their answers, and
// reports the memory of every process over time:
//
//	go run ./test/soak -bin ./penstock -for 30m -requests 1000000 -tokens 4
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/test/fleet"
)

// The allowed excess of the server after the soak over the warm-up: some goroutines of connections which are
// about to close, and memory of the requests which were in progress at the last garbage collection.
const (
	spareGoroutines = 32
	spareHeapBytes  = 32 << 20
)

// longestWarmUp bounds the wait for the server to reach its full size and for two collections of garbage after that: a
// server of small requests collects every minute or two.
const longestWarmUp = 20 * time.Minute

// settleTime bounds the wait for the server to come to rest.
const settleTime = 30 * time.Second

func main() {
	s, l := clientSoak{}, fleetSoak{}
	flag.StringVar(&s.url, "url", "http://127.0.0.1:8000", "Penstock to hold clients on")
	flag.IntVar(&s.clients, "clients", 200, "streaming clients at once")
	flag.DurationVar(&s.length, "for", 60*time.Second, "how long")
	flag.IntVar(&s.tokens, "tokens", 32, "tokens of each answer")
	flag.StringVar(&l.bin, "bin", "", "start a fleet of this binary, instead of holding clients on -url")
	flag.Int64Var(&l.requests, "requests", 0, "with -bin: stop after so many requests; 0 is not before the time is over")
	flag.DurationVar(&l.every, "every", 5*time.Second, "with -bin: time between looks at memory")
	flag.Float64Var(&l.maxSlope, "slope", 32, "with -bin: MiB per hour that a process may grow by, over the second half of runs of ten minutes and more")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := s.runSoak
	if l.bin != "" {
		l.clients, l.length, l.tokens = s.clients, s.length, s.tokens
		run = l.runFleetSoak
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

type clientSoak struct {
	url     string
	clients int
	length  time.Duration
	tokens  int

	client *fleet.Client
	mu     struct {
		sync.Mutex
		answers int
		tokens  int
		ttft    []time.Duration
		errs    map[string]int
	}
}

func (s *clientSoak) runSoak(ctx context.Context) error {
	s.client = fleet.NewClient(fleet.KeepAlive)
	s.mu.errs = map[string]int{}

	if err := s.warmUp(ctx); err != nil {
		return err
	}
	before, err := s.awaitRest(ctx, serverMetrics{})
	if err != nil {
		return err
	}
	s.mu.answers, s.mu.tokens, s.mu.ttft = 0, 0, nil

	began := time.Now()
	s.holdClients(ctx, s.length)
	took := time.Since(began)
	after, err := s.awaitRest(ctx, before)
	if err != nil {
		return err
	}
	slices.Sort(s.mu.ttft)
	fmt.Printf("%d clients for %v: %d answers, %.0f tokens/s, TTFT p50 %v p99 %v\n", s.clients, took.Round(time.Second),
		s.mu.answers, float64(s.mu.tokens)/took.Seconds(), s.ttftPercentile(50), s.ttftPercentile(99))
	fmt.Printf("server before: %v\nserver after:  %v\n", before, after)
	for what, n := range s.mu.errs {
		fmt.Printf("%d× %s\n", n, what)
	}
	switch {
	case len(s.mu.errs) > 0:
		return errors.New("clients saw errors")
	case s.mu.answers == 0:
		return errors.New("no answer was completed")
	case !after.isWithin(before):
		return errors.New("the server did not return to what it was")
	}
	return ctx.Err()
}

// warmUp runs the clients until the server has its full size: its workers keep no more blocks than a round
// before, and its garbage was collected twice since, so that the reported live heap is current.
func (s *clientSoak) warmUp(ctx context.Context) error {
	kept, collect := 0.0, math.Inf(1) // number of collections which is enough
	for end := time.Now().Add(longestWarmUp); ; {
		s.holdClients(ctx, 3*time.Second)
		v, err := s.readMetrics(ctx)
		if err != nil {
			return err
		}
		if v.cached > 0 && v.cached <= 1.01*kept && math.IsInf(collect, 1) {
			collect = v.collections + 2
		}
		if kept = v.cached; v.collections >= collect {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v the caches still grow (%.0f blocks kept): start the server with fewer blocks (--kv-cache-blocks)", longestWarmUp, v.cached)
		}
	}
}

func (s *clientSoak) ttftPercentile(p int) time.Duration {
	if len(s.mu.ttft) == 0 {
		return 0
	}
	return s.mu.ttft[(len(s.mu.ttft)-1)*p/100].Round(time.Millisecond)
}

// holdClients keeps the clients busy for a time; each finishes its current answer.
func (s *clientSoak) holdClients(ctx context.Context, length time.Duration) {
	end := time.Now().Add(length)
	var clients sync.WaitGroup
	for c := range s.clients {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(c)))
			for time.Now().Before(end) && ctx.Err() == nil {
				if err := s.requestAnswer(ctx, random); err != nil && ctx.Err() == nil {
					s.mu.Lock()
					s.mu.errs[err.Error()]++
					s.mu.Unlock()
				}
			}
		})
	}
	clients.Wait()
}

// requestAnswer continues one of a few conversations and reads the stream.
func (s *clientSoak) requestAnswer(ctx context.Context, random *rand.Rand) error {
	group := random.IntN(8)
	o := s.client.Stream(ctx, s.url, fleet.Request{Path: "/v1/chat/completions", Body: map[string]any{
		"model": "penstock-tiny", "max_tokens": s.tokens, "seed": random.Uint32(),
		"messages": []map[string]string{
			{"role": "system", "content": strings.Repeat(fmt.Sprintf("You are keeper %d of the sluice. ", group), 6)},
			{"role": "user", "content": fmt.Sprintf("What happened in hour %d?", random.IntN(1000))},
		},
	}}, nil)
	if o.Err == nil && o.Answer.Output == 0 {
		return errors.New("the answer has no tokens")
	}
	if o.Err != nil {
		return o.Err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.answers++
	s.mu.tokens += o.Answer.Output
	s.mu.ttft = append(s.mu.ttft, o.First)
	return nil
}

// serverMetrics are the /metrics of the process.
type serverMetrics struct {
	goroutines, heap, rss float64
	cached                float64 // KV blocks which all workers keep for reuse
	collections           float64 // of garbage, since the start
}

func (v serverMetrics) String() string {
	return fmt.Sprintf("%.0f goroutines, %.1f MiB live heap, %.1f MiB resident", v.goroutines, v.heap/(1<<20), v.rss/(1<<20))
}

func (v serverMetrics) isWithin(before serverMetrics) bool {
	return v.goroutines <= before.goroutines+spareGoroutines && v.heap <= before.heap+spareHeapBytes
}

// awaitRest waits until the server is within bounds of before, and returns the last sample if it never is.
func (s *clientSoak) awaitRest(ctx context.Context, before serverMetrics) (serverMetrics, error) {
	s.client.Close()
	end := time.Now().Add(settleTime)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var last serverMetrics
	for calm := 0; ; {
		v, err := s.readMetrics(ctx)
		if err != nil {
			return v, err
		}
		quiet := v.goroutines == last.goroutines
		if before != (serverMetrics{}) {
			quiet = v.isWithin(before)
		}
		if last = v; quiet {
			calm++
		} else {
			calm = 0
		}
		if calm == 4 || time.Now().After(end) {
			return v, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

func (s *clientSoak) readMetrics(ctx context.Context) (serverMetrics, error) {
	m, err := fleet.ReadMetrics(ctx, s.url)
	return serverMetrics{
		goroutines: m.SumOf("go_goroutines"), heap: m.SumOf("go_gc_heap_live_bytes"), rss: m.SumOf("process_resident_memory_bytes"),
		cached: m.SumOf("penstock_worker_load", `"cached_blocks"`), collections: m.SumOf("go_gc_duration_seconds_count"),
	}, err
}
