package simcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// The names of the ways to size a fleet which PlannerComparison knows.
const (
	// PlannerMode is the planner of core/plan.
	PlannerMode = "planner"
	// ReactiveMode is the rule of the Horizontal Pod Autoscaler, at 70 % load.
	ReactiveMode = "reactive"
	// StaticMode is the smallest constant number within 0.1 points of the best constant attainment.
	StaticMode = "static"
	// OracleMode has the planner's sizes for the true arrivals, ordered one start-up ahead.
	OracleMode = "oracle"
	// PresentMode has the planner's sizes for the true arrivals of the interval which begins, ordered then: without
	// foresight beyond that interval.
	PresentMode = "present"
)

// PlannerModes returns the names, in the order of the rows of a comparison.
func PlannerModes() []string {
	return []string{PlannerMode, ReactiveMode, StaticMode, OracleMode, PresentMode}
}

// PlannerComparison compares ways to size a fleet on one workload.
type PlannerComparison struct {
	// Cluster is the cluster; its Workers are the ceiling. Scaling has all but the Scaler, Initial and First.
	Cluster Config
	// Measure configures the measurements; its SLO has the targets of TTFT and ITL.
	Measure replay.RecorderConfig
	Work    replay.Workload

	plan     plan.Config
	first    plan.Traffic // of the first interval
	arrivals []float64    // true ones, by interval
	initial  int
}

// PlannerRow is the result of one way to size a fleet.
type PlannerRow struct {
	Planner string `json:"planner"`
	// Attainment is the share of all requests within both targets; a failed request is not.
	Attainment float64 `json:"slo_attainment"`
	// WorkerHours are virtual, from the order of each worker to the end of its drain.
	WorkerHours float64 `json:"worker_hours"`
	// Workers is the largest number at once, and Steps counts the changes of the number.
	Workers  int                 `json:"most_workers"`
	Steps    int                 `json:"steps"`
	Requests int                 `json:"requests"`
	Errors   int                 `json:"errors"`
	TTFT     replay.Distribution `json:"ttft_ms"`
	ITL      replay.Distribution `json:"itl_ms"`
	// Duration is from the first request to the end of the last response, in seconds.
	Duration float64 `json:"duration_s"`
}

// staticSlack is by how much the attainment of a static fleet may be below the best constant one, and reactiveLoad the load
// which the reactive rule aims at.
const (
	staticSlack  = 0.001
	reactiveLoad = 0.7
)

// Prepare reads the workload once, and finds the size with which every run begins: the one which the first interval needs.
// The runs can then be concurrent.
func (p *PlannerComparison) Prepare(ctx context.Context) error {
	c := &p.Cluster
	p.plan = plan.Config{
		Roles: []plan.RoleConfig{{
			Role: plan.Aggregated, Ceiling: c.Workers, Models: []plan.EngineModel{sim.PlanModel{Timing: &c.Timing, CacheTokens: c.Blocks * c.BlockSize}},
			MaxSequences: c.MaxSeqs, TokenBudget: c.TokenBudget, CacheTokens: c.Blocks * c.BlockSize,
		}},
		Targets:  plan.Targets{TTFT: toTime(p.Measure.SLO.TTFT), ITL: toTime(p.Measure.SLO.ITL)},
		Interval: c.Scaling.Interval, StartUp: c.Scaling.StartUp,
	}
	if err := p.readArrivals(ctx); err != nil {
		return err
	}
	planner, err := plan.New(p.plan)
	if err != nil {
		return err
	}
	p.initial = planner.SizeFor(&p.first, p.first.Arrivals/c.Scaling.Interval.Seconds())[0]
	return nil
}

func toTime(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// readArrivals counts the requests of each interval. What requests are like at first is the mean of the first interval.
func (p *PlannerComparison) readArrivals(ctx context.Context) (err error) {
	source, err := p.Work.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	var input, output, squares, outputSquares float64
	var r replay.Request
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		switch err := source.Next(&r); {
		case errors.Is(err, io.EOF) && n == 0:
			return errors.New("the workload has no requests")
		case errors.Is(err, io.EOF):
			t := &p.first
			count := float64(n)
			if p.arrivals[0] > 0 {
				count = p.arrivals[0]
			}
			t.Arrivals, t.InputTokens, t.OutputTokens = p.arrivals[0], input/count, output/count
			t.InputSpread, t.OutputSpread = spreadOf(count, input, squares), spreadOf(count, output, outputSquares)
			return nil
		case err != nil:
			return err
		case r.At < 0:
			return fmt.Errorf("simcluster: request %d does not say when it is sent: choose an arrival process", r.Index)
		}
		at := int(r.At / p.Cluster.Scaling.Interval)
		if at > maxIntervals {
			return fmt.Errorf("simcluster: request %d is sent %v after the first one: planners are compared over %d intervals", r.Index, r.At, maxIntervals)
		}
		for len(p.arrivals) <= at {
			p.arrivals = append(p.arrivals, 0)
		}
		p.arrivals[at]++
		if at == 0 || p.arrivals[0] == 0 { // of the first interval, or until there is one with requests
			input, output = input+float64(r.Input), output+float64(r.Output)
			squares += float64(float64(r.Input) * float64(r.Input))
			outputSquares += float64(float64(r.Output) * float64(r.Output))
		}
	}
}

