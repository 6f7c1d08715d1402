package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/replay"
	"penstock/internal/replay/load"
	"penstock/internal/replay/trace"
)

const (
	// benchGCPercent is the heap growth between two collections, in percent. The client's heap is small, and
	// tokens are read late during a collection.
	benchGCPercent = 800
	// defaultBlockSize applies if the server does not report a block size.
	defaultBlockSize = 16
)

// runBench runs the command.
func (o *benchOptions) runBench(cmd *cobra.Command) (err error) {
	defer func() {
		if errors.Is(err, context.Canceled) {
			err = errors.New("bench: interrupted before anything was measured")
		}
	}()
	ctx := cmd.Context()
	if err := o.validate(); err != nil {
		return usageError(err)
	}
	c, err := o.target.newClient()
	if err != nil {
		return err
	}
	if o.promptSeed == 0 {
		o.promptSeed = drawSeed()
	}
	files, err := o.outputs.createFiles(o.trace)
	if err != nil {
		return usageError(err)
	}
	defer files.discardUnfinished()
	cfg, err := o.generatorConfig(c)
	if err != nil {
		return usageError(err)
	}
	workload, closeWorkload, err := o.openWorkload(cmd.InOrStdin())
	if err != nil {
		return usageError(err)
	}
	defer closeWorkload()
	if cfg.Model == "" {
		if cfg.Model, err = c.awaitOnlyModel(ctx, cmd.ErrOrStderr()); err != nil {
			return err
		}
	}
	if cfg.Form, err = load.Probe(ctx, cfg, o.promptForms()...); err != nil {
		if wrong := c.diagnoseScheme(ctx, err); wrong != nil {
			return wrong
		}
		return err
	}
	server := c.queryBenchServer(ctx, cfg.Model, load.ProbeID(cfg))
	plan, err := o.planRun(ctx, workload, server, cfg.Vocabulary)
	if err != nil {
		return usageError(err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s at %s (%s), prompts as %s, %d requests\n", printable(cfg.Model), o.target.server, server, describeForm(cfg.Form), plan.requests)
	result, interrupted, err := o.runWorkload(ctx, cmd.ErrOrStderr(), cfg, workload, server, plan)
	if err != nil {
		return err
	}
	result.Settings = append([]replay.Setting{}, collectBenchSettings(cmd, o)...)
	if err := files.writeResult(cmd.OutOrStdout(), result); err != nil {
		return err
	}
	row := &result.Rows[0]
	switch {
	case interrupted:
		return errors.New("bench: interrupted; the figures are of what was over by then")
	case row.Requests == row.Errors:
		return fmt.Errorf("bench: of %d requests none was answered", row.Requests)
	}
	return nil
}

// drawSeed returns a random seed, so that no run repeats another's prompts.
func drawSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])                        // rand.Read never fails
	return binary.LittleEndian.Uint64(b[:]) >> 16 // short enough to type
}

// generatorConfig returns the configuration of the load generator.
func (o *benchOptions) generatorConfig(c *apiClient) (load.Config, error) {
	header, err := o.parseHeaders()
	if err != nil {
		return load.Config{}, err
	}
	cfg := load.Config{
		Endpoint: load.Endpoint{URL: c.server, Key: c.key, Header: header},
		Model:    o.model, MaxTokens: o.maxTokens, Extra: []byte(o.extraBody), Vocabulary: replay.Vocabulary{Seed: o.promptSeed},
		Pictures: o.images != "", Concurrency: o.concurrency, MaxConnections: o.maxConnections, Timeout: o.timeout, Duration: o.duration,
		Name: fmt.Sprintf("bench-%x", o.promptSeed),
	}
	if t, ok := c.http.Transport.(*http.Transport); ok && t.TLSClientConfig != nil {
		cfg.Endpoint.TLS = &tls.Config{RootCAs: t.TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}
	}
	return cfg, nil
}

// retimedWorkload is a workload with another arrival process.
type retimedWorkload struct {
	replay.Workload
	arrival replay.Arrival
}

// Open implements replay.Workload.
func (a *retimedWorkload) Open() (replay.Source, error) {
	source, err := a.Workload.Open()
	if err != nil {
		return nil, err
	}
	return replay.ApplyArrival(source, a.arrival)
}

// workloadSpec returns the spec of the generated workload.
func (o *benchOptions) workloadSpec() string {
	switch {
	case o.generate == "" && o.images != "":
		return withRequestCount(defaultImageWorkload, cmp.Or(o.requests, defaultRequests))
	case o.generate == "":
		return withRequestCount(defaultWorkload, cmp.Or(o.requests, defaultRequests))
	}
	return withRequestCount(o.generate, o.requests)
}

// withRequestCount returns spec with n requests, unless spec already has a number; n = 0 changes nothing.
func withRequestCount(spec string, n int) string {
	if n == 0 || strings.Contains(spec, "requests=") {
		return spec
	}
	between := ":"
	if strings.Contains(spec, ":") {
		between = ","
	}
	return fmt.Sprintf("%s%srequests=%d", spec, between, n)
}

