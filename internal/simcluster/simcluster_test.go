package simcluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/replay"
)

var assistants = shape{requests: 400, every: 50 * time.Millisecond, roots: 12, blocks: 12, blockTokens: 64, output: 30, sessions: 20}

// run serves requests and returns what was recorded.
func run(t *testing.T, cfg Config, all []replay.Request) *journal {
	t.Helper()
	j := &journal{}
	if err := Run(t.Context(), cfg, &requests{all: all}, j); err != nil {
		t.Fatal(err)
	}
	return j
}

// TestAnswers: in every mode each request is over once, with all of its tokens, at
// times that can be.
func TestAnswers(t *testing.T) {
	all := assistants.make(1)
	for _, mode := range []route.Mode{route.Time, route.KV, route.RoundRobin, route.Random, route.PowerOfTwo, route.LeastLoaded} {
		j := run(t, Config{Workers: 5, Blocks: 200, Route: route.Config{Mode: mode}, Routers: 2, Delay: time.Millisecond}, all)
		checkAnswers(t, all, j)
		tokens := 0
		for i := range j.samples {
			s := &j.samples[i]
			if s.Error != "" {
				t.Fatalf("%s: %+v", mode, s)
			}
			tokens += s.Output - 1
		}
		if j.gaps != tokens {
			t.Errorf("%s: %d gaps between tokens, want %d", mode, j.gaps, tokens)
		}
	}
}

// checkAnswers holds what was recorded against the requests.
func checkAnswers(t interface {
	Helper()
	Fatalf(string, ...any)
}, all []replay.Request, j *journal,
) {
	t.Helper()
	seen := make([]bool, len(all))
	last := map[string]time.Duration{}
	done := time.Duration(0)
	for i := range j.samples {
		s := &j.samples[i]
		r := &all[s.Index]
		switch {
		case seen[s.Index]:
			t.Fatalf("request %d is over twice", s.Index)
		case s.Done < done:
			t.Fatalf("request %d is over at %v, told after %v", s.Index, s.Done, done)
		case s.Sent != s.Due || s.Due < r.At:
			t.Fatalf("request %d of %v was sent at %v", s.Index, r.At, s.Sent)
		case s.Input != r.Input || s.Cached < 0 || s.Cached >= max(s.Input, 1):
			t.Fatalf("request %d: %+v", s.Index, s)
		case s.Error == "" && (s.Output != r.Output || s.Worker == 0 || s.First < s.Sent || s.Last < s.First || s.Done != s.Last):
			t.Fatalf("request %d: %+v", s.Index, s)
		case s.Error != "" && s.Output >= r.Output:
			t.Fatalf("request %d: %+v", s.Index, s)
		}
		seen[s.Index], done = true, s.Done
		if r.Session != "" {
			if before, ok := last[r.Session]; ok && s.Sent < before+r.Delay {
				t.Fatalf("request %d of session %s was sent at %v, the answer before it ended at %v", s.Index, r.Session, s.Sent, before)
			}
			last[r.Session] = s.Done
		}
	}
	if len(j.samples) != len(all) {
		t.Fatalf("%d of %d requests are over", len(j.samples), len(all))
	}
}

// TestSameSeed: the same seed gives the same calls, another one others.
func TestSameSeed(t *testing.T) {
	all := assistants.make(2)
	cfg := Config{Workers: 3, Blocks: 300, Route: route.Config{Mode: route.Random}}
	a, b := run(t, cfg, all), run(t, cfg, all)
	cfg.Route.Seed = 1
	if a.String() != b.String() {
		t.Error("two runs differ")
	}
	if other := run(t, cfg, all); other.String() == a.String() {
		t.Error("the seed does not matter")
	}
}

// TestNeverServed: what cannot be served is told so, and the rest is served.
func TestNeverServed(t *testing.T) {
	all := []replay.Request{
		{Index: 0, Input: 0, Output: 1},
		{Index: 1, Input: 10, Output: 0},
		{Index: 2, Input: 100, Output: 10},
		{Index: 3, Input: 99, Output: 10},
	}
	j := run(t, Config{MaxContext: 100}, all)
	for i, want := range []string{"invalid", "invalid", "invalid", ""} {
		if s := j.samples[i]; s.Index != i || s.Error != want {
			t.Errorf("%+v, want error %q", s, want)
		}
	}
	if s := j.samples[3]; s.Output != 1 {
		t.Errorf("%d tokens fit behind a prompt of 99 into 100", s.Output)
	}
}

