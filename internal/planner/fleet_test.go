package planner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		runChild()
		return
	}
	fixturetest.RunTests(m)
}

// fakeFleet is a server with its page of metrics and its table of workers, and processes as its workers, in virtual time.
type fakeFleet struct {
	mu sync.Mutex
	// rate is in requests a second, of 1000 prompt tokens and 100 output tokens each.
	rate     float64
	requests float64 // which came until readAt
	readAt   time.Time
	// startUp and drain are the times which workers take. neverReady workers do not get ready, and broken ones end after
	// startUp.
	startUp, drain     time.Duration
	neverReady, broken bool
	// frozen keeps the page which was read last, with its date or without; failing answers 500; partial lacks the
	// histogram of gaps.
	frozen, failing, partial bool
	tableFailing             bool // the table of workers answers 503
	keepDate                 bool
	keptFor                  time.Duration // a cache keeps each page so long, with its date
	reads                    []time.Time   // of the page
	last                     []byte
	lastDate                 string
	processes                []*fakeProcess
	cached                   map[kv.WorkerID]int
	calls                    []string // "start 1", "drain 1", "kill 1"
}

// RoundTrip implements http.RoundTripper.
func (f *fakeFleet) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Request: req}
	date, body := time.Now().UTC().Format(http.TimeFormat), f.tableLocked()
	if f.tableFailing && req.URL.Path != "/metrics" {
		resp.StatusCode, resp.Status = http.StatusServiceUnavailable, "503 Service Unavailable"
	}
	if req.URL.Path == "/metrics" {
		f.reads = append(f.reads, time.Now())
		if f.failing {
			resp.StatusCode, resp.Status = http.StatusInternalServerError, "500 Internal Server Error"
		}
		if isKept := time.Since(f.readAt) < f.keptFor; !f.frozen && !isKept {
			f.last, f.lastDate = f.pageLocked(), date
		}
		body = f.last
		if f.keepDate || f.keptFor > 0 {
			date = f.lastDate
		}
	}
	resp.Header.Set("Date", date)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// pageLocked returns the page of a frontend whose requests ended as they came.
func (f *fakeFleet) pageLocked() []byte {
	now := time.Now()
	if !f.readAt.IsZero() {
		f.requests += f.rate * now.Sub(f.readAt).Seconds()
	}
	f.readAt = now
	n := f.requests
	var b strings.Builder
	fmt.Fprintf(&b, "# TYPE penstock_frontend_inflight gauge\npenstock_frontend_inflight 0\n# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %g\n", float64(now.Unix()))
	histogram := func(name string, count, sum float64) {
		fmt.Fprintf(&b, "# TYPE penstock_%s histogram\npenstock_%s_bucket{model=\"m\",le=\"+Inf\"} %.0f\npenstock_%s_sum{model=\"m\"} %g\npenstock_%s_count{model=\"m\"} %.0f\n", name, name, count, name, sum, name, count)
	}
	counter := func(name, labels string, v float64) {
		fmt.Fprintf(&b, "# TYPE penstock_%s counter\npenstock_%s{model=\"m\"%s} %g\n", name, name, labels, v)
	}
	histogram("frontend_time_to_first_token_seconds", n, n*0.1)
	if !f.partial {
		histogram("frontend_inter_token_latency_seconds", n*99, n*99*0.02)
	}
	counter("frontend_requests_total", `,endpoint="chat_completions",status="200"`, n)
	counter("frontend_prompt_tokens_total", "", n*1000)
	counter("frontend_output_tokens_total", "", n*100)
	counter("frontend_cached_tokens_total", "", 0)
	return []byte(b.String())
}

// tableLocked returns the table of workers.
func (f *fakeFleet) tableLocked() []byte {
	table := map[string][]map[string]any{"rows": {}}
	for _, p := range f.processes {
		if p.registered {
			table["rows"] = append(table["rows"], map[string]any{
				"worker_id": p.id, "role": p.role, "model": "m", "state": "ready", "cached_blocks": f.cached[p.id],
				"load": map[string]any{"reported": map[string]int{"running": 0}},
			})
		}
	}
	text, _ := json.Marshal(table)
	return text
}

