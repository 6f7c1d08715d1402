package simcluster

import (
	"reflect"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
	"penstock/core/route"
	"penstock/core/splitmix"
	"penstock/internal/replay"
)

// scalingJournal also keeps the use of workers.
type scalingJournal struct {
	journal
	use ScalingUse
}

func (j *scalingJournal) RecordScaling(u ScalingUse) { j.use = u }

// listedScaler has a number of workers for each interval, the last one from then on, and keeps what it was told.
type listedScaler struct {
	list    []int
	reports []ScaleReport
}

func (s *listedScaler) DecideWorkers(r *ScaleReport) int {
	s.reports = append(s.reports, *r)
	return s.list[min(len(s.reports), len(s.list))-1]
}

// steadyRequests returns requests at equal distances, whose prompts share nothing.
func steadyRequests(n int, every time.Duration, input, output int) []replay.Request {
	all := make([]replay.Request, n)
	for i := range all {
		all[i] = replay.Request{Index: i, At: time.Duration(i) * every, Input: input, Output: output}
	}
	return all
}

func runScaling(t *testing.T, cfg Config, all []replay.Request) *scalingJournal {
	t.Helper()
	j := &scalingJournal{}
	if err := Run(t.Context(), cfg, &requests{all: all}, j); err != nil {
		t.Fatal(err)
	}
	return j
}

func scalingConfig(s Scaler) Config {
	return Config{
		Workers: 4, Blocks: 4000, Route: route.Config{Mode: route.LeastLoaded},
		Scaling: Scaling{Scaler: s, Initial: 1, Interval: 30 * time.Second, StartUp: time.Minute, DrainLimit: time.Hour},
	}
}

// TestOrderedWorkerStarts: an ordered worker serves a start-up later, and is paid from its order to the end.
func TestOrderedWorkerStarts(t *testing.T) {
	s := &listedScaler{list: []int{3}}
	all := steadyRequests(1500, 100*time.Millisecond, 200, 20)
	j := runScaling(t, scalingConfig(s), all)
	first := map[uint64]time.Duration{}
	for _, a := range j.samples {
		if a.Error != "" {
			t.Fatalf("%+v", a)
		}
		if at, known := first[a.Worker]; !known || a.Sent < at {
			first[a.Worker] = a.Sent
		}
	}
	if len(first) != 3 || first[1] != 0 {
		t.Fatalf("workers have their first requests at %v, want three workers", first)
	}
	for _, w := range []uint64{2, 3} {
		if first[w] < 90*time.Second || first[w] > 91*time.Second {
			t.Errorf("worker %d has its first request after %v, want 90 s: an interval and a start-up", w, first[w])
		}
	}
	last := j.samples[len(j.samples)-1].Done
	if want := 3*last - 60*time.Second; j.use.WorkerTime != want || j.use.Steps != 1 || j.use.Most != 3 {
		t.Errorf("the use is %+v, want a time of %v, one step and 3 workers", j.use, want)
	}
	if r := s.reports[1]; r.Fleet.Ready != 1 || r.Fleet.Starting != 2 {
		t.Errorf("after the order the fleet is %+v", r.Fleet)
	}
	if r := s.reports[2].Traffic; r == nil || r.Arrivals < 299 || r.Arrivals > 301 || r.InputTokens != 200 || r.OutputTokens != 20 || !(r.TTFT > 0 && r.ITL > 0) {
		t.Errorf("the metrics are %+v", r)
	}
}

// sampledScaler has two workers from its second sample on, and keeps its samples and their times.
type sampledScaler struct {
	listedScaler
	samples []plan.IntervalSample
	times   []time.Duration
}

func (s *sampledScaler) DecideSample(now time.Duration, sample plan.IntervalSample) (int, bool) {
	s.samples, s.times = append(s.samples, sample), append(s.times, now)
	return 2, len(s.samples) == 2
}

// TestSamples: samples of an interval have its arrivals as far as they came, and a worker ordered by one starts then.
func TestSamples(t *testing.T) {
	s := &sampledScaler{listedScaler: listedScaler{list: []int{2}}}
	cfg := scalingConfig(s)
	cfg.Scaling.SampleEvery = 7 * time.Second
	j := runScaling(t, cfg, steadyRequests(1000, 100*time.Millisecond, 200, 20))
	for i, want := range []time.Duration{7 * time.Second, 14 * time.Second, 21 * time.Second, 28 * time.Second, 37 * time.Second} {
		if got := s.samples[i].Arrivals; s.times[i] != want || got < 69 || got > 71 {
			t.Errorf("sample %d has %g arrivals at %v, want 70 at %v", i, got, s.times[i], want)
		}
	}
	if got := s.reports[0].Traffic.Arrivals; got < 299 || got > 301 {
		t.Errorf("the interval has %g arrivals, want 300", got)
	}
	first := time.Duration(0)
	for _, a := range j.samples {
		if a.Worker == 2 && (first == 0 || a.Sent < first) {
			first = a.Sent
		}
	}
	if first < 74*time.Second || first > 75*time.Second {
		t.Errorf("the worker which the sample of 14 s ordered has its first request at %v, want 74 s", first)
	}
}