// openWorkload opens the workload of the flags. The caller calls the returned function to close it.
func (o *benchOptions) openWorkload(stdin io.Reader) (replay.Workload, func(), error) {
	arrival, err := o.buildArrival()
	if err != nil {
		return nil, nil, err
	}
	pictures, err := o.parsePictures()
	if err != nil {
		return nil, nil, err
	}
	shown := func(w replay.Workload) replay.Workload {
		if pictures != nil {
			w = pictures.AddPictures(w)
		}
		return &retimedWorkload{w, arrival}
	}
	if o.trace == "" {
		w, err := replay.ParseGenerator(o.workloadSpec(), o.seed)
		if err != nil {
			return nil, nil, err
		}
		return shown(w), func() {}, nil
	}
	opts := o.traceOpts
	opts.Format, opts.Stdin = trace.Format(o.format), stdin
	w, err := trace.Open(o.trace, opts)
	if err != nil {
		return nil, nil, err
	}
	return shown(w), func() { _ = w.Close() }, nil // read only
}

// benchPlan is what is known of the workload before it runs.
type benchPlan struct {
	requests int
	ideal    *replay.Ideal
	note     string
}

// planRun reads the whole workload, so that its errors are found before anything is sent.
func (o *benchOptions) planRun(ctx context.Context, w replay.Workload, s benchServer, v replay.Vocabulary) (benchPlan, error) {
	if o.images != "" {
		return o.planPictures(ctx, w)
	}
	cfg := replay.IdealConfig{BlockSize: s.blockSize, Workers: []int{max(s.workers, 1)}, Blocks: max(s.blocks, 1), Vocabulary: v}
	cfg.BlockSize = cmp.Or(cfg.BlockSize, defaultBlockSize)
	ideal, requests, err := o.idealAfterWarmup(ctx, w, cfg)
	if err != nil {
		return benchPlan{}, err
	}
	p := benchPlan{requests: requests}
	if s.workers > 0 && s.blocks > 0 && s.blockSize > 0 {
		p.ideal = &ideal
	} else {
		p.note = fmt.Sprintf("The server does not tell the size of its caches: an unbounded one with blocks of %d tokens would have had %.1f%% of the prompt tokens.",
			cfg.BlockSize, 100*ideal.Infinite.CachedShare)
	}
	return p, nil
}

// planPictures reads a workload with pictures and counts repeated ones. It computes no ideal: only the server
// knows how many tokens a picture takes.
func (o *benchOptions) planPictures(ctx context.Context, w replay.Workload) (benchPlan, error) {
	source, err := w.Open()
	if err != nil {
		return benchPlan{}, err
	}
	defer source.Close()
	var p benchPlan
	var r replay.Request
	seen := map[string]bool{}
	shown, again := 0, 0
	for ctx.Err() == nil {
		err := source.Next(&r)
		if errors.Is(err, io.EOF) {
			p.note = fmt.Sprintf("Of %d pictures %d were shown before (%.1f %%). What caches could give at best is not said: how many tokens a picture is, the server knows.",
				shown, again, 100*float64(again)/float64(max(shown, 1)))
			return p, nil
		}
		if err != nil {
			return p, err
		}
		p.requests++
		for i := range r.Media {
			shown++
			if id := r.Media[i].ID; seen[id] {
				again++
			} else {
				seen[id] = true
			}
		}
	}
	return p, ctx.Err()
}

// runWorkload sends the workload and returns the result, and whether it was interrupted.
func (o *benchOptions) runWorkload(ctx context.Context, stderr io.Writer, cfg load.Config, w replay.Workload, s benchServer, plan benchPlan) (_ *replay.Result, interrupted bool, err error) {
	source, err := w.Open()
	if err != nil {
		return nil, false, err
	}
	defer source.Close()
	measure := replay.RecorderConfig{
		Policy: s.policyName(), Workers: s.workers, BlockSize: s.blockSize, Blocks: s.blocks, SLO: o.goodputSLO(), Sender: replay.RealSender,
		WarmupRequests: o.warmup.requests, Warmup: o.warmup.window,
	}
	rec := replay.NewRecorder(measure)
	show := &benchProgress{total: plan.requests, showBar: plan.requests > 0 && isTerminal(stderr)}
	defer debug.SetGCPercent(debug.SetGCPercent(benchGCPercent))
	progress := newProgressDisplay(stderr, benchLineInterval, show.formatLine)
	sum, err := load.Run(ctx, cfg, source, &benchRecorder{Recorder: rec, measure: measure, progress: show})
	progress.finish()
	if err != nil {
		return nil, false, err
	}
	run := rec.Run()
	run.Row.Ideal = plan.ideal
	result := &replay.Result{
		Command: "bench", Version: version, Rows: []replay.Row{run.Row}, Plots: []replay.Plots{run.Plots},
		Ideal: plan.ideal, Notes: append(benchNotes(sum, cfg, plan), rec.Notes()...),
	}
	return result, sum.Interrupted, nil
}

// benchRecorder records samples and updates the progress line.
type benchRecorder struct {
	*replay.Recorder
	measure  replay.RecorderConfig
	progress *benchProgress
	inWarmup bool // the current request belongs to the warm-up: its gaps are not recorded
}

