package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/replay"
	"penstock/internal/replay/load"
	"penstock/internal/replay/trace"
)

// benchOptions holds the flags of bench.
type benchOptions struct {
	target     serverTarget
	model      string
	headers    []string
	trace      string
	traceOpts  trace.Options
	format     string
	generate   string
	images     string
	seed       uint64
	promptSeed uint64

	rate           float64
	arrival        string
	speedup        float64
	concurrency    int
	requests       int
	duration       time.Duration
	warmup         warmup
	input          string
	maxTokens      int
	extraBody      string
	timeout        time.Duration
	maxConnections int

	slo struct{ ttft, itl, e2e time.Duration }

	outputs outputFlags
}

// defaultWorkload fits the built-in model.
const (
	defaultWorkload = "shared:rate=10,groups=8,prefix=512,input=64,output=32"
	// defaultImageWorkload is the default text workload when --images is set.
	defaultImageWorkload = "random:rate=10,input=64,output=32"
	defaultRequests      = 200
)

// maxBenchConnections bounds the client's connections: more would exceed its ports.
const maxBenchConnections = 1 << 16

func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Send a workload to an OpenAI endpoint and measure its answers",
		Long: `Send the requests of a trace, or of a workload that is made up, to any server with the
OpenAI API, and measure the time to the first token, the time between tokens, what the
server had cached, and whether the client itself was in time.

Requests go out at the moments of the workload, at a rate (--rate), or each when another
is over (--concurrency). Prompts are made so that prefixes really repeat, and anew for
each run, so that nothing of the run before is still cached. docs/bench.md defines every
figure.`,
		Example: `  penstock bench
  penstock bench --url http://127.0.0.1:8000 --trace mooncake.jsonl --speedup 2 --report out.html
  penstock bench --generate chat:turns=8 --rate 5 --slo-ttft 500ms --slo-itl 50ms
  penstock bench --images pool:size=200 --requests 1000
  penstock bench --concurrency 32 --requests 1000 --json > after.json
  penstock bench compare before.json after.json`,
		Args: rejectUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.runBench(cmd) },
	}
	f := cmd.Flags()
	o.target.addServerFlag(cmd, "url", defaultServer, "URL of the server; /v1 at its end may be left out")
	o.target.addKeyFileFlag(cmd)
	o.target.addCAFlag(cmd)
	f.StringArrayVar(&o.headers, "header", nil, "another header for each request, as 'Name: value' (repeatable)")
	f.StringVar(&o.model, "model", "", "model to ask; the only one that is served if empty")

	f.StringVar(&o.trace, "trace", "", "file with the requests: Mooncake or its superset, Bailian, ShareGPT, Azure, BurstGPT; - is standard input")
	f.StringVar(&o.format, "format", "", "format of the trace, if its first row does not tell")
	f.BoolVar(&o.traceOpts.IgnoreUnknown, "ignore-unknown", false, "pass over fields of the trace that its format does not have")
	f.BoolVar(&o.traceOpts.Sort, "sort", false, "put the requests of the trace in the order of their times")
	f.StringVar(&o.generate, "generate", "", "workload to make up instead, such as chat:turns=8 or shared:prefix=2048 (default \""+withRequestCount(defaultWorkload, defaultRequests)+"\")")
	f.StringVar(&o.images, "images", "", "pictures that requests show: pool:size=1024,width=224,height=224,each=1, unique:width=…, or workload for those that the workload has")
	f.Uint64Var(&o.seed, "seed", 1, "seed of what is drawn: a made-up workload, random arrivals")
	f.Uint64Var(&o.promptSeed, "prompt-seed", 0, "seed of the prompts' words; 0 draws one, so that nothing of an earlier run is cached")

	f.Float64Var(&o.rate, "rate", 0, "requests a second, instead of the workload's moments")
	f.StringVar(&o.arrival, "arrival", "", "when requests are sent: trace (as the workload says), trace:speedup=X, uniform, poisson or gamma:cv=X; the last three with --rate, for which poisson is the default")
	f.Float64Var(&o.speedup, "speedup", 1, "divides the workload's moments and pauses: --arrival trace:speedup=X by another name, and not what --speedup is to replay")
	f.IntVar(&o.concurrency, "concurrency", 0, "so many requests at once, each sent when another is over, instead of moments")
	f.IntVar(&o.requests, "requests", 0, "so many requests: of a trace the first ones, of a workload that is made up all; 0 is what it has")
	f.DurationVar(&o.duration, "duration", 0, "send nothing after so long; 0 is no bound")
	f.Var(&o.warmup, "warmup", "what is left out of the figures at the beginning: requests (20) or time (10s)")
	f.StringVar(&o.input, "input", "auto", "prompts as token ids to /v1/completions (tokens), as text to /v1/chat/completions (text), or what the server takes (auto)")
	f.IntVar(&o.maxTokens, "max-tokens", 0, "length of every answer instead of the workload's; 0 keeps those")
	f.StringVar(&o.extraBody, "extra-body", "", "JSON object whose members are put into every request, such as '{\"temperature\": 0}'")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long a request may take")
	f.IntVar(&o.maxConnections, "max-connections", 4096, "connections at most, without --concurrency")

	f.DurationVar(&o.slo.ttft, "slo-ttft", 0, "goodput: the time to the first token that is good enough")
	f.DurationVar(&o.slo.itl, "slo-itl", 0, "goodput: the mean time between an answer's tokens that is good enough")
	f.DurationVar(&o.slo.e2e, "slo-e2e", 0, "goodput: the time of a whole answer that is good enough")
	o.outputs.addFlags(f)
	cmd.AddCommand(newCompareCommand())
	return cmd
}

