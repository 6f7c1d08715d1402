package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/core/route"
	"penstock/internal/config"
	"penstock/internal/replay"
)

// tuneChoice is a way of routing which --tune compares with the defaults.
type tuneChoice struct {
	Policy      string  `json:"policy"`
	Weight      float64 `json:"kv_overlap_score_weight,omitempty"` // of kv
	Temperature float64 `json:"router_temperature,omitempty"`
}

// tuneRow is what a choice came to over all seeds.
type tuneRow struct {
	tuneChoice
	Default bool `json:"default,omitempty"`
	// TTFT, TTFTP99 and E2E are in ms.
	TTFT        tuneFigure `json:"ttft_mean_ms"`
	TTFTP99     tuneFigure `json:"ttft_p99_ms"`
	E2E         tuneFigure `json:"e2e_mean_ms"`
	CachedShare float64    `json:"cached_share"`
}

// tuneFigure is the mean of a figure over the seeds, and its ratio to that of the defaults with the same seed: the
// mean of the ratios, and the interval in which it lies with 95 % confidence.
type tuneFigure struct {
	Mean  float64 `json:"mean"`
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// tuneResult is the JSON of replay --tune.
type tuneResult struct {
	Command  string           `json:"command"`
	Version  string           `json:"version"`
	Settings []replay.Setting `json:"settings,omitempty"`
	Seeds    []uint64         `json:"seeds"`
	Requests int              `json:"requests"` // of the first seed
	Rows     []tuneRow        `json:"rows"`     // the first is the defaults'
	// BestTTFT and BestE2E are the rows with the least mean TTFT and the least mean E2E.
	BestTTFT int `json:"best_ttft_row"`
	BestE2E  int `json:"best_e2e_row"`
}

// defaultChoice is what a router does to which no setting is given.
func defaultChoice() tuneChoice {
	d := config.Defaults(config.Up).Router
	c := tuneChoice{Policy: d.Mode, Temperature: d.Temperature}
	if d.Mode == string(route.KV) {
		c.Weight = d.OverlapWeight
	}
	return c
}

// tuneChoices returns the defaults, and what they are compared with.
func tuneChoices() []tuneChoice {
	all := []tuneChoice{defaultChoice()}
	add := func(c tuneChoice) {
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	add(tuneChoice{Policy: string(route.Time)})
	for _, weight := range [...]float64{0.5, 1, 2, 4, 8, 16} {
		add(tuneChoice{Policy: string(route.KV), Weight: weight})
	}
	for _, temperature := range [...]float64{0.1, 0.5} {
		c := all[0]
		c.Temperature = temperature
		add(c)
	}
	for _, mode := range [...]route.Mode{route.RoundRobin, route.Random, route.LeastLoaded, route.PowerOfTwo} {
		add(tuneChoice{Policy: string(mode)})
	}
	return all
}

// String returns the flags of a choice.
func (c tuneChoice) String() string {
	text := c.Policy
	if c.Weight > 0 {
		text += ", weight " + strconv.FormatFloat(c.Weight, 'g', -1, 64)
	}
	if c.Temperature > 0 {
		text += ", temperature " + strconv.FormatFloat(c.Temperature, 'g', -1, 64)
	}
	return text
}

// validateTune checks the flags which go with --tune.
func (f *replayFlags) validateTune(fs *pflag.FlagSet) error {
	if !f.tune {
		if fs.Changed("tune-seeds") {
			return errors.New("--tune-seeds goes with --tune")
		}
		return nil
	}
	var errs []error
	for _, name := range [...]string{"policy", "kv-overlap-score-weight", "router-temperature", "describe", "csv", "report"} {
		if fs.Changed(name) {
			errs = append(errs, fmt.Errorf("--%s does not go with --tune, which tries policies, weights and temperatures", name))
		}
	}
	if f.trace == "-" {
		errs = append(errs, errors.New("--tune reads the trace more than once: give a file"))
	}
	if len(f.workers) != 1 || len(f.cacheSizes()) != 1 || len(f.encodeWorkers) != 1 || len(f.embeddingCache) != 1 || len(f.disagg.prefillWorkers) != 1 {
		errs = append(errs, errors.New("--tune is for one number of workers, of encode workers, of prefill workers, and one size of each cache"))
	}
	return errors.Join(append(errs, requireBetween("tune-seeds", 2, 100, f.tuneSeeds))...)
}

// tuneDefaults runs all choices with all seeds and writes the comparison.
func (f *replayFlags) tuneDefaults(cmd *cobra.Command, all *scenarios, first *timedWorkload) (err error) {
	requests, err := first.validateAndCount(cmd.Context())
	if err != nil {
		return explainInterrupt(err)
	}
	engine, err := f.engine.Resolve()
	if err != nil {
		return usageError(err)
	}
	out := &tuneResult{Command: "replay --tune", Version: version, Settings: collectReplaySettings(cmd.Flags()), Requests: requests}
	choices := tuneChoices()
	progress := &replayProgress{total: f.tuneSeeds * len(choices) * requests}
	progress.progressDisplay = newProgressDisplay(cmd.ErrOrStderr(), 0, progress.formatLine)
	defer progress.finish()
	runs := make([][]replay.Row, len(choices)) // by seed
	var jobs []func(context.Context) error
	for i := range f.tuneSeeds {
		seeded := *f
		seeded.seed = f.seed + uint64(i)
		out.Seeds = append(out.Seeds, seeded.seed)
		work, err := seeded.openWorkload(cmd.InOrStdin())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, work.Close()) }()
		engine := engine
		engine.Timing.Seed = seeded.seed
		if cmd.Flags().Changed("speedup") {
			engine.Timing.Speedup = f.speedup
		}
		for at, c := range choices {
			seeded.weight, seeded.temperature = c.Weight, c.Temperature
			weighted := seeded // the run keeps a pointer to its weight
			s := weighted.varyEncoding(weighted.buildScenario(engine, all.sizes[0], f.workers[0], c.Policy))[0]
			s = f.disagg.varySplit(s, &engine)[0]
			s.name = fmt.Sprintf("%v, seed %d", c, seeded.seed)
			runs[at] = append(runs[at], replay.Row{})
			jobs = append(jobs, func(ctx context.Context) error {
				run, _, err := s.runScenario(ctx, work, progress)
				runs[at][i] = run.Row
				return err
			})
		}
	}
	if err := runParallel(cmd.Context(), all.jobs, jobs); err != nil {
		return explainInterrupt(err)
	}
	out.compareRuns(choices, runs)
	if f.outputFlags.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
	}
	return out.writeTable(cmd.OutOrStdout())
}

