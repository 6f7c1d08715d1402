package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
	"penstock/internal/node/engines"
	"penstock/internal/replay"
	"penstock/internal/simcluster"
)

// replayPlanner are the flags of replay --planner.
type replayPlanner struct {
	modes             []string
	startUp, interval time.Duration
	sample, drain     time.Duration
	metricsLost       float64
	startsFailed      float64
	crashEvery        time.Duration
}

func (f *replayPlanner) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.modes, "planner", nil, "compare ways to size the fleet on this workload: "+strings.Join(simcluster.PlannerModes(), ", ")+". --workers is the ceiling then (64), --slo-ttft and --slo-itl are the targets (500ms, 50ms), and one router policy runs ("+defaultPolicies()[0]+")")
	fs.DurationVar(&f.startUp, "planner-startup", time.Minute, "with --planner: time from the order of a worker to its first request")
	fs.DurationVar(&f.interval, "planner-interval", 30*time.Second, "with --planner: time between two decisions")
	fs.DurationVar(&f.sample, "planner-sample", time.Duration(config.Defaults(config.PlannerCommand).Planner.Sample), "with --planner: time between two looks of the planner at arrivals and queues between its decisions; 0 is for none")
	fs.DurationVar(&f.drain, "planner-drain", 10*time.Minute, "with --planner: time for which a worker that leaves serves the requests it has; the rest migrates")
	fs.Float64Var(&f.metricsLost, "planner-metrics-lost", 0, "with --planner: share of intervals whose metrics are lost")
	fs.Float64Var(&f.startsFailed, "planner-starts-failed", 0, "with --planner: share of ordered workers that never get ready")
	fs.DurationVar(&f.crashEvery, "planner-crash-every", 0, "with --planner: mean lifetime of a worker, after which it crashes and restarts; 0 is for ever")
}

// defaultTTFT, defaultITL and defaultCeiling are the defaults with --planner.
const (
	defaultTTFT    = 500 * time.Millisecond
	defaultITL     = 50 * time.Millisecond
	defaultCeiling = 64
)

// setPlannerDefaults sets the flags whose defaults are others with --planner, and reports flags which do not go with it.
func (f *replayFlags) setPlannerDefaults(fs *pflag.FlagSet) error {
	if len(f.planner.modes) == 0 {
		var errs []error
		for _, name := range [...]string{"planner-startup", "planner-interval", "planner-sample", "planner-drain", "planner-metrics-lost", "planner-starts-failed", "planner-crash-every"} {
			if fs.Changed(name) {
				errs = append(errs, fmt.Errorf("--%s goes with --planner", name))
			}
		}
		return errors.Join(errs...)
	}
	if !fs.Changed("workers") {
		f.workers = []int{defaultCeiling}
	}
	if !fs.Changed("policy") {
		f.policies = defaultPolicies()[:1]
	}
	if !fs.Changed("slo-ttft") {
		f.sloTTFT = defaultTTFT
	}
	if !fs.Changed("slo-itl") {
		f.sloITL = defaultITL
	}
	errs := []error{requireDistinct("planner", f.planner.modes)}
	for _, name := range f.planner.modes {
		if !slices.Contains(simcluster.PlannerModes(), name) {
			errs = append(errs, fmt.Errorf("--planner: %.40q is none of %s", name, strings.Join(simcluster.PlannerModes(), ", ")))
		}
	}
	for _, name := range [...]string{"tune", "describe", "csv", "report", "slo-e2e", "warmup", "prefill-workers", "encode-workers"} {
		if fs.Changed(name) {
			errs = append(errs, fmt.Errorf("--%s does not go with --planner", name))
		}
	}
	if f.trace == "-" {
		errs = append(errs, errors.New("--planner reads the trace more than once: give a file"))
	}
	if f.sloTTFT <= 0 || f.sloITL <= 0 {
		errs = append(errs, errors.New("--planner needs targets above 0: --slo-ttft and --slo-itl"))
	}
	if len(f.workers) != 1 || len(f.policies) != 1 || len(f.cacheSizes()) != 1 || len(f.embeddingCache) != 1 {
		errs = append(errs, errors.New("--planner is for one ceiling of workers, one policy and one size of each cache"))
	}
	return errors.Join(errs...)
}