// maxIntervals bounds the arrivals of a comparison, 8 bytes each.
const maxIntervals = 1 << 24

// RunMode runs the workload with one way to size the fleet. It calls progress after each run with what it was.
func (p *PlannerComparison) RunMode(ctx context.Context, mode string, progress func(string)) (PlannerRow, error) {
	if mode == StaticMode {
		return p.findStatic(ctx, progress)
	}
	planner, err := plan.New(p.plan)
	if err != nil {
		return PlannerRow{}, err
	}
	sized := &sizedFleet{planner: planner, comparison: p}
	var s Scaler
	switch mode {
	case PlannerMode:
		s = &sampledFleet{sized}
	case ReactiveMode:
		s = &reactiveScaler{sizedFleet: sized}
	case OracleMode:
		s = &oracleScaler{sizedFleet: sized, ahead: p.Cluster.Scaling.StartUp}
	case PresentMode:
		s = &oracleScaler{sizedFleet: sized}
	default:
		return PlannerRow{}, fmt.Errorf("simcluster: there is no planner %.40q", mode)
	}
	row, err := p.runScaled(ctx, s, p.initial)
	row.Planner = mode
	progress(fmt.Sprintf("%s: %.2f %% within the targets, %.1f worker hours", mode, 100*row.Attainment, row.WorkerHours))
	return row, err
}

// runScaled runs the workload with a Scaler.
func (p *PlannerComparison) runScaled(ctx context.Context, s Scaler, initial int) (row PlannerRow, err error) {
	source, err := p.Work.Open()
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	cfg := p.Cluster
	cfg.Scaling.Scaler, cfg.Scaling.Initial, cfg.Scaling.First = s, initial, p.first
	record := &scalingRecord{Recorder: replay.NewRecorder(p.Measure)}
	if err := Run(ctx, cfg, source, record); err != nil {
		return row, err
	}
	run := record.Run().Row
	return PlannerRow{
		Attainment: run.Goodput.Share, WorkerHours: record.use.WorkerTime.Hours(), Workers: record.use.Most, Steps: record.use.Steps,
		Requests: run.Requests, Errors: run.Errors, TTFT: run.TTFT, ITL: run.ITL, Duration: run.Duration,
	}, nil
}

// scalingRecord keeps the use of workers beside the measurements.
type scalingRecord struct {
	*replay.Recorder
	use ScalingUse
}

// RecordScaling implements ScalingRecorder.
func (r *scalingRecord) RecordScaling(u ScalingUse) { r.use = u }

// constantScaler keeps a number of workers.
type constantScaler int

// DecideWorkers implements Scaler.
func (n constantScaler) DecideWorkers(*ScaleReport) int { return int(n) }

// findStatic finds the smallest constant number whose attainment is within staticSlack of the best one. Attainment rises
// with the number, so that halving finds it; if a number on the way is better than the ceiling, that one is the best.
func (p *PlannerComparison) findStatic(ctx context.Context, progress func(string)) (PlannerRow, error) {
	rows := map[int]PlannerRow{}
	best := 0.0
	try := func(n int) (PlannerRow, error) {
		row, known := rows[n]
		if !known {
			var err error
			if row, err = p.runScaled(ctx, constantScaler(n), n); err != nil {
				return row, err
			}
			row.Planner = StaticMode
			rows[n] = row
			best = max(best, row.Attainment)
			progress(fmt.Sprintf("static, %d workers: %.2f %% within the targets, %.1f worker hours", n, 100*row.Attainment, row.WorkerHours))
		}
		return row, nil
	}
	row, err := try(p.Cluster.Workers)
	for known := -1; err == nil && known != len(rows); {
		known = len(rows)
		low, high := 1, p.Cluster.Workers
		for low < high && err == nil {
			middle := (low + high) / 2
			if row, err = try(middle); row.Attainment >= best-staticSlack {
				high = middle
			} else {
				low = middle + 1
			}
		}
		if err == nil {
			row, err = try(low)
		}
	}
	return row, err
}

