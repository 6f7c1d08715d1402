package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/internal/node/engines"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/core/route"
	"penstock/internal/config"
	"penstock/internal/replay"
	"penstock/internal/replay/trace"
	"penstock/internal/simcluster"
)

const (
	maxReplayWorkers = 1 << 16
	maxReplayRouters = 1 << 10
)

// replayFlags holds the flags of replay.
type replayFlags struct {
	workloadFlags
	outputFlags

	workers, blockSizes, blocks []int
	cacheTokens                 []int // in place of blocks
	policies                    []string
	routers                     int
	sync, track                 string
	weight, temperature         float64
	queueWeight, nearCost       float64
	eventDelay, callDelay       time.Duration
	predicted                   time.Duration
	noEvents                    bool
	speedup                     float64
	jobs                        int
	describe                    bool

	sloTTFT, sloITL, sloE2E time.Duration
	warmup                  warmup
	speeds                  []float64
	slowDowns               slowDowns
	routing                 replayRouting
	tune                    bool
	tuneSeeds               int

	engine         *config.SimulationFlags
	encodeWorkers  []int
	embeddingCache []float64 // GiB
	embeddingFetch string
	rowLatency     time.Duration
	rowBandwidth   float64 // GB/s
	disagg         replayDisagg
	planner        replayPlanner
}

// slowDowns is the value of --slow-worker. It implements pflag.Value.
type slowDowns []simcluster.SlowDown

// Type implements pflag.Value.
func (s *slowDowns) Type() string { return "slowdowns" }

// String implements pflag.Value.
func (s *slowDowns) String() string {
	var out []string
	for _, d := range *s {
		out = append(out, fmt.Sprintf("%d@%v:%g", d.Worker, d.At, d.Factor))
	}
	return strings.Join(out, ",")
}

// Set implements pflag.Value. It adds to the earlier ones.
func (s *slowDowns) Set(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		number, rest, _ := strings.Cut(text, "@")
		at, factor, _ := strings.Cut(rest, ":")
		worker, err := strconv.Atoi(number)
		start, startErr := time.ParseDuration(at)
		times, factorErr := strconv.ParseFloat(factor, 64)
		if errors.Join(err, startErr, factorErr) != nil {
			return fmt.Errorf("%q is not NUMBER@TIME:FACTOR, such as 1@60s:2", text)
		}
		*s = append(*s, simcluster.SlowDown{Worker: worker, At: start, Factor: times})
	}
	return nil
}

// workloadFlags says which requests are sent and when.
type workloadFlags struct {
	trace, format, generate string
	sort, ignoreUnknown     bool
	traceBlockSize          int
	arrival                 string
	rate                    float64
	requests                int
	from, until             time.Duration
	seed                    uint64
}

func newReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Run traffic through simulated workers and compare routing policies",
		Long: `Run a workload, from a file or made up, through simulated clusters: the router, the
indexes and the schedulers are those that serve, the workers' time is a model's and
passes as fast as it can be computed. Each policy, number of workers, block size
and number of blocks is a run of its own; beside them stands what an ideal cache
could give. The same command gives the same result on any machine.`,
		Example: `  penstock replay --trace mooncake.jsonl --workers 8,64
  penstock replay --trace mooncake.jsonl --describe
  penstock replay --generate chat:rate=4,turns=8 --workers 4
  penstock replay --tune --trace mooncake.jsonl --workers 8
  penstock replay --generate random:input=8000 --policy time --workers 6 --prefill-workers 2 --disagg-policy never,always,cost
  penstock replay --generate shared:requests=5000 --rate 40 --policy kv,random --report report.html
  penstock replay --trace azure.csv --requests 10000 --slo-ttft 2s --json`,
		Args: checkArgs(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.runReplay(cmd) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.workloadFlags.addFlags(fs)
	fs.BoolVar(&f.tune, "tune", false, "compare the defaults with other policies, weights and temperatures on this workload, over --tune-seeds seeds, and say how far they are from the best")
	fs.IntVar(&f.tuneSeeds, "tune-seeds", 5, "seeds of --tune, from --seed on: 2 to 100")
	fs.BoolVar(&f.describe, "describe", false, "run nothing: print what the workload consists of, and what caches of the sizes given could give it")
	fs.IntSliceVar(&f.workers, "workers", []int{8}, "numbers of workers, such as 8,64")
	fs.StringSliceVar(&f.policies, "policy", defaultPolicies(), "policies of the router: time, kv, round-robin, random, least-loaded, power-of-two")
	fs.IntSliceVar(&f.blockSizes, "block-size", []int{16}, "tokens of a KV-cache block")
	fs.IntSliceVar(&f.blocks, "blocks-per-worker", []int{65536}, "KV-cache blocks of a worker")
	fs.IntSliceVar(&f.cacheTokens, "cache-tokens", nil, "tokens of a worker's KV cache, in place of --blocks-per-worker: block sizes side by side then have equal caches")
	fs.Float64Var(&f.speedup, "speedup", 1, "how many times as fast the engines compute as their model of time says; when requests are sent stays (for that: --arrival trace:speedup=X)")
	fs.Float64SliceVar(&f.speeds, "worker-speeds", nil, "speeds of the workers relative to the model of time, such as 1,1,0.5; further workers have them again from the start")
	fs.Var(&f.slowDowns, "slow-worker", "a worker that becomes slower, as NUMBER@TIME:FACTOR, such as 1@60s:2")
	fs.IntVar(&f.routers, "routers", 1, "replicas of the router, which get requests in turn")
	fs.StringVar(&f.sync, "router-replica-sync", config.On, "on or off: they tell each other what they have sent, so that each counts the requests of all")
	fs.StringVar(&f.track, "router-track-output-blocks", config.Off, "on or off: blocks of answers count as load as they are generated")
	fs.Float64Var(&f.weight, "kv-overlap-score-weight", 1, "what a block of prompt to compute costs against an active block, in mode kv")
	fs.Float64Var(&f.queueWeight, "router-prefill-queue-weight", 1, "what a block of prefill work that other requests have on a worker costs against one of the request's own, in mode kv")
	fs.Float64Var(&f.nearCost, "router-near-cost", 0, "share of the least cost by which another may exceed it and still count as equal, in modes time and kv")
	fs.Float64Var(&f.temperature, "router-temperature", 0, "how far choices of modes time and kv are spread: 0 takes the cheapest worker")
	f.routing.addFlags(fs)
	fs.IntSliceVar(&f.encodeWorkers, "encode-workers", []int{0}, "numbers of encode workers, such as 0,1, which encode images for the others; without any each worker encodes itself")
	fs.Float64SliceVar(&f.embeddingCache, "embedding-cache-capacity-gb", []float64{0.0625}, "sizes in GiB of the embedding cache of each worker and of each encode worker; 0 keeps nothing")
	fs.StringVar(&f.embeddingFetch, "embedding-fetch", config.On, "on or off: a worker asks others which hold an image's embedding before it encodes")
	fs.DurationVar(&f.rowLatency, "embedding-fetch-latency", 500*time.Microsecond, "time that an embedding takes from one worker to another, or from an encode worker, beside that of its bytes")
	fs.Float64Var(&f.rowBandwidth, "embedding-fetch-bandwidth", 12.5, "GB a second at which they come; 0 takes no time")
	f.disagg.addFlags(fs)
	f.planner.addFlags(fs)
	fs.BoolVar(&f.noEvents, "no-kv-events", false, "routers follow no cache events: they predict what is cached from what they sent, for 2m0s")
	fs.DurationVar(&f.predicted, "router-predicted-ttl", 2*time.Second, "time for which routers predict so too beside the events; 0s is not at all")
	fs.DurationVar(&f.eventDelay, "event-delay", 0, "time that a cache event takes from worker to router")
	fs.DurationVar(&f.callDelay, "call-delay", 0, "time that a request and its tokens take on their way, each")
	fs.DurationVar(&f.sloTTFT, "slo-ttft", 0, "objective for the time to the first token; goodput is then reported")
	fs.DurationVar(&f.sloITL, "slo-itl", 0, "objective for the mean time between the tokens of an answer")
	fs.DurationVar(&f.sloE2E, "slo-e2e", 0, "objective for the time of the whole answer")
	fs.Var(&f.warmup, "warmup", "what is left out of the figures at the beginning: requests (20) or time (10s)")
	f.engine = config.AddSimulationFlags(fs)
	fs.IntVar(&f.jobs, "jobs", 0, "runs at a time; 0 is what processors and memory allow. Results do not depend on it")
	f.outputFlags.addFlags(fs)
	return cmd
}