// validate reports flags which contradict each other.
func (o *benchOptions) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.trace != "" && o.generate != "" {
		bad("--trace and --generate are both workloads: give one of them")
	}
	if o.rate != 0 && o.concurrency != 0 {
		bad("--rate and --concurrency both say when requests are sent: give one of them")
	}
	if o.speedup != 1 && (o.rate != 0 || o.concurrency != 0) {
		bad("--speedup is about the workload's moments, which --rate and --concurrency replace")
	}
	if o.rate < 0 || o.concurrency < 0 || o.requests < 0 || o.duration < 0 || o.maxTokens < 0 || o.timeout <= 0 || o.maxConnections < 1 {
		bad("--rate, --concurrency, --requests, --duration and --max-tokens must not be negative, --timeout and --max-connections must be positive")
	}
	if max(o.concurrency, o.maxConnections) > maxBenchConnections {
		bad("--concurrency and --max-connections must be at most %d: a client has no more ports", maxBenchConnections)
	}
	if o.slo.ttft < 0 || o.slo.itl < 0 || o.slo.e2e < 0 {
		bad("--slo-ttft, --slo-itl and --slo-e2e must not be negative")
	}
	if o.input != "auto" && o.input != "tokens" && o.input != "text" {
		bad("--input: %q is none of auto, tokens, text", o.input)
	}
	if _, err := o.parsePictures(); err != nil {
		errs = append(errs, err)
	} else if o.images != "" && o.input == "tokens" {
		bad("--images and --input tokens: pictures are sent in conversations")
	}
	if o.extraBody != "" && json.Unmarshal([]byte(o.extraBody), &map[string]any{}) != nil {
		bad("--extra-body: want a JSON object such as {\"temperature\": 0}")
	}
	if _, err := o.buildArrival(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// buildArrival returns the arrival process of the flags, with its request limit.
func (o *benchOptions) buildArrival() (replay.Arrival, error) {
	if o.concurrency > 0 {
		if o.arrival != "" {
			return replay.Arrival{}, errors.New("--arrival and --concurrency both say when requests are sent: give one of them")
		}
		return replay.Arrival{Process: replay.Closed, Limit: o.requests, Seed: o.seed}, nil
	}
	a, err := parseArrivalFlags(o.arrival, o.rate)
	switch {
	case err != nil:
		return a, err
	case a.Process == replay.Closed:
		return a, errors.New("--arrival closed: give --concurrency with the number of requests that are under way")
	case o.speedup != 1 && a.Speedup != 0:
		return a, errors.New("the speed-up is given twice, by --speedup and by --arrival")
	case o.speedup != 1:
		a.Speedup = o.speedup
	}
	a.Limit, a.Seed = o.requests, o.seed
	_, err = replay.ApplyArrival(nil, a)
	return a, err
}

// parsePictures returns the pictures which requests carry; nil if there are none.
func (o *benchOptions) parsePictures() (*replay.Pictures, error) {
	if o.images == "" {
		return nil, nil
	}
	return replay.ParsePictures(o.images, o.seed)
}

// promptForms returns the forms in which prompts may be sent, in order of preference.
func (o *benchOptions) promptForms() []load.PromptForm {
	switch {
	case o.input == "tokens":
		return []load.PromptForm{load.TokenPrompt}
	case o.input == "text" || o.images != "":
		return []load.PromptForm{load.TextPrompt}
	}
	return []load.PromptForm{load.TokenPrompt, load.TextPrompt}
}

// parseHeaders returns the extra HTTP headers of the flags.
func (o *benchOptions) parseHeaders() (http.Header, error) {
	h := http.Header{}
	for _, line := range o.headers {
		name, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, errors.New("--header: want 'Name: value'") // the value is not printed: it may be a secret
		}
		h.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return h, nil
}

// goodputSLO returns the objectives which define goodput.
func (o *benchOptions) goodputSLO() replay.SLO {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return replay.SLO{TTFT: ms(o.slo.ttft), ITL: ms(o.slo.itl), E2E: ms(o.slo.e2e)}
}

// warmup is the start of a run which is left out of its figures: a number of requests, or those sent within a
// time. It implements pflag.Value.
type warmup struct {
	requests int
	window   time.Duration
}

// Set implements pflag.Value.
func (w *warmup) Set(s string) error {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 {
		*w = warmup{requests: n}
		return nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		*w = warmup{window: d}
		return nil
	}
	return fmt.Errorf("%q is neither a number of requests nor a time such as 10s", s)
}

// String implements pflag.Value.
func (w *warmup) String() string {
	if w.window > 0 {
		return w.window.String()
	}
	return strconv.Itoa(w.requests)
}

// Type implements pflag.Value.
func (*warmup) Type() string { return "requests|time" }

// idealAfterWarmup returns the best possible cache hits for the requests after the warm-up, given a cache
// which the warm-up filled, and the total number of requests.
func (o *benchOptions) idealAfterWarmup(ctx context.Context, w replay.Workload, cfg replay.IdealConfig) (replay.Ideal, int, error) {
	all, whole, err := computeIdeal(ctx, w, cfg, 0, 0)
	if err != nil {
		return replay.Ideal{}, 0, err
	}
	if o.warmup == (warmup{}) {
		return all, whole.requests, nil
	}
	before, warm, err := computeIdeal(ctx, w, cfg, o.warmup.requests, o.warmup.window)
	if err != nil {
		return replay.Ideal{}, 0, err
	}
	rest := func(all, before replay.Share) replay.Share {
		if whole.tokens > warm.tokens {
			all.CachedShare = (all.CachedShare*float64(whole.tokens) - before.CachedShare*float64(warm.tokens)) / float64(whole.tokens-warm.tokens)
		}
		return all
	}
	all.Infinite, all.SameCapacity = rest(all.Infinite, before.Infinite), rest(all.SameCapacity, before.SameCapacity)
	return all, whole.requests, nil
}

// computeIdeal returns the ideal of a workload, or of its first requests, or of those before window; 0 means
// all.
func computeIdeal(ctx context.Context, w replay.Workload, cfg replay.IdealConfig, requests int, window time.Duration) (replay.Ideal, workloadSize, error) {
	source, err := w.Open()
	if err != nil {
		return replay.Ideal{}, workloadSize{}, err
	}
	defer source.Close()
	c := &countingSource{Source: source, maxRequests: requests, window: window}
	ideals, err := replay.Ideals(ctx, c, cfg)
	if err != nil {
		return replay.Ideal{}, workloadSize{}, err
	}
	return ideals[0], c.workloadSize, nil
}

// workloadSize is the part of a workload which was read.
type workloadSize struct {
	requests int
	tokens   int64 // of prompts
}

// countingSource counts what it reads of a source, up to its limits.
type countingSource struct {
	replay.Source
	maxRequests int           // requests; 0 is all
	window      time.Duration // 0 is all
	workloadSize
}

// Next implements replay.Source.
func (c *countingSource) Next(r *replay.Request) error {
	if c.maxRequests > 0 && c.requests == c.maxRequests {
		return io.EOF
	}
	if err := c.Source.Next(r); err != nil {
		return err
	}
	if c.window > 0 && r.At >= c.window {
		return io.EOF
	}
	c.requests++
	c.tokens += int64(replay.CountPromptTokens(r))
	return nil
}
