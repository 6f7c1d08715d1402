package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"penstock/internal/replay"
	"penstock/internal/replay/load"
)

const inputTokens = 32

// equalRequests is a workload of equal requests, count of them or without end, one each every.
type equalRequests struct {
	output, count, next int
	every               time.Duration
}

func (s *equalRequests) Next(r *replay.Request) error {
	if s.count > 0 && s.next == s.count {
		return io.EOF
	}
	*r = replay.Request{Index: s.next, At: time.Duration(s.next) * s.every, Input: inputTokens, Output: s.output, Blocks: append(r.Blocks[:0], 7), BlockTokens: inputTokens}
	s.next++
	return nil
}

func (s *equalRequests) Close() error { return nil }

// resultCounter counts responses.
type resultCounter struct {
	samples, errors int
	tokens          int64
	errorKinds      map[string]int
}

func (t *resultCounter) RecordSample(s *replay.Sample) {
	t.samples++
	t.tokens += int64(s.Output)
	if s.Error != "" {
		t.errors++
		if t.errorKinds == nil {
			t.errorKinds = map[string]int{}
		}
		t.errorKinds[s.Error]++
	}
}

func (t *resultCounter) RecordGap(time.Duration, int) {}

func (t *resultCounter) checkErrors() error {
	if t.errors > 0 || t.samples == 0 {
		return fmt.Errorf("%d of %d requests failed: %v", t.errors, t.samples, t.errorKinds)
	}
	return nil
}

// runClosedLoop runs the generator on this many connections for a while, and returns the duration and this
// process's resource use.
func runClosedLoop(ctx context.Context, url string, connections int, window time.Duration, source replay.Source, record load.Recorder) (took, cpu time.Duration, allocs uint64, err error) {
	runtime.GC()
	before, mallocs := resourceUsage()
	sum, err := load.Run(ctx, load.Config{
		Endpoint: load.Endpoint{URL: url}, Model: "m", Concurrency: connections, Duration: window,
	}, source, record)
	took = time.Since(sum.Start)
	after, mallocsAfter := resourceUsage()
	return took, after - before, mallocsAfter - mallocs, err
}

// measureRequestRate measures requests/s of wrk and of the generator, with the same requests.
func measureRequestRate(ctx context.Context, url string, s clientSettings) error {
	theirs := 0.0
	if s.wrk != "" {
		var err error
		if theirs, err = runWrk(ctx, url+"/plain/v1/completions", s); err != nil {
			return err
		}
		fmt.Printf("BenchmarkRequests/client=wrk-%d 1 %.0f requests/s\n", runtime.NumCPU(), theirs)
	}
	var t resultCounter
	took, cpu, allocs, err := runClosedLoop(ctx, url+"/plain", s.connections, s.window, &equalRequests{output: 1}, &t)
	if err == nil {
		err = t.checkErrors()
	}
	if err != nil {
		return err
	}
	n := float64(t.samples)
	ours := n / took.Seconds()
	fmt.Printf("BenchmarkRequests/client=penstock-%d %d %.0f requests/s %.0f cpu-ns/request %.1f allocs/request\n",
		runtime.NumCPU(), t.samples, ours, float64(cpu)/n, float64(allocs)/n)
	if theirs > 0 {
		fmt.Printf("BenchmarkRequests/penstock-to-wrk-%d 1 %.3f requests/s-ratio\n", runtime.NumCPU(), ours/theirs)
	}
	return nil
}

// measureTokenRate measures tokens/s over streams at the server's full speed: each token in its own write,
// and many in one.
func measureTokenRate(ctx context.Context, url string, s clientSettings) error {
	for _, writes := range []string{"one", "burst"} {
		var t resultCounter
		took, cpu, allocs, err := runClosedLoop(ctx, url+"/"+writes, s.connections, s.window, &equalRequests{output: tokensPerFlood}, &t)
		if err == nil {
			err = t.checkErrors()
		}
		if err != nil {
			return err
		}
		n := float64(t.tokens)
		fmt.Printf("BenchmarkTokens/writes=%s-%d %d %.0f tokens/s %.0f cpu-ns/token %.4f allocs/token\n",
			writes, runtime.NumCPU(), t.tokens, n/took.Seconds(), float64(cpu)/n, float64(allocs)/n)
	}
	return nil
}

// wrkScript makes wrk send the generator's requests.
const wrkScript = `wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Accept"] = "text/event-stream"
wrk.headers["Accept-Encoding"] = "identity"
wrk.headers["X-Request-Id"] = "bench-100000"
wrk.body = '{"model":"m","prompt":[%s],"max_tokens":1,"min_tokens":1,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}'
`