// plannerResult is what replay --planner --json prints.
type plannerResult struct {
	Command  string                  `json:"command"`
	Version  string                  `json:"version"`
	Settings []replay.Setting        `json:"settings"`
	Policy   string                  `json:"policy"`
	Requests int                     `json:"requests"`
	Targets  plannerTargets          `json:"targets"`
	Rows     []simcluster.PlannerRow `json:"rows"`
}

// plannerTargets are the targets of a comparison, in ms.
type plannerTargets struct {
	TTFT float64 `json:"ttft_ms"`
	ITL  float64 `json:"itl_ms"`
}

// comparePlanners runs the workload with each way to size the fleet, and writes the comparison.
func (f *replayFlags) comparePlanners(cmd *cobra.Command, all *scenarios, work *timedWorkload) error {
	requests, err := work.validateAndCount(cmd.Context())
	if err != nil {
		return explainInterrupt(err)
	}
	run := all.runs[0]
	cluster := run.cluster
	cluster.Scaling = simcluster.Scaling{
		Interval: f.planner.interval, StartUp: f.planner.startUp, DrainLimit: f.planner.drain,
		SampleEvery: f.planner.sample, MetricsLost: f.planner.metricsLost, StartsFailed: f.planner.startsFailed,
	}
	cluster.Faults.CrashEvery = f.planner.crashEvery
	comparison := &simcluster.PlannerComparison{Cluster: cluster, Measure: run.measure, Work: work}
	if err := comparison.Prepare(cmd.Context()); err != nil {
		return explainInterrupt(err)
	}
	progress := newProgressDisplay(cmd.ErrOrStderr(), 0, func(after time.Duration) string { return fmt.Sprintf("comparing, %v", after.Round(time.Second)) })
	defer progress.finish()
	out := &plannerResult{
		Command: "replay --planner", Version: version, Settings: collectReplaySettings(cmd.Flags()), Policy: f.policies[0], Requests: requests,
		Targets: plannerTargets{run.measure.SLO.TTFT, run.measure.SLO.ITL},
		Rows:    make([]simcluster.PlannerRow, len(f.planner.modes)),
	}
	var jobs []func(context.Context) error
	for i, mode := range f.planner.modes {
		jobs = append(jobs, func(ctx context.Context) (err error) {
			out.Rows[i], err = comparison.RunMode(ctx, mode, progress.printLine)
			return err
		})
	}
	if f.jobs == 0 {
		all.runs = slices.Repeat(all.runs, len(jobs))
		all.jobs = all.affordableJobs(runtime.GOMAXPROCS(0), engines.MemoryLimit())
	}
	if err := runParallel(cmd.Context(), all.jobs, jobs); err != nil {
		return explainInterrupt(err)
	}
	if f.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
	}
	return out.printTable(cmd.OutOrStdout())
}

// printTable writes the comparison as text.
func (r *plannerResult) printTable(out io.Writer) error {
	fmt.Fprintf(out, "%d requests, policy %s, targets: TTFT %g ms, ITL %g ms\n\n", r.Requests, r.Policy, r.Targets.TTFT, r.Targets.ITL)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "PLANNER\tWITHIN TARGETS\tWORKER HOURS\tMOST WORKERS\tSTEPS\tERRORS\tTTFT MEAN\tP99\tITL MEAN\tP99\t")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%.2f %%\t%.2f\t%d\t%d\t%d\t%.1f ms\t%.1f\t%.1f ms\t%.1f\t\n", row.Planner, 100*row.Attainment, row.WorkerHours, row.Workers, row.Steps,
			row.Errors, row.TTFT.Mean, row.TTFT.P99, row.ITL.Mean, row.ITL.P99)
	}
	return t.Flush()
}
