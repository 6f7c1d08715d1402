// Package planner is the shell of core/plan: every interval it reads what frontends, routers and workers say of a fleet,
// has the machine decide, and gives the decision to a connector, which starts and drains workers. Samples between two
// intervals find bursts early.
//
//	sources    -> traffic, workers      pages of metrics, and a server's table of workers
//	core/plan  -> plan                  how many workers of each role
//	Connector  <- decision              process, virtual or webhook; none is a dry run
package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
	"penstock/internal/obs"
)

// Config configures a FleetPlanner.
type Config struct {
	// Plan configures the machine which decides. Its Interval is the time between two readings.
	Plan plan.Config
	// SampleEvery is the time between two samples of an interval: looks at arrivals and queues which find a burst before the
	// interval ends. 0 is for none.
	SampleEvery time.Duration
	Sources     SourceConfig
	Namespace   string
	// ConnectorName names the connector in reports.
	ConnectorName string
	Log           *slog.Logger
	Metrics       *obs.Metrics
}

// EnsureDefaults fills in the fields which are not set.
func (c *Config) EnsureDefaults() {
	c.Plan.EnsureDefaults()
	c.ConnectorName = cmp.Or(c.ConnectorName, "none")
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Sources.Client = cmp.Or(c.Sources.Client, http.DefaultClient)
}

// Validate reports all problems of c, and nil if there are none.
func (c *Config) Validate() error {
	var errs []error
	if c.Plan.Interval < minInterval {
		errs = append(errs, fmt.Errorf("planner: decisions are at least %v apart, not %v", minInterval, c.Plan.Interval))
	}
	if c.SampleEvery != 0 && c.SampleEvery < minSample {
		errs = append(errs, fmt.Errorf("planner: samples are at least %v apart, not %v", minSample, c.SampleEvery))
	}
	if c.Sources.Server == "" && len(c.Sources.Pages) == 0 {
		errs = append(errs, errors.New("planner: there is neither a server nor a page of metrics to read"))
	}
	if c.Metrics == nil {
		errs = append(errs, errors.New("planner: there is no registry of metrics"))
	}
	return errors.Join(errs...)
}

const (
	// minInterval is the least interval, and minSample the least time between two samples: the clocks of pages have seconds.
	minInterval = 2 * time.Second
	minSample   = time.Second
	// maxReadTime bounds the readings of an interval.
	maxReadTime = 10 * time.Second
	// dryStartTimeout is the time after which a dry run withdraws orders: the largest one.
	dryStartTimeout = 31 * 24 * time.Hour
)

// FleetPlanner decides every interval how many workers a fleet has. Run drives it; LastReport is safe beside that.
type FleetPlanner struct {
	cfg       Config
	machine   *plan.Planner
	roles     []plan.WorkerRole
	sources   *sources
	connector Connector // nil in a dry run
	metrics   *plannerMetrics
	throttle  *obs.Throttle
	startedAt time.Time
	decision  FleetDecision // the last one
	accepted  uint64        // id of the last one which the connector has accepted
	leaving   []FleetWorker // workers of the last table which could be read, in the order in which they should leave
	// intervalEnd is when the last interval ended, and sampled are the arrivals since then which samples had.
	intervalEnd time.Time
	sampled     float64

	mu struct {
		sync.Mutex
		report *PlanReport // nil before the first interval
	}
}

// PlanReport is a plan with what it was made from, and what became of it.
type PlanReport struct {
	// Time is when it was decided, in RFC 3339.
	Time      string `json:"time"`
	Namespace string `json:"namespace"`
	// Connector is the name of the connector, "none" in a dry run.
	Connector string `json:"connector"`
	// DecisionID is the id of the last decision which the connector has accepted, 0 if there is none.
	DecisionID uint64 `json:"decision_id"`
	// Interval is the time between two plans, in seconds.
	Interval float64 `json:"interval_s"`
	// Sampled says that a sample between two intervals made it, because of a burst.
	Sampled bool `json:"sampled,omitempty"`
	// Traffic is the one of the last interval, nil if it is not known.
	Traffic *TrafficReport `json:"traffic"`
	plan.Plan
	// Leave has, by role, the workers which are more than ordered: the ones which lose least.
	Leave map[string][]kv.WorkerID `json:"leave,omitempty"`
	// Problems say in words what could not be read, and what the connector could not do.
	Problems []string `json:"problems"`
}

// TrafficReport is the traffic of an interval.
type TrafficReport struct {
	// Arrivals is in requests a second. InputTokens and OutputTokens are means.
	Arrivals     float64 `json:"arrivals_per_s"`
	InputTokens  float64 `json:"input_tokens"`
	OutputTokens float64 `json:"output_tokens"`
	CachedShare  float64 `json:"cached_share"`
	TTFT         float64 `json:"ttft_ms"`
	ITL          float64 `json:"itl_ms"`
}