// sizedFleet is the planner of core/plan.
type sizedFleet struct {
	planner    *plan.Planner
	comparison *PlannerComparison
	learned    bool
}

// DecideWorkers implements Scaler.
func (s *sizedFleet) DecideWorkers(r *ScaleReport) int {
	p := s.planner.HandleInterval(kv.Mono(r.Now), plan.Observation{Traffic: r.Traffic, Fleet: []plan.RoleFleet{r.Fleet}})
	return p.Roles[0].Order
}

// sampledFleet is the planner of core/plan with samples between its intervals.
type sampledFleet struct{ *sizedFleet }

// DecideSample implements Sampler.
func (s *sampledFleet) DecideSample(now time.Duration, sample plan.IntervalSample) (order int, decided bool) {
	p, raised := s.planner.HandleSample(kv.Mono(now), sample)
	if !raised {
		return 0, false
	}
	return p.Roles[0].Order, true
}

// sizeAt returns the planner's size for a rate in requests a second, which are like the latest ones.
func (s *sizedFleet) sizeAt(rate float64) int { return s.planner.SizeFor(nil, rate)[0] }

// reactiveScaler is the rule of the Horizontal Pod Autoscaler:
//
//	desired = ceil(workers·load/target)    unless |load/target - 1| <= 0.1
//
// where workers are the ones which exist, and the largest one of the last five minutes counts. The load is the requests a
// second over what the workers which serve can do within the targets, by the planner's model of the engine.
type reactiveScaler struct {
	*sizedFleet
	past []pastSize
}

// pastSize is a decision of the rule at a time.
type pastSize struct {
	at time.Duration
	n  int
}

const (
	reactiveTolerance = 0.1
	reactiveWindow    = 5 * time.Minute
)

// DecideWorkers implements Scaler.
func (s *reactiveScaler) DecideWorkers(r *ScaleReport) int {
	existing := r.Fleet.Ready + r.Fleet.Starting
	if r.Traffic == nil {
		return existing
	}
	s.sizedFleet.DecideWorkers(r)
	rate := r.Traffic.Arrivals / s.comparison.Cluster.Scaling.Interval.Seconds()
	desired := existing
	if ready := max(r.Fleet.Ready, 1); rate > 0 {
		ratio := rate / (float64(ready) * s.oneWorkerRate(rate)) / reactiveLoad
		if math.Abs(ratio-1) > reactiveTolerance {
			desired = int(math.Ceil(float64(ready) * ratio))
		}
	} else {
		desired = 1
	}
	desired = min(max(desired, 1), s.comparison.Cluster.Workers)
	first := 0
	for first < len(s.past) && r.Now-s.past[first].at >= reactiveWindow {
		first++
	}
	s.past = append(s.past[first:], pastSize{r.Now, desired})
	most := desired
	for _, p := range s.past {
		most = max(most, p.n)
	}
	if desired > existing || r.Now < reactiveWindow {
		return max(desired, existing)
	}
	return min(most, existing)
}

// oneWorkerRate returns the largest rate, in requests a second, for which the planner's size is one worker.
func (s *reactiveScaler) oneWorkerRate(rate float64) float64 {
	low, high := 0.0, max(rate, 1e-3)
	for s.sizeAt(high) == 1 && high < 1e6 {
		low, high = high, 2*high
	}
	for range 20 {
		if middle := (low + high) / 2; s.sizeAt(middle) == 1 {
			low = middle
		} else {
			high = middle
		}
	}
	return max(low, 1e-9)
}

// oracleScaler knows the arrivals of the intervals to come. It has at every time the size which the busiest of the
// intervals needs which are over some time ahead, or which run until then.
type oracleScaler struct {
	*sizedFleet
	ahead time.Duration
}

// DecideWorkers implements Scaler.
func (s *oracleScaler) DecideWorkers(r *ScaleReport) int {
	if r.Traffic == nil { // it needs no metrics but what requests are like
		t := s.comparison.first
		t.At, t.Arrivals = kv.Mono(r.Now), 0
		r.Traffic = &t
	}
	if r.Traffic.Arrivals > 0 {
		s.learned = true
	}
	s.sizedFleet.DecideWorkers(r)
	if !s.learned {
		return s.comparison.initial
	}
	c := &s.comparison.Cluster.Scaling
	next := int(r.Now / c.Interval)
	last := int((r.Now + s.ahead + c.Interval - 1) / c.Interval)
	most := 0.0
	for i := next; i <= last && i < len(s.comparison.arrivals); i++ {
		most = max(most, s.comparison.arrivals[i])
	}
	if most == 0 {
		return 1
	}
	return s.sizeAt(most / c.Interval.Seconds())
}