// addFlags defines the flags.
func (f *workloadFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.trace, "trace", "", "file of requests, - for standard input: "+traceFormatNames()+", told by its first row")
	fs.StringVar(&f.generate, "generate", "", "make a workload up, as KIND:KEY=VALUE,...; kinds: random, shared, rag, longdoc, images, window, chat, agent, code")
	fs.StringVar(&f.format, "format", "", "format of the file, if its first row does not tell")
	fs.BoolVar(&f.sort, "sort", false, "put the file's requests in the order of their times; without it a file that goes back is refused")
	fs.BoolVar(&f.ignoreUnknown, "ignore-unknown", false, "pass over fields that the format does not have")
	fs.IntVar(&f.traceBlockSize, "trace-block-size", 0, "tokens of a block of the file's hash_ids; 0 is the format's own")
	fs.StringVar(&f.arrival, "arrival", "", "when requests are sent: trace (as the file says), trace:speedup=X, trace:grid=3s (rounded down to this grid), uniform, poisson or gamma:cv=X; the last three with --rate")
	fs.Float64Var(&f.rate, "rate", 0, "requests a second, in place of the workload's times; at random distances (poisson) unless --arrival says otherwise")
	fs.IntVar(&f.requests, "requests", 0, "so many requests: of a trace the first ones, of a workload that is made up all; 0 is what it has")
	fs.DurationVar(&f.from, "from", 0, "leave out what the workload sends before this, and begin there")
	fs.DurationVar(&f.until, "until", 0, "leave out what the workload sends from then on")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of everything that is drawn")
}

func traceFormatNames() string {
	var out []string
	for _, f := range trace.Formats() {
		out = append(out, string(f))
	}
	return strings.Join(out, ", ")
}

// defaultPolicies returns the policies which are compared if none is named.
func defaultPolicies() []string {
	return []string{string(route.Time), string(route.KV), string(route.RoundRobin), string(route.Random), string(route.LeastLoaded), string(route.PowerOfTwo)}
}

// timedWorkload is a workload with an arrival process.
type timedWorkload struct {
	replay.Workload
	arrival replay.Arrival
	closer  io.Closer // nil if there is nothing to close
	// timedByUser is true if the user chose the arrival process.
	timedByUser bool
}

// openWorkload prepares the workload. The caller closes it.
func (f *workloadFlags) openWorkload(stdin io.Reader) (*timedWorkload, error) {
	if (f.trace == "") == (f.generate == "") {
		return nil, usageError(errors.New("give one workload: --trace FILE or --generate KIND"))
	}
	w := &timedWorkload{}
	if err := f.setArrival(w); err != nil {
		return nil, usageError(err)
	}
	if f.generate != "" {
		if f.format != "" || f.sort || f.ignoreUnknown || f.traceBlockSize != 0 {
			return nil, usageError(errors.New("--format, --sort, --ignore-unknown and --trace-block-size are about a file: they go with --trace"))
		}
		made, err := replay.ParseGenerator(withRequestCount(f.generate, f.requests), f.seed)
		w.Workload = made
		return w, usageError(err)
	}
	file, err := trace.Open(f.trace, trace.Options{
		Format: trace.Format(f.format), IgnoreUnknown: f.ignoreUnknown, BlockSize: f.traceBlockSize, Sort: f.sort, Stdin: stdin,
	})
	if err != nil {
		return nil, usageError(err)
	}
	w.Workload, w.closer = file, file
	return w, nil
}

// setArrival sets the arrival process from the flags.
func (f *workloadFlags) setArrival(w *timedWorkload) error {
	a, err := parseArrivalFlags(f.arrival, f.rate)
	if err != nil {
		return err
	}
	w.timedByUser = f.arrival != "" || f.rate != 0
	a.Limit, a.From, a.Until, a.Seed = f.requests, f.from, f.until, f.seed
	w.arrival = a
	_, err = replay.ApplyArrival(nil, a)
	return err
}

// parseArrivalFlags returns the arrival process of --arrival and --rate.
func parseArrivalFlags(text string, rate float64) (replay.Arrival, error) {
	if text == "" && rate == 0 {
		return replay.Arrival{}, nil
	}
	if text == "" {
		text = string(replay.Poisson)
	}
	a, err := replay.ParseArrival(text)
	switch {
	case err != nil || rate == 0:
		return a, err
	case a.Rate != 0:
		return a, errors.New("the rate is given twice, by --rate and by --arrival")
	case a.Process == replay.AsWritten:
		return a, errors.New("--rate is in place of the workload's times: it does not go with --arrival trace")
	}
	a.Rate = rate
	return a, nil
}