// RecordSample implements load.Recorder.
func (b *benchRecorder) RecordSample(s *replay.Sample) {
	b.inWarmup = s.Index < b.measure.WarmupRequests || s.Sent < b.measure.Warmup
	b.progress.recordSample(s)
	b.Recorder.RecordSample(s)
}

// RecordGap implements load.Recorder.
func (b *benchRecorder) RecordGap(between time.Duration, n int) {
	if !b.inWarmup {
		b.Recorder.RecordGap(between, n)
	}
}

// benchNotes returns what a reader must know to judge the figures.
func benchNotes(s load.Summary, cfg load.Config, plan benchPlan) []string {
	var notes []string
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if s.Interrupted {
		add("Interrupted: the figures are of the requests that were over; %d under way were left out, and those after them not sent.", s.Abandoned)
	}
	if s.NoUsage > 0 {
		add("Of %d of %d answers the server did not tell the tokens: prompts count as the workload has them, answers by their events.", s.NoUsage, s.Answers)
	}
	if s.NoCached > 0 {
		add("Of %d of %d answers the server did not tell the cached tokens: they count as none.", s.NoCached, s.Answers)
	}
	if s.Short > 0 {
		add("%d of %d answers have fewer tokens than the workload says%s.", s.Short, s.Answers, map[bool]string{true: ": the server does not take ignore_eos"}[cfg.Form.Length == load.MaxLength])
	}
	if s.Together > 0 {
		add("%d tokens came in one event with another: between them lies no time.", s.Together)
	}
	if s.Resent > 0 {
		add("%d requests were sent again, since the server had closed the connection that waited for them.", s.Resent)
	}
	if plan.note != "" {
		notes = append(notes, plan.note)
	}
	return notes
}

// describeForm describes how requests are written.
func describeForm(f load.RequestForm) string {
	text := map[load.PromptForm]string{load.TokenPrompt: "token ids", load.TextPrompt: "text"}[f.Prompt]
	switch f.Length {
	case load.IgnoreEOS:
		text += " (without min_tokens, which it refuses)"
	case load.MaxLength:
		text += " (without ignore_eos, which it refuses: answers may be shorter)"
	}
	return text
}

// collectBenchSettings returns the flags which shaped the run: those given, and the seeds.
func collectBenchSettings(cmd *cobra.Command, o *benchOptions) []replay.Setting {
	var out []replay.Setting
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "json", "csv", "report", "header", "api-key-file", "help":
			return // these affect only the output, or are private
		case "url":
			value = o.target.server
		case "seed": // of the workload, given or not
		case "prompt-seed":
			value = strconv.FormatUint(o.promptSeed, 10)
		case "generate":
			if o.trace == "" {
				value = o.workloadSpec()
			}
		default:
			if !f.Changed {
				return
			}
		}
		if value != "" {
			out = append(out, replay.Setting{Name: f.Name, Value: value})
		}
	})
	return out
}

// benchServer is what a Penstock server reports of itself.
type benchServer struct {
	mode      string // routing mode; "" if not known
	workers   int    // 0 if not known
	blocks    int    // of the worker with the fewest, of all which reported; 0 if none did
	blockSize int    // tokens; 0 if not known
}

// maxWorkerBlocks bounds a plausible number of blocks; larger values count as not known.
const maxWorkerBlocks = 1 << 30

// queryBenchServer asks the router API about the workers, and about the routing decision of the request with
// the given id. The result is empty for another server, or one which restricts that API to administrators.
func (c *apiClient) queryBenchServer(ctx context.Context, model, requestID string) benchServer {
	var s benchServer
	var table struct {
		Rows []workerRow `json:"rows"`
	}
	if c.getJSON(ctx, "/v1/router/workers", &table) != nil {
		return s
	}
	for i := range table.Rows {
		r := &table.Rows[i]
		if r.Model != model || r.State != "ready" {
			continue
		}
		s.workers++
		if r.Load.Reported == nil { // the worker has just been added
			continue
		}
		total := r.Load.Reported.TotalBlocks
		if total >= 1 && total <= maxWorkerBlocks && (s.blocks == 0 || total < s.blocks) {
			s.blocks = total
		}
	}
	var decision struct {
		Attempts []struct {
			Mode      string `json:"mode"`
			BlockSize int    `json:"block_size"`
		} `json:"attempts"`
	}
	if c.getJSON(ctx, "/v1/router/decisions?request_id="+url.QueryEscape(requestID), &decision) == nil && len(decision.Attempts) > 0 {
		last := decision.Attempts[len(decision.Attempts)-1]
		s.mode = last.Mode
		if last.BlockSize >= 2 && last.BlockSize <= 65536 {
			s.blockSize = last.BlockSize
		}
	}
	return s
}

// policyName returns the name of the run's policy.
func (s benchServer) policyName() string {
	if s.mode == "" {
		return "server"
	}
	return s.mode
}

func (s benchServer) String() string {
	if s.workers == 0 {
		return "server"
	}
	return fmt.Sprintf("%d workers, routed by %s", s.workers, printable(s.policyName()))
}
