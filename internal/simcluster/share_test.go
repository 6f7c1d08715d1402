package simcluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// requestsOf returns requests of a client, each of prompt tokens of its own and an answer of output tokens.
func requestsOf(client string, n int, start, every time.Duration, prompt, output int, name int64) []replay.Request {
	var all []replay.Request
	for i := range n {
		blocks := make([]int64, prompt/64)
		for j := range blocks {
			blocks[j] = name<<32 | int64(i)<<16 | int64(j)
		}
		all = append(all, replay.Request{
			At: start + time.Duration(i)*every, Client: client, Blocks: blocks, BlockTokens: 64, Input: prompt, Output: output,
		})
	}
	return all
}

// mixed merges workloads by time.
func mixed(lists ...[]replay.Request) []replay.Request {
	all := slices.SortedStableFunc(slices.Values(slices.Concat(lists...)), func(a, b replay.Request) int { return int(a.At - b.At) })
	for i := range all {
		all[i].Index = i
	}
	return all
}

// p99 returns the 99th percentile of the times to the first token of a client's requests.
func p99(t *testing.T, cfg Config, all []replay.Request, client string) time.Duration {
	t.Helper()
	var times []time.Duration
	for _, s := range run(t, cfg, all).samples {
		if s.Error != "" {
			t.Fatalf("request %d: %s", s.Index, s.Error)
		}
		if all[s.Index].Client == client {
			times = append(times, s.First-s.Sent)
		}
	}
	slices.Sort(times)
	return times[(99*len(times)+99)/100-1]
}

// TestBurstOfATenant: a burst of 600 prompts of tenant a at once leaves the p99 TTFT of tenant b near its value
// without them. Without names of clients it grows to that of the burst.
func TestBurstOfATenant(t *testing.T) {
	for _, mode := range []route.Mode{route.Time, route.KV} {
		cfg := Config{Workers: 4, Route: route.Config{Mode: mode, QueueThreshold: new(0.5)}}
		burst := requestsOf("a", 600, 10*time.Second, 0, 2048, 20, 1)
		steady := requestsOf("b", 200, 0, 200*time.Millisecond, 1024, 20, 2)
		alone := p99(t, cfg, mixed(steady), "b")
		fair := p99(t, cfg, mixed(burst, steady), "b")
		unnamed := mixed(burst, steady)
		names := make([]string, len(unnamed))
		for i := range unnamed {
			names[i], unnamed[i].Client = unnamed[i].Client, ""
		}
		var times []time.Duration
		for _, s := range run(t, cfg, unnamed).samples {
			if names[s.Index] == "b" {
				times = append(times, s.First-s.Sent)
			}
		}
		slices.Sort(times)
		unfair := times[(99*len(times)+99)/100-1]
		t.Logf("%s: p99 TTFT of b: %v alone, %v beside the burst, %v without shares", mode, alone, fair, unfair)
		if fair > 4*alone+100*time.Millisecond || unfair < 10*fair {
			t.Errorf("%s: p99 TTFT of b: %v alone, %v beside the burst, %v without shares", mode, alone, fair, unfair)
		}
	}
}

// TestEncoderIsPredicted: the router learns how long engines encode pictures: predictions of first tokens which it
// would miss by the encoder's time come true, and a picture that a worker holds outweighs an idle worker.
func TestEncoderIsPredicted(t *testing.T) {
	var all []replay.Request
	for i := range 400 {
		id := i % 40 // half of the pictures come again
		if i%2 == 0 {
			id = 1000 + i
		}
		all = append(all, replay.Request{
			Index: i, At: time.Duration(i) * 150 * time.Millisecond, Input: 1088, Output: 20,
			Media: []replay.Media{{Kind: "image", ID: fmt.Sprint(id), Tokens: 1024, Width: 1024, Height: 1024}},
		})
	}
	cfg := Config{Workers: 4, Route: route.Config{Mode: route.Time}}
	cfg.Timing.EnsureDefaults()
	cfg.Timing.Encoder = []sim.EncoderPoint{{Tokens: 256, Millis: 40}, {Tokens: 1024, Millis: 160}}
	off, sum, cached := time.Duration(0), time.Duration(0), 0
	for _, s := range run(t, cfg, all).samples[100:] {
		off += (s.First - s.Predicted).Abs()
		sum += s.First - s.Sent
		if s.Cached > 0 {
			cached++
		}
	}
	t.Logf("mean error %v of a mean TTFT of %v, %d of 300 pictures cached", off/300, sum/300, cached)
	if off > sum/4 || cached < 140 {
		t.Errorf("mean error %v of a mean TTFT of %v, %d of 300 pictures cached", off/300, sum/300, cached)
	}
}

// TestTargetsInCluster: under a load at which targets are missed, every request is over; refused ones are over at
// once, and those which are served have their first token in time more often than without targets.
func TestTargetsInCluster(t *testing.T) {
	all := mixed(requestsOf("", 400, 0, 8*time.Millisecond, 2048, 40, 1))
	const target = 400 * time.Millisecond
	attained := func(cfg Config) (in, refused int) {
		cfg.Workers = 2
		cfg.Route.Mode = route.Time
		for _, s := range run(t, cfg, all).samples {
			switch {
			case s.Error == "overloaded":
				refused++
			case s.Error != "":
				t.Fatalf("request %d: %s", s.Index, s.Error)
			case s.First-s.Sent <= target:
				in++
			}
		}
		return in, refused
	}
	without, _ := attained(Config{})
	waits, none := attained(Config{Route: route.Config{Targets: route.Targets{TTFT: target}}})
	refuses, some := attained(Config{Route: route.Config{Targets: route.Targets{TTFT: target}, OnMiss: route.MissRefuses}})
	t.Logf("of %d requests first tokens within %v: %d without a target, %d with one, %d if others are refused (%d were)", len(all), target, without, waits, refuses, some)
	if none != 0 || waits < 2*without || refuses < 2*without || some == 0 || refuses+some < len(all)*9/10 {
		t.Errorf("first tokens in time: %d without a target, %d with one (%d refused), %d with %d refused", without, waits, none, refuses, some)
	}
}
