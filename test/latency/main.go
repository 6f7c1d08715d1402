// Command latency measures the latency claims of the README from outside: the time from the start of the
// process to the first token, and the time to first token of a long prompt with and without its blocks in a
// cache.
//
//	go build -o penstock ./cmd/penstock
//	go run ./test/latency -bin ./penstock
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"penstock/test/fleet"
)

func main() {
	bin := flag.String("bin", "./penstock", "the binary to measure")
	runs := flag.Int("runs", 5, "starts, and pairs of requests")
	asJSON := flag.Bool("json", false, "print JSON")
	flag.Parse()
	if err := measureLatency(*bin, *runs, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

// latencyResult is the output; times are medians in milliseconds.
type latencyResult struct {
	Machine        string  `json:"machine"`
	Go             string  `json:"go"`
	Runs           int     `json:"runs"`
	StartToToken   float64 `json:"start_to_first_token_ms"`
	PromptTokens   int     `json:"prompt_tokens"`
	ColdTTFT       float64 `json:"ttft_cold_ms"`
	CachedTTFT     float64 `json:"ttft_cached_ms"`
	CachedTokens   int     `json:"cached_tokens"`
	SameWorker     int     `json:"second_on_same_worker"`
	Ratio          float64 `json:"ttft_cached_over_cold"` // median of the pairs' ratios
	RandomSame     int     `json:"random_second_on_same_worker"`
	RandomUncached int     `json:"random_second_uncached"`
}

func measureLatency(bin string, runs int, asJSON bool) error {
	r := latencyResult{Machine: fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), Go: runtime.Version(), Runs: runs}
	var starts []float64
	for range runs {
		ms, err := timeFirstToken(bin)
		if err != nil {
			return err
		}
		starts = append(starts, ms)
	}
	r.StartToToken = medianOf(starts)
	if err := r.measurePairs(bin, runs, "kv"); err != nil {
		return err
	}
	if err := r.measurePairs(bin, runs, "random"); err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	fmt.Printf("process start to first token: %.0f ms (median of %d)\n", r.StartToToken, runs)
	fmt.Printf("a prompt of %d tokens asked twice, router mode kv: TTFT %.0f ms, then %.1f ms with %d tokens cached (ratio %.3f); second on the same worker %d of %d\n",
		r.PromptTokens, r.ColdTTFT, r.CachedTTFT, r.CachedTokens, r.Ratio, r.SameWorker, runs)
	fmt.Printf("router mode random: second on the same worker %d of %d, without any cached token %d of %d\n",
		r.RandomSame, runs, r.RandomUncached, runs)
	return nil
}

// timeFirstToken starts the binary and returns the milliseconds to its first token.
func timeFirstToken(bin string) (float64, error) {
	began := time.Now()
	s, err := startServer(bin)
	if err != nil {
		return 0, err
	}
	defer s.stopServer()
	a, err := s.askModel("Where does the water go?", 4)
	if err != nil {
		return 0, err
	}
	return toMilliseconds(a.Began.Add(a.First).Sub(began)), nil
}

// measurePairs sends long prompts twice.
func (r *latencyResult) measurePairs(bin string, runs int, mode string) error {
	s, err := startServer(bin, "--router-mode", mode)
	if err != nil {
		return err
	}
	defer s.stopServer()
	var cold, cached, ratios []float64
	for i := range runs {
		var prompt strings.Builder
		for n := range 80 {
			fmt.Fprintf(&prompt, "In year %d of book %d the gate was opened %d times. ", n, i, n*7%13)
		}
		first, err := s.askModel(prompt.String(), 1)
		if err != nil {
			return err
		}
		// A user's pause: the events of the first response travel to the router meanwhile. Nothing is
		// asserted on it; if it were too short, the figures would show it.
		time.Sleep(100 * time.Millisecond)
		second, err := s.askModel(prompt.String(), 1)
		if err != nil {
			return err
		}
		same := first.Worker == second.Worker
		if mode == "random" {
			if same {
				r.RandomSame++
			}
			if second.Cached == 0 {
				r.RandomUncached++
			}
			continue
		}
		if same {
			r.SameWorker++
		}
		r.PromptTokens, r.CachedTokens = second.Answer.Prompt, second.Cached
		cold, cached = append(cold, toMilliseconds(first.First)), append(cached, toMilliseconds(second.First))
		ratios = append(ratios, toMilliseconds(second.First)/toMilliseconds(first.First))
	}
	if mode == "kv" {
		r.ColdTTFT, r.CachedTTFT, r.Ratio = medianOf(cold), medianOf(cached), medianOf(ratios)
	}
	return nil
}

func toMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func medianOf(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// penstockServer is a running Penstock.
type penstockServer struct {
	cmd   *exec.Cmd
	url   string
	model string
}

func startServer(bin string, args ...string) (*penstockServer, error) {
	s := &penstockServer{cmd: exec.Command(bin, append([]string{"up", "--http-addr", "127.0.0.1:0", "--json"}, args...)...)}
	var log bytes.Buffer
	s.cmd.Stderr = &log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	var ready struct{ URL, Model string }
	if err := json.NewDecoder(out).Decode(&ready); err != nil {
		s.stopServer()
		return nil, fmt.Errorf("%s did not start: %w\n%s", bin, err, &log)
	}
	s.url, s.model = ready.URL, ready.Model
	return s, nil
}

func (s *penstockServer) stopServer() {
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	_ = s.cmd.Wait()
}

// askModel streams one response of at most the given number of tokens.
func (s *penstockServer) askModel(prompt string, tokens int) (fleet.Outcome, error) {
	c := fleet.NewClient(fleet.KeepAlive)
	defer c.Close()
	o := c.Stream(context.Background(), s.url, fleet.Request{Path: "/v1/chat/completions", Body: map[string]any{
		"model": s.model, "max_tokens": tokens, "temperature": 0,
		"messages": []map[string]string{{"role": "user", "content": prompt}},
	}}, nil)
	if o.Err == nil && o.Texts == 0 {
		o.Err = errors.New("no token came")
	}
	return o, o.Err
}