// Open implements replay.Workload.
func (w *timedWorkload) Open() (replay.Source, error) {
	s, err := w.Workload.Open()
	if err != nil {
		return nil, err
	}
	return replay.ApplyArrival(s, w.arrival)
}

// Close releases what the workload holds.
func (w *timedWorkload) Close() error {
	if w.closer == nil {
		return nil
	}
	return w.closer.Close()
}

// validateAndCount reads the workload once, so that its errors are reported before anything runs, and returns
// the number of its requests.
func (w *timedWorkload) validateAndCount(ctx context.Context) (int, error) {
	s, err := w.Workload.Open()
	if err != nil {
		return 0, err
	}
	var r replay.Request
	err = s.Next(&r)
	if err := s.Close(); err != nil {
		return 0, err
	}
	switch {
	case errors.Is(err, io.EOF):
		return 0, errors.New("the workload has no requests")
	case err != nil:
		return 0, err
	case r.At < 0 && !w.timedByUser:
		return 0, usageError(errors.New("the workload does not say when its requests are sent: give --rate with the requests a second, and --arrival if they shall not come at random distances"))
	}
	return w.countRequests(ctx)
}

// countRequests reads the workload to its end.
func (w *timedWorkload) countRequests(ctx context.Context) (n int, err error) {
	s, err := w.Open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var r replay.Request
	for ; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return n, ctx.Err()
		}
		err := s.Next(&r)
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return 0, errors.New("no request of the workload is left; look at --requests, --from and --until")
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// runReplay runs all scenarios and writes the result.
func (f *replayFlags) runReplay(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	if err := f.setPlannerDefaults(cmd.Flags()); err != nil {
		return usageError(err)
	}
	all, err := f.buildScenarios(cmd)
	if err != nil {
		return usageError(err)
	}
	work, err := f.openWorkload(cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, work.Close()) }()
	if work.arrival.Process == replay.Closed {
		return usageError(errors.New("a replay needs moments at which requests are sent, so not --arrival closed: give --rate"))
	}
	if f.tune {
		return f.tuneDefaults(cmd, all, work)
	}
	if len(f.planner.modes) > 0 {
		return f.comparePlanners(cmd, all, work)
	}
	if f.describe {
		return f.describeWorkload(cmd, all, work)
	}
	files, err := f.outputFlags.createFiles(f.trace)
	if err != nil {
		return usageError(err)
	}
	defer files.discardUnfinished()
	requests, err := work.validateAndCount(ctx)
	if err != nil {
		return explainInterrupt(err)
	}
	progress := &replayProgress{total: len(all.runs) * requests}
	progress.progressDisplay = newProgressDisplay(cmd.ErrOrStderr(), 0, progress.formatLine)
	result, err := all.runAll(ctx, work, progress)
	progress.finish()
	if err != nil {
		return explainInterrupt(err)
	}
	result.Settings = collectReplaySettings(cmd.Flags())
	if err := files.writeResult(cmd.OutOrStdout(), result); err != nil {
		return err
	}
	if !slices.ContainsFunc(result.Rows, func(r replay.Row) bool { return r.Errors < r.Requests }) {
		return errors.New("replay: no request was answered")
	}
	return nil
}

// explainInterrupt replaces the error of a cancelled context by a message for the user.
func explainInterrupt(err error) error {
	if errors.Is(err, context.Canceled) {
		return errors.New("replay: interrupted; nothing was written")
	}
	return err
}

// collectReplaySettings returns the flags which shaped a result: those given, and the defaults which define a
// cluster. Flags for the output and the number of jobs are left out.
func collectReplaySettings(fs *pflag.FlagSet) []replay.Setting {
	always := []string{"workers", "policy", "block-size", "blocks-per-worker", "seed"}
	never := []string{"jobs", "json", "csv", "report"}
	if fs.Changed("tune") {
		never = append(never, "policy")
	}
	if fs.Changed("cache-tokens") {
		never = append(never, "blocks-per-worker")
	}
	var out []replay.Setting
	fs.VisitAll(func(fl *pflag.Flag) {
		if slices.Contains(never, fl.Name) || !fl.Changed && !slices.Contains(always, fl.Name) {
			return
		}
		value := fl.Value.String()
		if list, ok := fl.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		out = append(out, replay.Setting{Name: fl.Name, Value: value})
	})
	return out
}