// New returns a planner. connector may be nil: decisions are then shown, and not carried out. The planner closes it.
func New(cfg Config, connector Connector) (*FleetPlanner, error) {
	if connector == nil { // nothing starts: that is no reason to give up an order
		cfg.Plan.StartTimeout = dryStartTimeout
	}
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	machine, err := plan.New(cfg.Plan)
	if err != nil {
		return nil, err
	}
	p := &FleetPlanner{
		cfg: cfg, machine: machine, sources: newSources(cfg.Sources), connector: connector, metrics: newMetrics(cfg.Metrics),
		throttle: obs.NewThrottle(cfg.Log, time.Minute),
	}
	for i := range cfg.Plan.Roles {
		p.roles = append(p.roles, cfg.Plan.Roles[i].Role)
	}
	return p, nil
}

// Run reads and decides every interval until ctx ends, closes the connector, and returns nil.
func (p *FleetPlanner) Run(ctx context.Context) error {
	p.startedAt = time.Now()
	p.intervalEnd = p.startedAt
	// Ids ascend also over restarts, as long as the clock does.
	p.decision.ID = uint64(max(p.startedAt.UnixMilli(), 1))
	ticker := time.NewTicker(p.cfg.Plan.Interval)
	defer ticker.Stop()
	sampler := time.NewTicker(p.sampleInterval())
	defer sampler.Stop()
	due := p.startedAt.Add(p.cfg.Plan.Interval)
	p.readSources(ctx) // counts begin with a first reading
	for ctx.Err() == nil {
		select {
		case at := <-ticker.C:
			p.handleInterval(ctx)
			due = at.Add(p.cfg.Plan.Interval)
			sampler.Reset(p.sampleInterval())
		case <-sampler.C:
			if time.Until(due) >= p.sampleInterval()/2 { // else the interval's own reading is near
				p.handleSample(ctx)
			}
		case <-ctx.Done():
		}
	}
	p.throttle.Flush(context.WithoutCancel(ctx))
	if p.connector == nil {
		return nil
	}
	return p.connector.Close()
}

// LastReport returns the last plan, nil before the first interval is over.
func (p *FleetPlanner) LastReport() *PlanReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.report
}

// PlanInterval returns the time between two plans.
func (p *FleetPlanner) PlanInterval() time.Duration { return p.cfg.Plan.Interval }

func (p *FleetPlanner) readSources(ctx context.Context) reading {
	ctx, cancel := context.WithTimeout(ctx, min(p.cfg.Plan.Interval/2, maxReadTime))
	defer cancel()
	return p.sources.readAll(ctx, p.cfg.Plan.Interval)
}

// sampleInterval returns the time between two samples. It is the interval if there are none: Run takes none at its end.
func (p *FleetPlanner) sampleInterval() time.Duration {
	return min(cmp.Or(p.cfg.SampleEvery, p.cfg.Plan.Interval), p.cfg.Plan.Interval)
}

// handleSample looks at what has come since the last interval, and acts if that is a burst. Metrics which are missing,
// frozen or the ones of the last sample are no sample: the next one has the arrivals since the last good one.
func (p *FleetPlanner) handleSample(ctx context.Context) {
	now := time.Now()
	reading, cancel := context.WithTimeout(ctx, min(p.sampleInterval()/2, maxReadTime))
	r := p.sources.readSample(reading, now.Sub(p.intervalEnd))
	cancel()
	if ctx.Err() != nil {
		return
	}
	if r.traffic == nil || r.frozen || r.traffic.Stale {
		p.metrics.samples.WithLabelValues("unknown").Inc()
		return
	}
	more := max(r.traffic.Arrivals-p.sampled, 0)
	p.sampled += more
	out, raised := p.machine.HandleSample(kv.Mono(now.Sub(p.startedAt)), plan.IntervalSample{Arrivals: more, Queued: r.traffic.Queued})
	if !raised {
		p.metrics.samples.WithLabelValues("kept").Inc()
		return
	}
	report := &PlanReport{Plan: out, Sampled: true}
	if last := p.LastReport(); last != nil {
		report.Traffic = last.Traffic
	}
	p.applyPlan(ctx, now, report, &r)
}

// handleInterval reads, decides, applies and reports.
func (p *FleetPlanner) handleInterval(ctx context.Context) {
	r := p.readSources(ctx)
	if ctx.Err() != nil {
		return
	}
	var fleet, own []plan.RoleFleet
	if r.known {
		fleet = countFleet(r.workers, p.roles)
	}
	if p.connector != nil {
		var problems []string
		own, problems = p.connector.DescribeFleet(ctx, p.roles)
		r.problems = append(r.problems, problems...)
	}
	if p.cfg.Sources.Server == "" || r.known { // without the table, which of the workers serve is not known
		fleet = mergeFleets(fleet, own)
	}
	if p.cfg.Sources.Server == "" && fleet == nil {
		r.problems = append(r.problems, "without a server the connector alone knows the workers, and it does not know them yet: an agent says so first, in an acknowledgement with id 0")
	}
	now := time.Now()
	p.intervalEnd, p.sampled = now, 0
	out := p.machine.HandleInterval(kv.Mono(now.Sub(p.startedAt)), plan.Observation{Traffic: r.traffic, Fleet: fleet})
	p.applyPlan(ctx, now, &PlanReport{Plan: out, Traffic: describeTraffic(r.traffic, p.cfg.Plan.Interval)}, &r)
}