// TestDrainedWorkerFinishes: a worker which leaves gets no request, and finishes what it has; with a drain of no time they
// move to another worker.
func TestDrainedWorkerFinishes(t *testing.T) {
	for _, limit := range []time.Duration{time.Hour, 0} {
		cfg := scalingConfig(&listedScaler{list: []int{2, 1}})
		cfg.Scaling.Initial, cfg.Scaling.DrainLimit = 2, limit
		cfg.Blocks = 20_000
		j := runScaling(t, cfg, steadyRequests(120, time.Second, 100, 2000))
		moved, left := 0, time.Duration(0)
		for _, a := range j.samples {
			if a.Error != "" || a.Output != 2000 {
				t.Fatalf("%v: %+v", limit, a)
			}
			if a.Worker == 2 {
				left = max(left, a.Done)
				if a.Sent > 61*time.Second {
					t.Errorf("%v: the worker which left at 60 s got a request at %v", limit, a.Sent)
				}
			} else if a.Sent < 60*time.Second {
				moved++
			}
		}
		last := j.samples[len(j.samples)-1].Done
		second := j.use.WorkerTime - last
		switch {
		case limit > 0 && left < 70*time.Second:
			t.Errorf("the last answer of the worker which left ended at %v: it did not finish them", left)
		case limit > 0 && (second < left || second > left+2*drainCheckEvery):
			t.Errorf("the worker is paid for %v, and its last answer ended at %v", second, left)
		case limit == 0 && second != 60*time.Second:
			t.Errorf("the worker is paid for %v, want a minute", second)
		case limit == 0 && moved < 34:
			t.Errorf("%d requests of the first minute ended at the worker which stayed", moved)
		}
	}
}

// wildScaler decides at random.
type wildScaler struct{ random splitmix.Source }

func (s *wildScaler) DecideWorkers(*ScaleReport) int { return 1 + s.random.Below(6) }

// TestScalingWithFaults: with crashes, drains of other reasons, failed starts, lost metrics and random decisions every
// request is over once, and the same run gives the same answers.
func TestScalingWithFaults(t *testing.T) {
	all := assistants.make(3)
	for seed := range uint64(8) {
		run := func() *scalingJournal {
			cfg := scalingConfig(&wildScaler{splitmix.Source(seed)})
			cfg.Workers, cfg.Seed, cfg.Route.Mode = 5, seed, route.KV
			cfg.Scaling.Interval, cfg.Scaling.StartUp, cfg.Scaling.DrainLimit = 2*time.Second, time.Second, time.Duration(seed%3)*time.Second
			cfg.Scaling.StartsFailed, cfg.Scaling.MetricsLost = 0.2, 0.2
			cfg.Faults = Faults{CrashEvery: 10 * time.Second, MaxDowntime: 3 * time.Second, DrainShare: 0.5, Lease: 2 * time.Second}
			return runScaling(t, cfg, all)
		}
		j := run()
		checkAnswers(t, all, &j.journal)
		if again := run(); !reflect.DeepEqual(j, again) {
			t.Errorf("seed %d: another run has other answers", seed)
		}
		if j.use.Most > 5 || j.use.WorkerTime <= 0 {
			t.Errorf("seed %d: the use is %+v", seed, j.use)
		}
	}
}

// TestStatesOfWorkers: after every event of a run with faults, absent and starting workers neither serve nor are
// registered, and an ordered worker serves a start-up after its order, not earlier.
func TestStatesOfWorkers(t *testing.T) {
	all := assistants.make(4)
	for seed := range uint64(20) {
		cfg := scalingConfig(&wildScaler{splitmix.Source(seed)})
		cfg.Workers, cfg.Seed = 5, seed
		cfg.Scaling.Interval, cfg.Scaling.StartUp, cfg.Scaling.DrainLimit = time.Second, 3500*time.Millisecond, 0
		cfg.Faults = Faults{CrashEvery: 5 * time.Second, MaxDowntime: 5 * time.Second, DrainShare: 0.5, Lease: 2 * time.Second}
		c, err := newCluster(cfg, &requests{all: all}, &journal{})
		if err != nil {
			t.Fatal(err)
		}
		for before := make([]presence, 5); !c.isFinished(); copy(before, c.scaling.states) {
			if err := c.runEvent(); err != nil {
				t.Fatal(err)
			}
			for i, p := range c.scaling.states {
				if w := &c.workers[i]; (p == absent || p == starting) && (w.alive || w.registered) {
					t.Fatalf("seed %d, %v: worker %d does not exist, and serves: %v, is registered: %v", seed, c.now, i, w.alive, w.registered)
				}
				if p == present && before[i] == starting && c.now.Sub(c.scaling.ordered[i]) < cfg.Scaling.StartUp {
					t.Fatalf("seed %d: worker %d serves %v after its order", seed, i, c.now.Sub(c.scaling.ordered[i]))
				}
			}
		}
	}
}