// scenario is one run.
type scenario struct {
	name    string // in progress lines; "" is made of the fields
	cluster simcluster.Config
	measure replay.RecorderConfig
}

// scenarios are all runs of a command, in the order of their rows.
type scenarios struct {
	runs []scenario
	jobs int
	// workers are the worker counts for which ideals are computed, for each cache size.
	workers []int
	sizes   []cacheSize
}

// cacheSize is a block size in tokens and a number of blocks.
type cacheSize struct{ blockSize, blocks int }

// buildScenarios lays out the runs. Its error reports everything wrong with the flags.
func (f *replayFlags) buildScenarios(cmd *cobra.Command) (*scenarios, error) {
	engine, err := f.engine.Resolve()
	errs := []error{err}
	if cmd.Flags().Changed("speedup") {
		if cmd.Flags().Changed("sim-speedup") {
			errs = append(errs, errors.New("--speedup is another name of --sim-speedup here: give one"))
		}
		engine.Timing.Speedup = f.speedup
		errs = append(errs, engine.Timing.Validate())
	}
	if min(f.sloTTFT, f.sloITL, f.sloE2E) < 0 || f.jobs < 0 {
		errs = append(errs, errors.New("objectives and --jobs must not be negative"))
	}
	errs = append(errs, f.routing.validate(), f.validateTune(cmd.Flags()), requireDistinct("workers", f.workers), requireDistinct("policy", f.policies),
		requireDistinct("block-size", f.blockSizes), requireDistinct("blocks-per-worker", f.blocks),
		requireBetween("workers", 1, maxReplayWorkers, f.workers...), requireBetween("routers", 1, maxReplayRouters, f.routers),
		requireBetween("block-size", 2, 65536, f.blockSizes...), requireBetween("blocks-per-worker", 1, 1<<30, f.blocks...),
		requireBetween("cache-tokens", 2, 1<<30, f.cacheTokens...), requireDistinct("encode-workers", f.encodeWorkers),
		requireDistinct("embedding-cache-capacity-gb", f.embeddingCache), f.disagg.validate(&engine))
	for _, gib := range f.embeddingCache {
		if !(gib >= 0 && gib <= config.MaxEmbeddingCache) {
			errs = append(errs, fmt.Errorf("--embedding-cache-capacity-gb: %v is not between 0 and %d", gib, config.MaxEmbeddingCache))
		}
	}
	for _, choice := range [...][2]string{{"router-replica-sync", f.sync}, {"router-track-output-blocks", f.track}, {"embedding-fetch", f.embeddingFetch}} {
		if choice[1] != config.On && choice[1] != config.Off {
			errs = append(errs, fmt.Errorf("--%s is on or off, not %.40q", choice[0], choice[1]))
		}
	}
	if f.cacheTokens != nil {
		errs = append(errs, requireDistinct("cache-tokens", f.cacheTokens))
		if cmd.Flags().Changed("blocks-per-worker") {
			errs = append(errs, errors.New("--blocks-per-worker and --cache-tokens both say how large a cache is: give one"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	engine.Timing.Seed = f.seed
	out := &scenarios{workers: f.workers}
	out.sizes = f.cacheSizes()
	for _, cache := range out.sizes {
		for _, workers := range f.workers {
			for _, policy := range f.policies {
				for _, s := range f.varyEncoding(f.buildScenario(engine, cache, workers, policy)) {
					out.runs = append(out.runs, f.disagg.varySplit(s, &engine)...)
				}
			}
		}
	}
	for i := range out.runs {
		c := &out.runs[i].cluster
		c.EnsureDefaults()
		if err := c.Validate(); err != nil {
			return nil, err
		}
	}
	out.jobs = f.jobs
	if out.jobs == 0 {
		out.jobs = out.affordableJobs(runtime.GOMAXPROCS(0), engines.MemoryLimit())
	}
	return out, nil
}

// cacheSizes returns the cache sizes of a worker to simulate.
func (f *replayFlags) cacheSizes() []cacheSize {
	var out []cacheSize
	for _, size := range f.blockSizes {
		for _, tokens := range f.cacheTokens {
			out = append(out, cacheSize{size, max(tokens/size, 1)})
		}
		if f.cacheTokens != nil {
			continue
		}
		for _, blocks := range f.blocks {
			out = append(out, cacheSize{size, blocks})
		}
	}
	return out
}

// buildScenario returns one run.
func (f *replayFlags) buildScenario(engine config.SimulatedEngine, cache cacheSize, workers int, policy string) scenario {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	s := scenario{
		cluster: simcluster.Config{
			Workers: workers, BlockSize: cache.blockSize, Blocks: cache.blocks,
			MaxSeqs: engine.MaxSeqs, TokenBudget: engine.TokenBudget, Timing: engine.Timing, Encoders: engine.Encoders,
			Speeds: f.speeds, SlowDowns: f.slowDowns,
			Routers: f.routers, Sync: f.sync == config.On, TrackOutput: f.track == config.On,
			NoRowSharing: f.embeddingFetch == config.Off, RowLatency: f.rowLatency, RowBandwidth: f.rowBandwidth,
			NoKVEvents: f.noEvents, PredictedTTL: f.predicted, EventDelay: f.eventDelay, Delay: f.callDelay, Seed: f.seed,
			Route: route.Config{Mode: route.Mode(policy), OverlapWeight: &f.weight, Temperature: f.temperature, Seed: f.seed, QueueWeight: &f.queueWeight, NearCost: f.nearCost},
		},
		measure: replay.RecorderConfig{
			Policy: policy, Workers: workers, BlockSize: cache.blockSize, Blocks: cache.blocks,
			SLO:    replay.SLO{TTFT: ms(f.sloTTFT), ITL: ms(f.sloITL), E2E: ms(f.sloE2E)},
			Warmup: f.warmup.window, WarmupRequests: f.warmup.requests,
		},
	}
	f.routing.apply(&s.cluster)
	return s
}

// varyEncoding returns a run for each number of encode workers and each size of the embedding caches.
func (f *replayFlags) varyEncoding(s scenario) (all []scenario) {
	name := s.displayName()
	for _, encoders := range f.encodeWorkers {
		for _, gib := range f.embeddingCache {
			s.cluster.EncodeWorkers, s.cluster.EmbeddingCache = encoders, int(gib*(1<<30))
			if len(f.encodeWorkers)*len(f.embeddingCache) > 1 {
				s.name = fmt.Sprintf("%s, %d encode workers, embedding caches of %g GiB", name, encoders, gib)
			}
			all = append(all, s)
		}
	}
	return all
}

// requireDistinct refuses a list which is empty or has a duplicate.
func requireDistinct[T comparable](flag string, list []T) error {
	if len(list) == 0 {
		return fmt.Errorf("--%s is empty", flag)
	}
	for i, v := range list {
		if slices.Contains(list[:i], v) {
			return fmt.Errorf("--%s has %v twice", flag, v)
		}
	}
	return nil
}

// requireBetween refuses numbers outside least to most.
func requireBetween(flag string, least, most int, list ...int) error {
	for _, v := range list {
		if v < least || v > most {
			return fmt.Errorf("--%s: %d is not between %d and %d", flag, v, least, most)
		}
	}
	return nil
}

// affordableJobs returns the number of concurrent runs: one per processor, as long as the largest ones fit
// half of the memory with all their blocks in use. memory is in bytes; 0 is not known.
func (s *scenarios) affordableJobs(processors int, memory uint64) int {
	// A block costs its tokens and the records of worker and router; see simcluster.
	const perBlock, perToken = 160, 4
	var largest uint64
	for _, r := range s.runs {
		c := &r.cluster
		largest = max(largest, uint64(c.Workers)*uint64(c.Blocks)*uint64(perBlock+perToken*c.BlockSize))
	}
	jobs := min(processors, len(s.runs))
	if memory > 0 && largest > 0 {
		jobs = min(jobs, int(min(memory/2/largest, 1<<20)))
	}
	return max(jobs, 1)
}

// displayName returns the name of a run in progress lines.
func (s *scenario) displayName() string {
	if s.name != "" {
		return s.name
	}
	n := "workers"
	if s.cluster.Workers == 1 {
		n = "worker"
	}
	return s.measure.Policy + ", " + strconv.Itoa(s.cluster.Workers) + " " + n + " of " +
		strconv.Itoa(s.cluster.Blocks) + " blocks of " + strconv.Itoa(s.cluster.BlockSize)
}