// compareRuns sets the rows; runs are by choice, then by seed.
func (t *tuneResult) compareRuns(choices []tuneChoice, runs [][]replay.Row) {
	for i, c := range choices {
		row := tuneRow{tuneChoice: c, Default: i == 0}
		row.TTFT = compareSeeds(runs[i], runs[0], func(r *replay.Row) float64 { return r.TTFT.Mean })
		row.TTFTP99 = compareSeeds(runs[i], runs[0], func(r *replay.Row) float64 { return r.TTFT.P99 })
		row.E2E = compareSeeds(runs[i], runs[0], func(r *replay.Row) float64 { return r.E2E.Mean })
		for j := range runs[i] {
			row.CachedShare += runs[i][j].CachedShare / float64(len(runs[i]))
		}
		t.Rows = append(t.Rows, row)
		if row.TTFT.Mean < t.Rows[t.BestTTFT].TTFT.Mean {
			t.BestTTFT = i
		}
		if row.E2E.Mean < t.Rows[t.BestE2E].E2E.Mean {
			t.BestE2E = i
		}
	}
}

// compareSeeds returns a figure of runs, and its ratio to that of the runs of the defaults, seed by seed.
func compareSeeds(runs, defaults []replay.Row, of func(*replay.Row) float64) (f tuneFigure) {
	n := float64(len(runs))
	ratios := make([]float64, len(runs))
	for i := range runs {
		f.Mean += of(&runs[i]) / n
		ratios[i] = 1
		if d := of(&defaults[i]); d > 0 {
			ratios[i] = of(&runs[i]) / d
		}
		f.Ratio += ratios[i] / n
	}
	squares := 0.0
	for _, r := range ratios {
		squares += float64((r - f.Ratio) * (r - f.Ratio))
	}
	half := float64(studentQuantile(len(runs)-1) * math.Sqrt(squares/(n-1)/n))
	f.Low, f.High = f.Ratio-half, f.Ratio+half
	return f
}

// studentQuantiles are the 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
var studentQuantiles = [...]float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

// studentQuantile returns the quantile for some degrees of freedom; beyond the table to 0.001.
func studentQuantile(freedom int) float64 {
	if freedom <= len(studentQuantiles) {
		return studentQuantiles[freedom-1]
	}
	return 1.96 + 2.5/float64(freedom)
}

// writeTable writes the rows, the shortest mean TTFT first, and what they say.
func (t *tuneResult) writeTable(out io.Writer) error {
	w := bufio.NewWriter(out)
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "SETTING\tTTFT MEAN\tAGAINST DEFAULT\tTTFT P99\tAGAINST DEFAULT\tE2E MEAN\tAGAINST DEFAULT\tCACHED\t")
	rows := slices.Clone(t.Rows)
	slices.SortStableFunc(rows, func(a, b tuneRow) int {
		switch {
		case a.TTFT.Mean < b.TTFT.Mean:
			return -1
		case a.TTFT.Mean > b.TTFT.Mean:
			return 1
		}
		return 0
	})
	for i := range rows {
		r := &rows[i]
		name := r.String()
		if r.Default {
			name += " (default)"
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f %%\t\n", name, formatMs(r.TTFT.Mean), r.TTFT.formatRatio(), formatMs(r.TTFTP99.Mean), r.TTFTP99.formatRatio(),
			formatMs(r.E2E.Mean), r.E2E.formatRatio(), 100*r.CachedShare)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, t.describeBest("mean TTFT", t.BestTTFT, func(r *tuneRow) *tuneFigure { return &r.TTFT }))
	fmt.Fprintln(w, t.describeBest("mean E2E", t.BestE2E, func(r *tuneRow) *tuneFigure { return &r.E2E }))
	fmt.Fprintf(w, "Against default: the mean of the ratios and its 95 %% interval, over %d seeds.\n", len(t.Seeds))
	return w.Flush()
}

func formatMs(ms float64) string { return fmt.Sprintf("%.1f ms", ms) }

// formatRatio returns the difference to the defaults in percent, with its interval.
func (f *tuneFigure) formatRatio() string {
	if f.Low == 1 && f.High == 1 {
		return "same"
	}
	return fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", 100*(f.Ratio-1), 100*(f.Low-1), 100*(f.High-1))
}

// describeBest says how far the defaults are from the best row in one figure.
func (t *tuneResult) describeBest(what string, best int, of func(*tuneRow) *tuneFigure) string {
	if best == 0 {
		return fmt.Sprintf("The defaults have the best %s of all settings that were tried.", what)
	}
	r := &t.Rows[best]
	f := of(r)
	sure := "more than chance"
	if f.High >= 1 {
		sure = "not more than chance explains"
	}
	return fmt.Sprintf("The best %s is that of %s: the defaults' is %.1f %% above it (%s).", what, strings.TrimSpace(r.String()), 100*(1/f.Ratio-1), sure)
}