// TestOracleOrdersAhead: the oracle orders for the interval which begins a start-up later, and no earlier.
func TestOracleOrdersAhead(t *testing.T) {
	cfg := scalingConfig(nil)
	cfg.Workers = 40
	cfg.EnsureDefaults()
	c := &PlannerComparison{Cluster: cfg, Work: madeWorkload(steadyRequests(50, time.Second, 4000, 100)), Measure: replay.RecorderConfig{SLO: replay.SLO{TTFT: 500, ITL: 50}}}
	if err := c.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.arrivals = []float64{30, 30, 30, 30, 900, 900, 30, 30, 30}
	planner, err := plan.New(c.plan)
	if err != nil {
		t.Fatal(err)
	}
	oracle := &oracleScaler{sizedFleet: &sizedFleet{planner: planner, comparison: c}, ahead: cfg.Scaling.StartUp}
	few, many := 0, planner.SizeFor(&c.first, 30)[0]
	for i := 1; i < 8; i++ {
		traffic := c.first
		now := time.Duration(i) * cfg.Scaling.Interval
		traffic.At = kv.Mono(now)
		n := oracle.DecideWorkers(&ScaleReport{Now: now, Traffic: &traffic, Fleet: plan.RoleFleet{Ready: 1}})
		if i == 1 {
			few = n
		}
		// Intervals 4 and 5 are busy, from 120 s to 180 s; workers which are ordered at 60 s serve from 120 s on.
		if busy := i >= 2 && i <= 5; busy != (n == many) || !busy && n != few || few >= many {
			t.Errorf("after %v: %d workers; %d are few and %d many", now, n, few, many)
		}
	}
}

// madeWorkload is a workload of requests which are there.
type madeWorkload []replay.Request

func (w madeWorkload) Open() (replay.Source, error) { return &requests{all: w}, nil }

// TestPlannerComparison: on a step of the load each planner keeps its promise: the static fleet is the smallest good one,
// the oracle takes less than it, and so does the planner, which comes near its attainment.
func TestPlannerComparison(t *testing.T) {
	random := splitmix.Source(5)
	var all madeWorkload
	for at := time.Duration(0); at < 30*time.Minute; {
		every := 2 * time.Second
		if at > 10*time.Minute && at < 20*time.Minute {
			every = 400 * time.Millisecond
		}
		at += time.Duration(random.Below(int(2 * every)))
		all = append(all, replay.Request{Index: len(all), At: at, Input: 4000 + random.Below(8000), Output: 50 + random.Below(100)})
	}
	cfg := scalingConfig(nil)
	cfg.Workers, cfg.Blocks = 8, 20_000
	cfg.EnsureDefaults()
	c := &PlannerComparison{Cluster: cfg, Work: all, Measure: replay.RecorderConfig{SLO: replay.SLO{TTFT: 500, ITL: 50}}}
	if err := c.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows := map[string]PlannerRow{}
	for _, mode := range append(PlannerModes(), PlannerMode) {
		row, err := c.RunMode(t.Context(), mode, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		if row.Requests != len(all) || row.Planner != mode || row.Errors > 0 {
			t.Errorf("%s: %+v", mode, row)
		}
		if first, again := rows[mode]; again && !reflect.DeepEqual(first, row) {
			t.Errorf("another run has another row: %+v, %+v", first, row)
		}
		rows[mode] = row
	}
	fewer, err := c.runScaled(t.Context(), constantScaler(rows[StaticMode].Workers-1), rows[StaticMode].Workers-1)
	most, mostErr := c.runScaled(t.Context(), constantScaler(cfg.Workers), cfg.Workers)
	if err != nil || mostErr != nil {
		t.Fatal(err, mostErr)
	}
	if rows[StaticMode].Attainment < most.Attainment-staticSlack || fewer.Attainment >= most.Attainment-staticSlack {
		t.Errorf("%d workers keep %g, one less %g, the most %g", rows[StaticMode].Workers, rows[StaticMode].Attainment, fewer.Attainment, most.Attainment)
	}
	static, oracle, planner := rows[StaticMode], rows[OracleMode], rows[PlannerMode]
	if oracle.WorkerHours >= static.WorkerHours || planner.WorkerHours >= static.WorkerHours || planner.Attainment < static.Attainment-0.03 {
		t.Errorf("planner %+v, oracle %+v, static %+v", planner, oracle, static)
	}
}