// applyPlan has the connector carry out the plan of a report, and completes and publishes the report.
func (p *FleetPlanner) applyPlan(ctx context.Context, now time.Time, report *PlanReport, r *reading) {
	if r.known { // the workers of others do not end because a table cannot be read
		p.leaving = orderWorkers(r.workers)
	}
	next := p.decideNext(now, &report.Plan, p.leaving)
	report.Time, report.Namespace = now.UTC().Format(time.RFC3339), p.cfg.Namespace
	report.Connector, report.Interval, report.Leave = p.cfg.ConnectorName, p.cfg.Plan.Interval.Seconds(), next.leavingWorkers()
	if p.connector != nil && len(next.Roles) > 0 {
		if err := p.connector.ApplyDecision(ctx, &next, p.leaving); err != nil {
			p.metrics.failures.Inc()
			r.problems = append(r.problems, fmt.Sprintf("connector %s: %v", p.cfg.ConnectorName, err))
		} else {
			p.accepted = next.ID
		}
	}
	report.DecisionID = p.accepted
	report.Problems = append([]string{}, r.problems...)
	p.publishReport(ctx, report)
}

// decideNext returns the decision of a plan, which has the id of the last one if it orders the same.
func (p *FleetPlanner) decideNext(now time.Time, out *plan.Plan, leaving []FleetWorker) FleetDecision {
	d := FleetDecision{Version: formatVersion, ID: p.decision.ID, Namespace: p.cfg.Namespace, Time: now.UTC().Format(time.RFC3339)}
	for i := range out.Roles {
		role := &out.Roles[i]
		ids := []kv.WorkerID{}
		for _, w := range leaving {
			if w.Role == role.Role {
				ids = append(ids, w.ID)
			}
		}
		d.Roles = append(d.Roles, RoleDecision{
			Role: role.Role.String(), Workers: role.Order, Leave: ids[:min(max(len(ids)-role.Order, 0), maxLeave)], Reason: role.Reason,
		})
	}
	if len(d.Roles) == 0 {
		return d
	}
	if !d.isSameOrder(&p.decision) {
		d.ID++
		p.metrics.decisions.Inc()
	} else {
		d.Time = p.decision.Time
	}
	p.decision = d
	return d
}

// orderWorkers returns the workers which do not drain, of each role in the order in which they should leave.
func orderWorkers(workers []FleetWorker) []FleetWorker {
	byID := map[kv.WorkerID]FleetWorker{}
	candidates := map[plan.WorkerRole][]plan.LeaveCandidate{}
	for _, w := range workers {
		if w.State == WorkerDraining {
			continue
		}
		byID[w.ID] = w
		candidates[w.Role] = append(candidates[w.Role], plan.LeaveCandidate{
			Worker: w.ID, Serving: w.State == WorkerReady, Running: w.Running + w.Waiting, CachedBlocks: w.CachedBlocks,
		})
	}
	var out []FleetWorker
	for role := plan.Aggregated; role <= plan.Encode; role++ {
		plan.OrderLeaving(candidates[role])
		for _, c := range candidates[role] {
			out = append(out, byID[c.Worker])
		}
	}
	return out
}

func describeTraffic(t *plan.Traffic, interval time.Duration) *TrafficReport {
	if t == nil {
		return nil
	}
	return &TrafficReport{
		Arrivals: t.Arrivals / interval.Seconds(), InputTokens: t.InputTokens, OutputTokens: t.OutputTokens, CachedShare: t.CachedShare,
		TTFT: t.TTFT, ITL: t.ITL,
	}
}

// publishReport shows a report in metrics, logs what changes, and keeps the report.
func (p *FleetPlanner) publishReport(ctx context.Context, r *PlanReport) {
	p.metrics.showReport(r)
	for i := range r.Roles {
		if role := &r.Roles[i]; role.Change != 0 || role.Withdrawn > 0 {
			p.cfg.Log.Info("plan", "role", role.Role.String(), "order", role.Order, "change", role.Change, "actual", role.Actual,
				"connector", r.Connector, "reason", role.Reason)
		}
	}
	if len(r.Problems) > 0 {
		p.throttle.Log(ctx, slog.LevelWarn, "the planner cannot do all it should", "problems", slices.Clip(r.Problems))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.report = r
}