var (
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkErrors = regexp.MustCompile(`(?m)^\s*(Non-2xx.*|Socket errors.*)$`)
)

// runWrk runs wrk and returns its requests/s.
func runWrk(ctx context.Context, url string, s clientSettings) (float64, error) {
	script, err := os.CreateTemp("", "wrk-*.lua")
	if err != nil {
		return 0, err
	}
	defer os.Remove(script.Name())
	prompt := strings.TrimSuffix(strings.Repeat("777,", inputTokens), ",")
	if _, err := fmt.Fprintf(script, wrkScript, prompt); err != nil {
		return 0, err
	}
	if err := script.Close(); err != nil {
		return 0, err
	}
	seconds := max(int(s.window.Seconds()), 1)
	out, err := exec.CommandContext(ctx, s.wrk, "-t", strconv.Itoa(min(runtime.NumCPU(), s.connections)), "-c", strconv.Itoa(s.connections),
		"-d", strconv.Itoa(seconds)+"s", "-s", script.Name(), url).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", s.wrk, err, out)
	}
	if bad := wrkErrors.Find(out); bad != nil {
		return 0, fmt.Errorf("%s: %s", s.wrk, bad)
	}
	m := wrkRate.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s: no rate in %q", s.wrk, out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// tokenRecorder keeps the times of all tokens.
type tokenRecorder struct {
	resultCounter
	at       map[int][]time.Duration
	lateness []float64 // microseconds
}

func (w *tokenRecorder) RecordTokens(s *replay.Sample, at []time.Duration) {
	w.at[s.Index] = slices.Clone(at)
}

func (w *tokenRecorder) RecordSample(s *replay.Sample) {
	w.resultCounter.RecordSample(s)
	w.lateness = append(w.lateness, toMicroseconds(s.Sent-s.Due))
}

// measureTimestamps measures the error of the client's times against the server's: of first tokens, and of
// the time between every two tokens. Requests start spread out, as many per response time as there are to be
// at once.
func measureTimestamps(ctx context.Context, url string, s clientSettings) error {
	tokensEach := max(int(s.window/s.pace), 2)
	w := &tokenRecorder{at: map[int][]time.Duration{}}
	runtime.GC()
	before, _ := resourceUsage()
	sum, err := load.Run(ctx, load.Config{
		Endpoint: load.Endpoint{URL: url + "/paced"}, Model: "m",
	}, &equalRequests{output: tokensEach, count: 2 * s.streams, every: s.window / time.Duration(s.streams)}, w)
	if err == nil {
		err = w.checkErrors()
	}
	if err != nil {
		return err
	}
	took := time.Since(sum.Start)
	cpu, _ := resourceUsage()
	truth, err := fetchServerTimes(ctx, url)
	if err != nil {
		return err
	}
	// The machine's monotonic clock at the run's start.
	start := monotonicNanos() - int64(time.Since(sum.Start))
	var first, gaps []float64
	for index, at := range w.at {
		sent := truth["bench-"+strconv.Itoa(index)]
		if len(sent) != len(at) {
			return fmt.Errorf("request %d: %d tokens seen, %d sent", index, len(at), len(sent))
		}
		first = append(first, toMicroseconds(at[0]-time.Duration(sent[0]-start)))
		for i := 1; i < len(at); i++ {
			gaps = append(gaps, math.Abs(toMicroseconds(at[i]-at[i-1]-time.Duration(sent[i]-sent[i-1]))))
		}
	}
	name := fmt.Sprintf("BenchmarkMoments/streams=%d", s.streams)
	printError(name+"/of=ttft", first)
	printError(name+"/of=itl", gaps)
	printError(name+"/of=sending", w.lateness)
	fmt.Printf("%s/cpu-%d 1 %.3f cores %.0f tokens/s\n", name, runtime.NumCPU(), (cpu-before).Seconds()/took.Seconds(), float64(w.tokens)/took.Seconds())
	return nil
}

func printError(name string, off []float64) {
	slices.Sort(off)
	at := func(q float64) float64 { return off[min(int(q*float64(len(off))), len(off)-1)] }
	fmt.Printf("%s-%d %d %.1f p50-us %.1f p99-us %.1f p999-us %.1f max-us\n", name, runtime.NumCPU(), len(off), at(.5), at(.99), at(.999), at(1))
}

func fetchServerTimes(ctx context.Context, url string) (map[string][]int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/moments", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var out map[string][]int64
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

func toMicroseconds(d time.Duration) float64 { return float64(d) / 1e3 }

// resourceUsage returns the processor time and the allocations of this process so far.
func resourceUsage() (cpu time.Duration, mallocs uint64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r syscall.Rusage
	// It fails only for wrong arguments.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), m.Mallocs
}