// fakeProcess is a worker of a fakeFleet.
type fakeProcess struct {
	fleet      *fakeFleet
	id         kv.WorkerID
	role       string
	registered bool
	output     *io.PipeReader
	end        *io.PipeWriter
}

// launch is a LaunchFunc.
func (f *fakeFleet) launch(_ string, args []string, _ string) (LaunchedProcess, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &fakeProcess{fleet: f, id: kv.WorkerID(len(f.processes) + 1)}
	for _, a := range args {
		if role, is := strings.CutPrefix(a, "--role="); is {
			p.role = role
		}
	}
	p.output, p.end = io.Pipe()
	f.processes = append(f.processes, p)
	f.calls = append(f.calls, fmt.Sprintf("start %d", p.id))
	switch {
	case f.broken:
		time.AfterFunc(f.startUp, func() { _ = p.end.Close() })
	case !f.neverReady:
		time.AfterFunc(f.startUp, func() {
			f.mu.Lock()
			p.registered = true
			f.mu.Unlock()
			_, _ = fmt.Fprintf(p.end, "{\"role\":\"worker\",\"worker_id\":%d}\n", p.id)
		})
	}
	return p, nil
}

func (p *fakeProcess) Output() io.Reader { return p.output }
func (p *fakeProcess) Wait() error       { return nil }

func (p *fakeProcess) Drain() error {
	p.fleet.mu.Lock()
	defer p.fleet.mu.Unlock()
	p.fleet.calls = append(p.fleet.calls, fmt.Sprintf("drain %d", p.id))
	drain := p.fleet.drain
	if !p.registered {
		drain = 0
	}
	p.registered = false
	time.AfterFunc(drain, func() { _ = p.end.Close() })
	return nil
}

func (p *fakeProcess) Kill() error {
	p.fleet.mu.Lock()
	defer p.fleet.mu.Unlock()
	p.fleet.calls = append(p.fleet.calls, fmt.Sprintf("kill %d", p.id))
	return p.end.Close()
}

func (f *fakeFleet) change(set func(*fakeFleet)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set(f)
}

// callsOf returns the calls of a kind.
func (f *fakeFleet) callsOf(kind string) (calls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if strings.HasPrefix(c, kind) {
			calls = append(calls, c)
		}
	}
	return calls
}

// planConfig sizes for an engine which computes 20,000 prompt tokens a second.
func planConfig(t *testing.T) plan.Config {
	t.Helper()
	table, err := plan.NewTableModel([]float64{0, 10_000}, []float64{0, 500}, []float64{1, 256}, []float64{0, 10_000}, [][]float64{{5, 5}, {60, 60}})
	if err != nil {
		t.Fatal(err)
	}
	return plan.Config{
		Roles:   []plan.RoleConfig{{Role: plan.Aggregated, Ceiling: 8, Models: []plan.EngineModel{table}}},
		Targets: plan.Targets{TTFT: 500 * time.Millisecond, ITL: 50 * time.Millisecond}, Interval: 30 * time.Second, StartUp: time.Minute,
	}
}

// runFleet runs a planner for a fleet in a bubble, and test beside it. It returns when all processes have ended.
func runFleet(t *testing.T, f *fakeFleet, test func(t *testing.T, p *FleetPlanner)) {
	t.Helper()
	runSampledFleet(t, f, 0, test)
}

// runSampledFleet is runFleet with samples.
func runSampledFleet(t *testing.T, f *fakeFleet, every time.Duration, test func(t *testing.T, p *FleetPlanner)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		connector, err := NewProcessConnector(ProcessConfig{Launch: f.launch, Binary: "penstock", Dir: dir, DrainTimeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		p := newTestPlanner(t, Config{Sources: SourceConfig{Server: "http://fleet"}, SampleEvery: every, ConnectorName: "process"}, f, connector)
		stop := startPlanner(t, p)
		test(t, p)
		stop()
		for _, child := range f.processes {
			if child.registered {
				t.Errorf("worker %d outlives the planner", child.id)
			}
		}
	})
}