// TestFull: an engine takes as many as may run and wait, as one in batches does, and
// refuses requests which come then.
func TestFull(t *testing.T) {
	var all []replay.Request
	for i := range 6 {
		all = append(all, replay.Request{Index: i, Input: 20, Output: 5})
	}
	j := run(t, Config{MaxSeqs: 2, MaxWaiting: 3, Migration: migrate.Config{MaxFailures: -1}}, all)
	if s := j.samples[0]; s.Index != 5 || s.Error != "overloaded" || s.Done != 0 {
		t.Errorf("%+v", s)
	}
	for _, s := range j.samples[1:] {
		if s.Error != "" || s.Output != 5 {
			t.Errorf("%+v", s)
		}
	}
}

// TestBusy: what the router refuses for load is told so.
func TestBusy(t *testing.T) {
	all := []replay.Request{{Index: 0, Input: 500, Output: 5}, {Index: 1, Input: 500, Output: 5}, {Index: 2, At: time.Second, Input: 500, Output: 5}}
	j := run(t, Config{Route: route.Config{Busy: route.BusyThresholds{PrefillTokens: 100}}}, all)
	if s := j.samples[0]; s.Index != 1 || s.Error != "overloaded" || s.Worker != 0 || s.Done != 0 {
		t.Errorf("%+v", s)
	}
	for _, s := range j.samples[1:] {
		if s.Error != "" {
			t.Errorf("%+v", s)
		}
	}
}

// TestRefusedWorkloads: a workload that does not say when is refused by its line.
func TestRefusedWorkloads(t *testing.T) {
	for _, tt := range []struct {
		all  []replay.Request
		want string
	}{
		{[]replay.Request{{Index: 0, At: -1, Input: 5, Output: 1}}, "does not say when"},
		{[]replay.Request{{Index: 0, At: 5, Input: 5, Output: 1}, {Index: 1, At: 4, Input: 5, Output: 1}}, "sort the workload"},
	} {
		err := Run(t.Context(), Config{}, &requests{all: tt.all}, &journal{})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, Config{}, &requests{all: assistants.make(1)}, &journal{}); err != context.Canceled {
		t.Errorf("%v", err)
	}
	if err := Run(t.Context(), Config{Route: route.Config{Mode: route.Direct}}, &requests{}, &journal{}); err == nil {
		t.Error("mode direct is taken")
	}
}

// TestRunsThatCannotEnd: a run whose time would stand still, run over or take years to
// pass ends with an error that says why.
func TestRunsThatCannotEnd(t *testing.T) {
	const year = 365 * 24 * time.Hour
	later := []replay.Request{{Input: 10, Output: 1}, {Index: 1, At: 90 * year, Input: 10, Output: 1}}
	thinks := []replay.Request{{Input: 10, Output: 1, Session: "s"}, {Index: 1, Delay: 90 * year, Input: 10, Output: 1, Session: "s"}}
	returns := []replay.Request{{Input: 10, Output: 1, Session: "s"}, {Index: 1, At: time.Minute, Delay: 90 * year, Input: 10, Output: 1, Session: "s"}}
	one := later[:1]
	for name, c := range map[string]struct {
		cfg  Config
		all  []replay.Request
		want string
	}{
		"a pause of years":               {Config{}, later, "request 1 is to be sent 788400h0m0s after the one before it"},
		"years to think":                 {Config{}, thinks, "request 1 is to be sent 788400h0m0s after the answer before it"},
		"years to think, then a request": {Config{}, returns, "request 1 is to be sent 788400h0m0s after the answer before it"},
		"calls of years":                 {Config{Delay: 90 * year}, one, "between 0 and 24h0m0s"},
		"events of years":                {Config{EventDelay: 90 * year}, one, "between 0 and 24h0m0s"},
		"stalls of years":                {Config{StallTimeout: 90 * year}, one, "between 0 and 24h0m0s"},
		"passes beyond the clock":        {Config{Faults: Faults{Slow: 1, SlowBy: 1 << 30}}, one, "more than 100 times"},
		"lives of nothing":               {Config{Faults: Faults{CrashEvery: 1, MaxDowntime: 1}}, one, "a life at least 1ms"},
		"leases of years":                {Config{Faults: Faults{CrashEvery: time.Second, Lease: 90 * year}}, one, "at most 744h0m0s"},
		"everybody knows everybody":      {Config{Workers: 1 << 20, Routers: 1 << 10}, one, "product must be at most"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), c.cfg, &requests{all: c.all}, &journal{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it ends with %v, want %q", err, c.want)
			}
		})
	}
}
