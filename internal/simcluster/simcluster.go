// Package simcluster is a whole cluster in one goroutine on virtual time: the state machines of production
// (feed, prefix, slots, route, paged, health, migrate, disagg), the simulated engine's timing model, and planes
// which delay, lose and duplicate messages by a seed.
//
// It replaces the processes around the machines, and each replacement acts at the same times as its original:
// a worker drives its scheduler as a batching engine does, and publishes, numbers and describes its cache as
// a worker process; a router follows feeds, requests resyncs, pings and reserves as a router process; a task
// moves between workers as in a frontend. Tests compare their times with the originals. Socket communication
// takes the constant times of [Config] here, and random draws are a function of [Config.Seed].
//
// Nothing here reads a clock or depends on the order of a map, so that the same configuration and requests
// give the same results on every machine.
//
// # Memory
//
// A worker costs what its cache has used: some 60 bytes per block and 4 bytes per token, plus some 100 bytes
// per block in each router's index. 64 workers whose 65,536 blocks of 16 tokens are all in use take 1 to 1.3
// GiB, before garbage. A request costs its block names from arrival to end, and its tokens while an engine
// has it; a session costs its name. Nothing else grows with the length of a run.
package simcluster

import (
	"cmp"
	"context"
	"errors"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// Config configures a cluster and a run.
type Config struct {
	Workers int
	// BlockSize is in tokens; Blocks is per worker.
	BlockSize, Blocks int
	// MaxSeqs bounds the sequences of a pass, TokenBudget its tokens, MaxWaiting the waiting sequences of one
	// worker.
	MaxSeqs, TokenBudget, MaxWaiting int
	// MaxContext bounds prompt plus output of a request, in tokens. A longer output is cut, a longer prompt
	// refused.
	MaxContext int
	// Timing is the timing of all workers, each with its own jitter. Their engines have started at time 0.
	Timing sim.Timing
	// Speeds are the speeds of the workers relative to Timing, from the first one on and again from the start;
	// none is 1 for all.
	Speeds []float64
	// SlowDowns change the speeds of workers during the run.
	SlowDowns []SlowDown
	Route     route.Config
	// Queue configures the queue of requests which wait in a router; Route says when they wait.
	Queue queue.Config
	// Routers is the number of replicas; requests go to them in turn. They do not know each other's
	// reservations, unless Sync makes them exchange them as in production. A sync message takes EventDelay,
	// after waiting a millisecond for more changes.
	Routers int
	Sync    bool
	// Sessions tells routers the sessions of requests.
	Sessions bool
	// TrackOutput counts response blocks as load as they are generated.
	TrackOutput bool
	// NoKVEvents makes routers ignore events: they predict the cached blocks from what they sent, for two
	// minutes.
	NoKVEvents bool
	// PredictedTTL is how long routers which follow events also keep predictions; 0 disables them.
	PredictedTTL time.Duration
	// EventDelay is the time of a cache event from worker to router.
	EventDelay time.Duration
	// Delay is the time of a message between client and worker, in either direction.
	Delay time.Duration
	// Migration configures request migration; a negative Limit disables it.
	Migration migrate.Config
	// StallTimeout is how long a worker may be silent before a request migrates.
	StallTimeout time.Duration
	// Vocabulary is the vocabulary of prompts.
	Vocabulary replay.Vocabulary
	// PrefillWorkers compute prompts for the workers, which are decode workers then, as Split decides. Handoff and Job
	// bound the machines of both, and a prefill worker does at most PrefillConcurrency jobs at once.
	PrefillWorkers     int
	Split              disagg.SplitConfig
	Handoff            disagg.HandoffConfig
	Job                disagg.JobConfig
	PrefillConcurrency int
	// KVLatency and KVBandwidth are the time of blocks from a prefill worker to a decode worker: that, and their bytes
	// by Timing.KV at so many GB/s (10⁹ bytes); 0 means infinite.
	KVLatency   time.Duration
	KVBandwidth float64
	// EmbeddingCache is the size of each worker's embedding cache in bytes, and of each encode worker's; 0 keeps
	// nothing.
	EmbeddingCache int
	// Encoders is the number of encoders beside the passes of each worker; with 0 it encodes in its passes.
	Encoders int
	// EncodeWorkers encode media for the workers, which then encode nothing themselves. With Encoders of 0 a request is
	// scheduled when its rows have come.
	EncodeWorkers int
	// NoRowSharing makes workers encode what others hold. Without it a worker asks those which hold an object's rows before
	// it encodes, unless that takes no time.
	NoRowSharing bool
	// RowLatency and RowBandwidth are the time of rows from one worker to another, also from encode workers: that, and
	// their bytes at so many GB/s (10⁹ bytes); 0 means infinite.
	RowLatency   time.Duration
	RowBandwidth float64
	// Pool is memory shared by workers.
	Pool   Pool
	Faults Faults
	// Scaling has the number of workers change.
	Scaling Scaling
	Seed    uint64
}

// SlowDown makes the passes of a worker longer which start at a time or later.
type SlowDown struct {
	Worker int // the first is 1
	At     time.Duration
	Factor float64 // above 1 is slower
}

// EnsureDefaults sets unset fields: one worker of 65536 blocks of 16 tokens with 256 sequences and 8192
// tokens a pass, 65536 waiting and a context of 262144; one router of the default mode; the migration and the stall
// timeout of a frontend.
func (c *Config) EnsureDefaults() {
	for _, f := range [...]struct {
		field *int
		v     int
	}{
		{&c.Workers, 1},
		{&c.BlockSize, 16},
		{&c.Blocks, 65536},
		{&c.MaxSeqs, 256},
		{&c.TokenBudget, 8192},
		{&c.MaxWaiting, 65536},
		{&c.MaxContext, 262144},
		{&c.Routers, 1},
		{&c.Migration.MaxFailures, 3},
	} {
		if *f.field == 0 {
			*f.field = f.v
		}
	}
	c.Migration.MaxWait = cmp.Or(c.Migration.MaxWait, 10*time.Second)
	c.StallTimeout = cmp.Or(c.StallTimeout, 5*time.Minute)
	c.Timing.EnsureDefaults()
	c.Route.EnsureDefaults()
	c.Queue.EnsureDefaults()
	c.Faults.ensureDefaults()
	c.ensureSplitDefaults()
}

// Validate reports every problem of c which the machines of the cluster do not report themselves. Call
// EnsureDefaults first.
func (c *Config) Validate() error {
	errs := []error{c.Timing.Validate(), c.Route.Validate(), c.Queue.Validate(), c.Faults.validate()}
	if c.Workers < 1 || c.Workers > 1<<20 {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: %d workers: must be between 1 and %d", c.Workers, 1<<20))
	}
	if c.Routers < 1 || c.Routers > 1<<10 {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: %d routers: must be between 1 and %d", c.Routers, 1<<10))
	}
	if c.Workers > 0 && c.Routers > 0 && c.Workers <= 1<<20 && c.Routers <= 1<<10 && c.Workers*c.Routers > maxMembers {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: %d routers that each know %d workers: their product must be at most %d", c.Routers, c.Workers, maxMembers))
	}
	if min(c.EventDelay, c.Delay, c.StallTimeout, c.PredictedTTL) < 0 || max(c.EventDelay, c.Delay, c.StallTimeout, c.PredictedTTL) > maxDelay {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: delays, the stall timeout and the predicted ttl must be between 0 and %v", maxDelay))
	}
	if c.Route.Mode == route.Direct {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: mode direct needs a worker in each request, and a workload has none: choose another mode"))
	}
	for _, s := range c.Speeds {
		if !(s >= 1/maxSpeed && s <= maxSpeed) {
			errs = append(errs, fault.New(fault.Invalid, "simcluster: the speed of a worker must be between %g and %g, not %g", 1/maxSpeed, maxSpeed, s))
		}
	}
	for _, s := range c.SlowDowns {
		if s.Worker < 1 || s.Worker > c.Workers || s.At < 0 || !(s.Factor >= 1/maxSpeed && s.Factor <= maxSpeed) {
			errs = append(errs, fault.New(fault.Invalid, "simcluster: worker %d of %d cannot become slower by %g at %v", s.Worker, c.Workers, s.Factor, s.At))
		}
	}
	errs = append(errs, c.Pool.validate(), c.validateEncoding(), c.validateSplit(), c.validateScaling())
	return errors.Join(errs...)
}

const (
	// maxMembers bounds the workers known to all routers, 1 kB each: 2 GB.
	maxMembers = 1 << 21
	// maxSpeed bounds how much faster or slower than the model of time a worker is.
	maxSpeed = 1000.0
	// maxDelay bounds constant times, so that their sums stay far below the limit of the virtual clock.
	maxDelay = 24 * time.Hour
)

// Run serves all requests of source and records each finished one and each gap between two tokens. The same
// configuration and source give the same calls in the same order on every machine. It ends early with ctx's
// error, or with that of the source.
func Run(ctx context.Context, cfg Config, source replay.Source, record Recorder) error {
	c, err := newCluster(cfg, source, record)
	if err != nil {
		return err
	}
	for n := 0; !c.isFinished(); n++ {
		if n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if err := c.runEvent(); err != nil {
			return err
		}
	}
	if r, ok := record.(EmbeddingRecorder); ok && c.mediaObjects > 0 {
		r.RecordEmbeddings(c.embeddingUse())
	}
	if r, ok := record.(ScalingRecorder); ok && cfg.Scaling.Scaler != nil {
		r.RecordScaling(c.finishScaling())
	}
	if r, ok := record.(DisaggRecorder); ok && c.cfg.PrefillWorkers > 0 {
		r.RecordDisagg(c.disaggUse())
	}
	return nil
}

// EmbeddingRecorder is a Recorder which also receives the use of encoders and embedding caches, at the end of a run whose
// requests showed media.
type EmbeddingRecorder interface {
	RecordEmbeddings(u replay.EmbeddingUse)
}

// DisaggRecorder is a Recorder which also receives where prompts were computed, at the end of a run with prefill
// workers.
type DisaggRecorder interface {
	RecordDisagg(u replay.DisaggUse)
}

// Recorder receives the measurements. *replay.Recorder is one.
type Recorder interface {
	// RecordSample records a finished request. Samples are in order of Done.
	RecordSample(s *replay.Sample)
	// RecordGap records the time between two tokens of a request, n times.
	RecordGap(between time.Duration, n int)
}