// newTestPlanner returns a planner for a fleet, with planConfig.
func newTestPlanner(t *testing.T, cfg Config, f *fakeFleet, connector Connector) *FleetPlanner {
	t.Helper()
	cfg.Plan, cfg.Namespace, cfg.Metrics = planConfig(t), "test", obs.NewMetrics()
	cfg.Sources.Client = &http.Client{Transport: f}
	p, err := New(cfg, connector)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// startPlanner runs a planner. The function which it returns ends it, and waits.
func startPlanner(t *testing.T, p *FleetPlanner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// pass lets virtual time pass, to just after the plan of an interval.
func pass(d time.Duration) {
	time.Sleep(d) // virtual time
	synctest.Wait()
}

// orderOf returns the order of the only role, -1 if there is none.
func orderOf(p *FleetPlanner) int {
	if r := p.LastReport(); r != nil && len(r.Roles) == 1 {
		return r.Roles[0].Order
	}
	return -1
}

// TestLoadStep: a step of the load is answered by more workers. When it is over, the ones with the least to lose leave.
func TestLoadStep(t *testing.T) {
	f := &fakeFleet{rate: 1, startUp: 40 * time.Second, drain: time.Minute, cached: map[kv.WorkerID]int{1: 10, 2: 1000, 3: 500, 4: 1, 5: 2, 6: 3, 7: 4, 8: 5}}
	runFleet(t, f, func(t *testing.T, p *FleetPlanner) {
		pass(5*time.Minute + time.Second)
		if n := orderOf(p); n != 1 {
			t.Fatalf("%d workers are ordered for one request a second", n)
		}
		f.change(func(f *fakeFleet) { f.rate = 60 })
		pass(5 * time.Minute)
		most, r := orderOf(p), p.LastReport()
		if most < 4 || r.Roles[0].Actual != most {
			t.Fatalf("at 60 requests a second: %+v, problems %q", r.Roles, r.Problems)
		}
		if r.Traffic.Arrivals < 59 || r.Traffic.Arrivals > 61 || r.Traffic.InputTokens != 1000 || r.Traffic.TTFT < 99.9 || r.Traffic.TTFT > 100.1 || r.Traffic.ITL < 19.9 || r.Traffic.ITL > 20.1 {
			t.Errorf("traffic is %+v", r.Traffic)
		}
		f.change(func(f *fakeFleet) { f.rate = 1 })
		pass(20 * time.Minute)
		if n := orderOf(p); n != 1 {
			t.Errorf("%d workers are ordered after the step", n)
		}
		if left := f.callsOf("drain"); len(left) != most-1 || slices.Contains(left, "drain 2") {
			t.Errorf("%v, want all but worker 2, which has most in its cache", left)
		}
		if killed := f.callsOf("kill"); killed != nil {
			t.Error(killed)
		}
	})
}

// TestBurstBetweenIntervals: samples have a burst answered before the interval ends, for its own rate. When it is over, the
// workers leave.
func TestBurstBetweenIntervals(t *testing.T) {
	for _, every := range []time.Duration{0, 5 * time.Second} {
		f := &fakeFleet{rate: 2, startUp: time.Second}
		runSampledFleet(t, f, every, func(t *testing.T, p *FleetPlanner) {
			pass(10*time.Minute + time.Second)
			if n := orderOf(p); n != 1 {
				t.Fatalf("%d workers are ordered for two requests a second", n)
			}
			intervals := counterOf(t, p, "plan_intervals_total", "")
			f.change(func(f *fakeFleet) { f.rate = 60 })
			pass(15 * time.Second)
			r, started := p.LastReport(), len(f.callsOf("start"))
			if n := counterOf(t, p, "plan_samples_total", "raised"); (n > 0) != (every > 0) {
				t.Errorf("samples every %v: %g raised an order", every, n)
			}
			if every == 0 {
				if orderOf(p) != 1 || r.Sampled {
					t.Errorf("without samples, within the interval: %+v", r.Roles)
				}
				return
			}
			if most := orderOf(p); most < 4 || started != most || !r.Sampled || r.Traffic == nil || r.Traffic.Arrivals > 3 || r.Forecast.Expected < 40 {
				t.Fatalf("15 s after the burst began: %d started, %+v", started, r)
			}
			if n := counterOf(t, p, "plan_intervals_total", ""); n != intervals {
				t.Errorf("%g samples count as intervals", n-intervals)
			}
			pass(15 * time.Second)
			if r := p.LastReport(); r.Sampled || orderOf(p) < 4 || orderOf(p) > started+1 {
				t.Errorf("at the end of the interval: %+v", r.Roles)
			}
			f.change(func(f *fakeFleet) { f.rate = 2 })
			pass(3 * time.Minute) // less than DownAfter
			if n := orderOf(p); n != 1 {
				t.Errorf("%d workers are ordered after the burst", n)
			}
		})
	}
}

// TestSampleTimes: samples are counted from the end of the last interval, and none is near the end of the next one.
func TestSampleTimes(t *testing.T) {
	f := &fakeFleet{rate: 1, startUp: time.Second}
	runSampledFleet(t, f, 7*time.Second, func(t *testing.T, p *FleetPlanner) {
		start := time.Now()
		pass(5*time.Minute + time.Second)
		f.change(func(f *fakeFleet) {
			for i, at := range f.reads {
				if want := start.Add(time.Duration(i/4)*30*time.Second + time.Duration(i%4)*7*time.Second); !at.Equal(want) {
					t.Fatalf("reading %d comes %v after the start, want %v", i, at.Sub(start), want.Sub(start))
				}
			}
			if len(f.reads) != 41 {
				t.Errorf("the page was read %d times", len(f.reads))
			}
		})
	})
}

// TestSamplesWithoutBurst: samples order nothing while no more requests come, whatever becomes of the metrics: a frontend
// which does not answer and then has counted on, a cache which gives one page for a while, a frontend which begins anew,
// and workers which have just begun and are not in the table yet.
func TestSamplesWithoutBurst(t *testing.T) {
	for name, disturb := range map[string]func(*fakeFleet, bool){
		"no frontend":       func(f *fakeFleet, is bool) { f.failing = is },
		"frozen":            func(f *fakeFleet, is bool) { f.frozen = is },
		"frozen by a cache": func(f *fakeFleet, is bool) { f.frozen, f.keepDate = is, is },
		"partial":           func(f *fakeFleet, is bool) { f.partial = is },
		"no table":          func(f *fakeFleet, is bool) { f.tableFailing = is },
		"new frontend":      func(f *fakeFleet, _ bool) { f.requests = 0 },
		"cold workers": func(f *fakeFleet, is bool) {
			for _, p := range f.processes {
				p.registered = !is
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeFleet{rate: 8, startUp: time.Second}
			runSampledFleet(t, f, 5*time.Second, func(t *testing.T, p *FleetPlanner) {
				pass(10*time.Minute + time.Second)
				before, raised := orderOf(p), counterOf(t, p, "plan_samples_total", "raised")
				step := func(is bool, d time.Duration) {
					t.Helper()
					f.change(func(f *fakeFleet) { disturb(f, is) })
					pass(d)
					if r := p.LastReport(); orderOf(p) > before || r.Sampled {
						t.Fatalf("%d workers, then %+v, problems %q", before, r.Roles, r.Problems)
					}
				}
				for _, at := range []time.Duration{7, 12, 22, 28} { // seconds of an interval
					pass(at * time.Second)
					step(true, 60*time.Second)
					step(false, 150*time.Second-at*time.Second)
				}
				for range 3 { // within an interval
					pass(8 * time.Second)
					step(true, 11*time.Second)
					step(false, 11*time.Second)
				}
				if n := counterOf(t, p, "plan_samples_total", "kept"); n < 60 {
					t.Errorf("%g samples found no burst", n)
				}
				if n := counterOf(t, p, "plan_samples_total", "raised"); n != raised {
					t.Errorf("%g samples raised an order", n-raised)
				}
				if n := counterOf(t, p, "plan_samples_total", "unknown"); (n > 0) != (name != "new frontend" && name != "cold workers") {
					t.Errorf("of %g samples nothing was known", n)
				}
			})
		})
	}
}

// TestCachedPage: a page which a cache keeps for longer than the time between samples counts in each interval, at its
// rate, and is no burst. One is found all the same.
func TestCachedPage(t *testing.T) {
	for _, kept := range []time.Duration{20 * time.Second, 25 * time.Second} {
		f := &fakeFleet{rate: 8.37, startUp: time.Second, keptFor: kept}
		runSampledFleet(t, f, 5*time.Second, func(t *testing.T, p *FleetPlanner) {
			pass(10*time.Minute + time.Second)
			samples := counterOf(t, p, "plan_samples_total", "kept")
			for range 20 {
				pass(30 * time.Second)
				r := p.LastReport()
				if orderOf(p) != 1 || r.Hold != "" || r.Traffic == nil || math.Abs(r.Traffic.Arrivals-8.37) > 0.1 || len(r.Problems) > 0 {
					t.Fatalf("kept for %v: %+v, traffic %+v, hold %q, problems %q", kept, r.Roles, r.Traffic, r.Hold, r.Problems)
				}
			}
			samples = counterOf(t, p, "plan_samples_total", "kept") - samples
			if raised := counterOf(t, p, "plan_samples_total", "raised"); samples != 20 || raised > 0 {
				t.Errorf("kept for %v: %g samples had a new page, want 20, and %g raised an order", kept, samples, raised)
			}
			f.change(func(f *fakeFleet) { f.rate = 60 })
			pass(kept + 30*time.Second)
			if n := orderOf(p); n < 4 {
				t.Errorf("kept for %v: %d workers are ordered for a burst", kept, n)
			}
		})
	}
}

// counterOf returns the sum of a counter of a planner, of one outcome unless that is "".
func counterOf(t *testing.T, p *FleetPlanner, name, outcome string) (sum float64) {
	t.Helper()
	families, err := p.cfg.Metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "penstock_"+name {
			for _, m := range f.GetMetric() {
				if outcome == "" || m.GetLabel()[0].GetValue() == outcome {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// TestZeroTraffic: without requests the floor stays, which is a measurement and no lack of one.
func TestZeroTraffic(t *testing.T) {
	f := &fakeFleet{startUp: time.Second}
	runFleet(t, f, func(t *testing.T, p *FleetPlanner) {
		pass(30*time.Minute + time.Second)
		if r := p.LastReport(); orderOf(p) != 1 || r.Hold != "" || len(r.Problems) > 0 || r.Roles[0].Actual != 1 {
			t.Errorf("%+v, hold %q, problems %q", r.Roles, r.Hold, r.Problems)
		}
		if calls := f.callsOf(""); !slices.Equal(calls, []string{"start 1"}) {
			t.Error(calls)
		}
	})
}

// TestBadMetrics: while metrics are frozen, missing or partial, nothing shrinks although the load fell, and the plan says
// why.
func TestBadMetrics(t *testing.T) {
	for name, tt := range map[string]struct {
		disturb       func(*fakeFleet)
		hold, problem string
	}{
		"frozen by a cache": {func(f *fakeFleet) { f.frozen, f.keepDate = true, true }, "frozen: they were not measured again", "did not make them again"},
		"frozen":            {func(f *fakeFleet) { f.frozen = true }, "frozen: they were not measured again", "no byte has changed"},
		"missing":           {func(f *fakeFleet) { f.failing = true }, "there are no metrics", "500 Internal Server Error"},
		"partial":           {func(f *fakeFleet) { f.partial = true }, "there are no metrics", "they are partial: penstock_frontend_inter_token_latency_seconds was there before"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeFleet{rate: 60, startUp: time.Second}
			runFleet(t, f, func(t *testing.T, p *FleetPlanner) {
				pass(10*time.Minute + time.Second)
				before := orderOf(p)
				f.change(func(f *fakeFleet) {
					f.rate = 0.1
					tt.disturb(f)
				})
				pass(30 * time.Second)
				if r := p.LastReport(); before < 4 || orderOf(p) != before || !strings.Contains(r.Hold, tt.hold) || !strings.Contains(strings.Join(r.Problems, "\n"), tt.problem) {
					t.Fatalf("%d workers, then %+v, hold %q, problems %q", before, r.Roles, r.Hold, r.Problems)
				}
				if name == "partial" { // what a page lacks for good is not there
					return
				}
				pass(20 * time.Minute)
				if r := p.LastReport(); orderOf(p) != before || !strings.Contains(r.Roles[0].Reason, "hold: ") {
					t.Errorf("%d workers, then %+v", before, r.Roles)
				}
			})
		})
	}
}

// TestWorkerNeverReady: a worker which does not get ready is withdrawn, its process ends, and the plan says so.
func TestWorkerNeverReady(t *testing.T) {
	f := &fakeFleet{rate: 1, startUp: time.Second}
	runFleet(t, f, func(t *testing.T, p *FleetPlanner) {
		pass(2*time.Minute + time.Second)
		f.change(func(f *fakeFleet) { f.rate, f.neverReady = 60, true })
		pass(5 * time.Minute)
		if r := p.LastReport(); orderOf(p) < 4 || r.Roles[0].Actual != 1 {
			t.Fatalf("%+v", r.Roles)
		}
		said := false
		for range 20 {
			pass(30 * time.Second)
			r := p.LastReport().Roles[0]
			said = said || r.Withdrawn > 0 && strings.Contains(r.Reason, "withdrew") && strings.Contains(r.Reason, "not ready")
		}
		if orderOf(p) != 1 || !said {
			t.Errorf("%+v; withdrawn: %v", p.LastReport().Roles, said)
		}
		if drained := f.callsOf("drain"); len(drained) < 3 || slices.Contains(drained, "drain 1") {
			t.Errorf("%v, want the ones which did not get ready", drained)
		}
	})
}

// TestCrashLoop: workers which end at once, or later than the next plan, are not started for ever, and the plan says so.
// One is tried again after a while, so that a fleet at its floor recovers.
func TestCrashLoop(t *testing.T) {
	for _, lives := range []time.Duration{0, 40 * time.Second} {
		f := &fakeFleet{broken: true, startUp: lives}
		runFleet(t, f, func(t *testing.T, p *FleetPlanner) {
			pass(9*time.Minute + time.Second)
			if started := f.callsOf("start"); len(started) != maxFailedStarts {
				t.Errorf("workers which live for %v: %v, want %d", lives, started, maxFailedStarts)
			}
			if r := p.LastReport(); !strings.Contains(strings.Join(r.Problems, "\n"), "no more are started") {
				t.Errorf("problems %q", r.Problems)
			}
			f.change(func(f *fakeFleet) { f.broken = false })
			pass(startAgainAfter)
			if r := p.LastReport(); r.Roles[0].Actual != 1 || len(r.Problems) > 0 {
				t.Errorf("the floor is not there again: %+v, %q", r.Roles, r.Problems)
			}
		})
	}
}

// TestTableFails: while the table of workers cannot be read, nothing is started in place of the workers of others.
func TestTableFails(t *testing.T) {
	f := &fakeFleet{rate: 60, startUp: time.Second, processes: []*fakeProcess{{id: 1, role: "aggregated", registered: true}}}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		connector, err := NewProcessConnector(ProcessConfig{Launch: f.launch, Binary: "penstock", Dir: dir, DrainTimeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		p := newTestPlanner(t, Config{Sources: SourceConfig{Server: "http://fleet"}}, f, connector)
		stop := startPlanner(t, p)
		pass(5*time.Minute + time.Second)
		before := len(f.callsOf("start"))
		if before < 3 || orderOf(p) != before+1 {
			t.Fatalf("%d workers are started beside the one of others, and %d ordered", before, orderOf(p))
		}
		f.change(func(f *fakeFleet) { f.tableFailing = true })
		pass(5 * time.Minute)
		if calls := f.callsOf(""); len(calls) != before {
			t.Errorf("%v, want %d starts", calls, before)
		}
		stop()
	})
}

// failingConnector cannot be told decisions while it fails.
type failingConnector struct {
	Connector
	fails atomic.Bool
}

func (c *failingConnector) ApplyDecision(ctx context.Context, d *FleetDecision, leaving []FleetWorker) error {
	if c.fails.Load() {
		return errors.New("no answer")
	}
	return c.Connector.ApplyDecision(ctx, d, leaving)
}

// TestAcceptedDecision: a plan names the decision which its connector has, and none which could not be told.
func TestAcceptedDecision(t *testing.T) {
	f := &fakeFleet{rate: 1, startUp: time.Second}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		process, err := NewProcessConnector(ProcessConfig{Launch: f.launch, Binary: "penstock", Dir: dir, DrainTimeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		c := &failingConnector{Connector: process}
		c.fails.Store(true)
		p := newTestPlanner(t, Config{Sources: SourceConfig{Server: "http://fleet"}}, f, c)
		stop := startPlanner(t, p)
		pass(time.Minute + time.Second)
		if r := p.LastReport(); r.DecisionID != 0 || len(r.Problems) != 1 {
			t.Errorf("a connector which fails has decision %d; %q", r.DecisionID, r.Problems)
		}
		c.fails.Store(false)
		pass(time.Minute)
		accepted := p.LastReport().DecisionID
		c.fails.Store(true)
		f.change(func(f *fakeFleet) { f.rate = 60 })
		pass(5 * time.Minute)
		if r := p.LastReport(); accepted == 0 || r.DecisionID != accepted || orderOf(p) < 4 {
			t.Errorf("after decision %d: %d, %+v", accepted, r.DecisionID, r.Roles)
		}
		stop()
	})
}

// TestManyWorkersTooMany: a decision has its bound whatever the number of workers which are too many.
func TestManyWorkersTooMany(t *testing.T) {
	p := newTestPlanner(t, Config{Sources: SourceConfig{Server: "http://fleet"}}, &fakeFleet{}, nil)
	var leaving []FleetWorker
	out := plan.Plan{Roles: []plan.RolePlan{{Role: plan.Prefill, Order: 1}, {Role: plan.Decode, Order: 1}}}
	for i := range 10_000 {
		id := ^kv.WorkerID(0) - kv.WorkerID(i)
		leaving = append(leaving, FleetWorker{ID: id, Role: plan.Prefill}, FleetWorker{ID: id, Role: plan.Decode})
	}
	d := p.decideNext(time.Now(), &out, leaving)
	if text, err := json.Marshal(d); err != nil || len(text) > maxAck || d.Roles[1].Leave[0] != ^kv.WorkerID(0) {
		t.Errorf("the decision has %d bytes, %v", len(text), err)
	}
}

// TestProblemsHaveNoQuery: a problem names a page without the query of its URL.
func TestProblemsHaveNoQuery(t *testing.T) {
	s := newSources(SourceConfig{Pages: []string{"http://fleet/metrics?token=hidden"}, Client: &http.Client{Transport: &fakeFleet{failing: true}}})
	r := s.readAll(t.Context(), time.Minute)
	if text := strings.Join(r.problems, "\n"); strings.Contains(text, "hidden") || !strings.Contains(text, "http://fleet/metrics: it answered 500") {
		t.Errorf("problems %q", text)
	}
}

// TestLongStreams: workers whose requests last long drain as long as they may; nothing is started in their place, and the
// floor holds. Beyond that they are killed.
func TestLongStreams(t *testing.T) {
	f := &fakeFleet{rate: 60, startUp: time.Second, drain: 24 * time.Hour}
	runFleet(t, f, func(t *testing.T, p *FleetPlanner) {
		pass(5*time.Minute + time.Second)
		most := orderOf(p)
		f.change(func(f *fakeFleet) { f.rate = 1 })
		pass(30 * time.Minute)
		if r := p.LastReport(); orderOf(p) != 1 || r.Roles[0].Actual != 1 || r.Accelerators != most {
			t.Errorf("%+v takes %d accelerators, want %d", r.Roles, r.Accelerators, most)
		}
		if started, killed := f.callsOf("start"), f.callsOf("kill"); len(started) != most || killed != nil {
			t.Errorf("%v, %v", started, killed)
		}
		pass(time.Hour)
		if killed := f.callsOf("kill"); len(killed) != most-1 {
			t.Errorf("%v, want %d: an hour is the drain timeout", killed, most-1)
		}
		if r := p.LastReport(); r.Accelerators != 1 {
			t.Errorf("%d accelerators are taken", r.Accelerators)
		}
	})
}

// TestRegisteredBeforeItsLine: a process which the table has before the connector has read its line is not taken for one of
// others: nothing drains, and nothing is started in its place.
func TestRegisteredBeforeItsLine(t *testing.T) {
	f := &fakeFleet{neverReady: true}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, err := NewProcessConnector(ProcessConfig{Binary: "penstock", Dir: dir, Launch: f.launch})
		if err != nil {
			t.Fatal(err)
		}
		apply := func(order int, workers ...FleetWorker) {
			t.Helper()
			d := &FleetDecision{Roles: []RoleDecision{{Role: "aggregated", Workers: order}}}
			if err := c.ApplyDecision(t.Context(), d, workers); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		apply(2)
		apply(2, FleetWorker{ID: 1})
		if calls := f.callsOf(""); !slices.Equal(calls, []string{"start 1", "start 2"}) {
			t.Errorf("%v, and one of the two processes is in the table", calls)
		}
		apply(3, FleetWorker{ID: 9}) // of others, which is not known as long as processes start
		if calls := f.callsOf(""); len(calls) != 2 {
			t.Errorf("%v, and three workers exist", calls)
		}
		apply(0, FleetWorker{ID: 1}, FleetWorker{ID: 9})
		if calls := f.callsOf("drain"); len(calls) != 2 {
			t.Errorf("%v, and none is ordered", calls)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestOldDirectories: the directories of the last workers stay, and the ones before them go.
func TestOldDirectories(t *testing.T) {
	f := &fakeFleet{startUp: time.Second}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, err := NewProcessConnector(ProcessConfig{Binary: "penstock", Dir: dir, Launch: f.launch})
		if err != nil {
			t.Fatal(err)
		}
		for _, order := range []int{maxKeptDirs / 2, 0, maxKeptDirs, 0} {
			if err := c.ApplyDecision(t.Context(), &FleetDecision{Roles: []RoleDecision{{Role: "aggregated", Workers: order}}}, nil); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != maxKeptDirs || slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() == "worker-1" }) {
		t.Errorf("%d directories are left: %v, %v", len(left), left, err)
	}
}

// TestForeignWorkers: workers which others have started count, and are not touched.
func TestForeignWorkers(t *testing.T) {
	c, err := NewProcessConnector(ProcessConfig{Binary: "penstock", Dir: t.TempDir(), Launch: func(string, []string, string) (LaunchedProcess, error) {
		return nil, errors.New("no more processes")
	}})
	if err != nil {
		t.Fatal(err)
	}
	workers := []FleetWorker{{ID: 1}, {ID: 2}, {ID: 3}}
	d := &FleetDecision{Roles: []RoleDecision{{Role: "aggregated", Workers: 2}}}
	if err := c.ApplyDecision(t.Context(), d, workers); err != nil {
		t.Fatal(err)
	}
	if _, problems := c.DescribeFleet(t.Context(), []plan.WorkerRole{plan.Aggregated}); len(problems) != 1 || !strings.Contains(problems[0], "1 workers of role aggregated are more than ordered") {
		t.Errorf("problems %q", problems)
	}
	d.Roles[0].Workers = 4
	if err := c.ApplyDecision(t.Context(), d, workers); err == nil || !strings.Contains(err.Error(), "no more processes") {
		t.Errorf("error %v", err)
	}
	if fleet, _ := c.DescribeFleet(t.Context(), []plan.WorkerRole{plan.Aggregated}); fleet[0].Refused != 1 {
		t.Errorf("fleet %+v", fleet)
	}
	for range maxFailedStarts - 1 {
		if err := c.ApplyDecision(t.Context(), d, workers); err == nil {
			t.Error("a process was started")
		}
	}
	if _, problems := c.DescribeFleet(t.Context(), []plan.WorkerRole{plan.Aggregated}); len(problems) != 1 || !strings.HasSuffix(problems[0], "no more processes") {
		t.Errorf("problems %q", problems)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
