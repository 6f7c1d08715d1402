package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/replay"
	"penstock/internal/replay/trace"
	"penstock/internal/simcluster"
)

// runAll runs all scenarios and the ideals, at most s.jobs at a time. Rows have the order of the scenarios,
// whatever order they finish in. The first error cancels the others.
func (s *scenarios) runAll(ctx context.Context, work replay.Workload, progress *replayProgress) (*replay.Result, error) {
	rows := make([]replay.Run, len(s.runs))
	notes := make([][]string, len(s.runs))
	ideals := make([][]replay.Ideal, len(s.sizes))

	var jobs []func(context.Context) error
	for i := range s.sizes {
		jobs = append(jobs, func(ctx context.Context) (err error) {
			ideals[i], err = s.computeIdeals(ctx, work, s.sizes[i])
			return err
		})
	}
	for i := range s.runs {
		jobs = append(jobs, func(ctx context.Context) (err error) {
			rows[i], notes[i], err = s.runs[i].runScenario(ctx, work, progress)
			return err
		})
	}
	if err := runParallel(ctx, s.jobs, jobs); err != nil {
		return nil, err
	}
	return s.mergeResults(rows, notes, ideals), nil
}

// runParallel starts jobs in their order, at most limit at a time, and waits for all which it started. The
// first error cancels the others through their context.
func runParallel(ctx context.Context, most int, jobs []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan func(context.Context) error)
	var workers sync.WaitGroup
	for range min(most, len(jobs)) {
		workers.Go(func() {
			for job := range next {
				if ctx.Err() != nil {
					continue
				}
				if err := job(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, job := range jobs {
		next <- job
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

// mergeResults combines the results of the runs.
func (s *scenarios) mergeResults(runs []replay.Run, notes [][]string, ideals [][]replay.Ideal) *replay.Result {
	out := &replay.Result{Command: "replay", Version: version}
	for _, list := range ideals {
		out.Ideals = append(out.Ideals, list...)
	}
	out.Ideal = &out.Ideals[0]
	said := map[string]bool{}
	for i, run := range runs {
		for j := range out.Ideals {
			if at := &out.Ideals[j]; at.Workers == run.Row.Workers && at.BlockSize == run.Row.BlockSize && at.Blocks == run.Row.Blocks {
				run.Row.Ideal = at
			}
		}
		out.Rows = append(out.Rows, run.Row)
		out.Plots = append(out.Plots, run.Plots)
		for _, note := range notes[i] {
			if !said[note] {
				out.Notes = append(out.Notes, note)
			}
			said[note] = true
		}
	}
	if slices.ContainsFunc(out.Rows, func(r replay.Row) bool { return r.ErrorKinds["invalid"] > 0 }) {
		out.Notes = append(out.Notes, "Requests that failed as invalid have no prompt, or do not fit a worker: prompt and answer have more tokens than all of its blocks. See --blocks-per-worker.")
	}
	return out
}

// computeIdeals computes the ideals of one cache size.
func (s *scenarios) computeIdeals(ctx context.Context, work replay.Workload, cache cacheSize) (_ []replay.Ideal, err error) {
	source, err := work.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	return replay.Ideals(ctx, source, replay.IdealConfig{BlockSize: cache.blockSize, Blocks: cache.blocks, Workers: s.workers})
}

// runScenario runs one scenario.
func (s *scenario) runScenario(ctx context.Context, work replay.Workload, progress *replayProgress) (_ replay.Run, _ []string, err error) {
	source, err := work.Open()
	if err != nil {
		return replay.Run{}, nil, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	begin := time.Now()
	record := progressRecorder{replay.NewRecorder(s.measure), progress}
	if err := simcluster.Run(ctx, s.cluster, source, record); err != nil {
		return replay.Run{}, nil, fmt.Errorf("%s: %w", s.displayName(), err)
	}
	run := record.Run()
	progress.printLine(fmt.Sprintf("%s: %d requests over %.0f simulated seconds, computed in %.1f s", s.displayName(), run.Row.Requests, run.Row.Duration, time.Since(begin).Seconds()))
	return run, record.Notes(), nil
}

// progressRecorder is a recorder which also counts progress.
type progressRecorder struct {
	*replay.Recorder
	progress *replayProgress
}

// RecordSample implements simcluster.Recorder.
func (w progressRecorder) RecordSample(s *replay.Sample) {
	w.Recorder.RecordSample(s)
	w.progress.done.Add(1)
}

// workloadDescription describes a workload without running it.
type workloadDescription struct {
	trace.Summary
	Ideals []replay.Ideal `json:"ideals"`
}

// describeWorkload prints the contents of the workload, and the ideals of all cache sizes.
func (f *replayFlags) describeWorkload(cmd *cobra.Command, all *scenarios, work *timedWorkload) error {
	if f.csv != "" || f.html != "" {
		return usageError(errors.New("--describe runs nothing that --csv and --report could write of"))
	}
	summary, err := trace.Describe(work)
	if err != nil {
		return err
	}
	d := workloadDescription{Summary: summary}
	for _, size := range all.sizes {
		ideals, err := all.computeIdeals(cmd.Context(), work, size)
		if err != nil {
			return explainInterrupt(err)
		}
		d.Ideals = append(d.Ideals, ideals...)
	}
	if f.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(d)
	}
	return d.printText(cmd.OutOrStdout())
}

// printText writes the description as text.
func (d *workloadDescription) printText(out io.Writer) error {
	if _, err := d.WriteTo(out); err != nil {
		return err
	}
	fmt.Fprint(out, "\nPrompt tokens that one cache could have had, prompt after prompt:\n\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "WORKERS\tBLOCKS EACH\tTOKENS A BLOCK\tMILLION TOKENS IN ALL\tCACHED\tUNBOUNDED\t")
	for _, i := range d.Ideals {
		fmt.Fprintf(t, "%d\t%d\t%d\t%.3f\t%s\t%s\t\n", i.Workers, i.Blocks, i.BlockSize, float64(i.Workers)*float64(i.Blocks)*float64(i.BlockSize)/1e6,
			formatShare(i.SameCapacity), formatShare(i.Infinite))
	}
	return t.Flush()
}

// formatShare formats a share; "~" marks an estimate.
func formatShare(s replay.Share) string {
	text := fmt.Sprintf("%.1f %%", 100*s.CachedShare)
	if s.Estimated {
		return "~" + text
	}
	return text
}
