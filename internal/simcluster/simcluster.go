// Package simcluster is a whole cluster in one goroutine on virtual time: the
// machines of production (feed, prefix, slots, route, paged, health, migrate), the
// simulated engine's model of time, and planes that delay, lose and repeat by a
// seed.
//
// It is the shells that are replaced, and each does what its original does at the
// same moment: a worker drives its scheduler as an engine in batches does, and
// publishes, numbers and describes its cache as a worker process; a router follows
// feeds, asks for what is missing, pings and reserves as a router process; a task goes
// from worker to worker as a frontend carries it. Tests hold their times against those of
// the originals. What the originals do over sockets
// takes the constant times of [Config] here, and what they draw at random is a
// function of [Config.Seed].
//
// Nothing here looks at a clock or decides by the order of a map, so that the same
// configuration and the same requests give the same answers on every machine.
//
// # Memory
//
// A worker costs what its cache has used: of each block some 60 bytes and its tokens,
// 4 bytes each; and what each router's index knows of it, some 100 bytes. 64 workers
// whose 65,536 blocks of 16 tokens are all in use are 1 to 1.3 GiB, before what the
// garbage collector leaves lying. A request costs the names of its blocks from its arrival
// to its end, and its tokens while an engine has it; a session costs its name. Nothing
// else grows with the length of a run.
package simcluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// firstWait is how long a request waits that never had a worker, as in a frontend.
const firstWait = 250 * time.Millisecond

// Config is a cluster and how it is run.
type Config struct {
	Workers int
	// BlockSize is in tokens; Blocks are those of one worker.
	BlockSize, Blocks int
	// MaxSeqs bounds the sequences of a pass, TokenBudget its tokens, MaxWaiting the
	// sequences that wait for their turn at one worker.
	MaxSeqs, TokenBudget, MaxWaiting int
	// MaxContext bounds prompt and output of one request together, in tokens. A longer
	// output is cut, a longer prompt refused.
	MaxContext int
	// Timing is that of all workers. They begin with their engines started, and each has
	// a jitter of its own.
	Timing sim.Timing
	Route  route.Config
	// Routers are replicas; requests go to them in turn. They know nothing of each other's
	// reservations, unless Sync says that they tell each other, as routers of production
	// do. What they tell takes EventDelay, after the millisecond that it waits for more.
	Routers int
	Sync    bool
	// TrackOutput says that blocks of answers count as load as they are generated.
	TrackOutput bool
	// NoKVEvents has routers follow no events: they predict what is cached from what they
	// sent, for two minutes.
	NoKVEvents bool
	// PredictedTTL is for how long routers that follow events predict so too; 0 is not
	// at all.
	PredictedTTL time.Duration
	// EventDelay is how long a cache event takes from worker to router.
	EventDelay time.Duration
	// Delay is how long a call takes from client to worker, and what is sent back.
	Delay time.Duration
	// Migration bounds what is done for a request that loses its worker; a negative
	// Limit is none.
	Migration migrate.Config
	// StallTimeout is how long a worker may send nothing before a request goes to
	// another.
	StallTimeout time.Duration
	// Vocabulary is what prompts are made of.
	Vocabulary replay.Vocabulary
	// Pool is memory that workers share.
	Pool   Pool
	Faults Faults
	Seed   uint64
}

// EnsureDefaults fills in what is not set: one worker of 65536 blocks of 16 tokens
// with 256 sequences and 8192 tokens a pass, 65536 waiting and a context of 262144; one router
// of mode kv; the migration and the stall timeout of a frontend.
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
		{&c.Migration.Limit, 3},
	} {
		if *f.field == 0 {
			*f.field = f.v
		}
	}
	if c.Migration.FirstWait == 0 {
		c.Migration.FirstWait = firstWait
	}
	if c.Migration.Wait == 0 {
		c.Migration.Wait = 10 * time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 5 * time.Minute
	}
	c.Timing.EnsureDefaults()
	c.Route.EnsureDefaults()
	c.Faults.ensureDefaults()
}

// Validate reports every problem of c that the machines of the cluster do not
// report themselves. Call EnsureDefaults first.
func (c *Config) Validate() error {
	errs := []error{c.Timing.Validate(), c.Route.Validate(), c.Faults.validate()}
	if c.Workers < 1 || c.Workers > 1<<20 {
		errs = append(errs, fmt.Errorf("simcluster: %d workers: must be between 1 and %d", c.Workers, 1<<20))
	}
	if c.Routers < 1 || c.Routers > 1<<10 {
		errs = append(errs, fmt.Errorf("simcluster: %d routers: must be between 1 and %d", c.Routers, 1<<10))
	}
	if c.Workers > 0 && c.Routers > 0 && c.Workers <= 1<<20 && c.Routers <= 1<<10 && c.Workers*c.Routers > maxMembers {
		errs = append(errs, fmt.Errorf("simcluster: %d routers that each know %d workers: their product must be at most %d", c.Routers, c.Workers, maxMembers))
	}
	if min(c.EventDelay, c.Delay, c.StallTimeout, c.PredictedTTL) < 0 || max(c.EventDelay, c.Delay, c.StallTimeout, c.PredictedTTL) > maxDelay {
		errs = append(errs, fmt.Errorf("simcluster: delays, the stall timeout and the predicted ttl must be between 0 and %v", maxDelay))
	}
	if c.Route.Mode == route.Direct {
		errs = append(errs, errors.New("simcluster: mode direct needs a worker in each request, and a workload has none: choose another mode"))
	}
	errs = append(errs, c.Pool.validate())
	return errors.Join(errs...)
}

const (
	// maxMembers bounds what routers know of workers, 1 kB each: 2 GB.
	maxMembers = 1 << 21
	// maxDelay bounds what takes a constant time, so that sums of it stay far from the end
	// of the virtual clock.
	maxDelay = 24 * time.Hour
)

// Run serves all requests of source and tells record of each one that is over and
// of each pause between two tokens. The same configuration and source give the
// same calls in the same order on every machine. It ends early with ctx's error, or
// with that of the source.
func Run(ctx context.Context, cfg Config, source replay.Source, record Recorder) error {
	c, err := newCluster(cfg, source, record)
	if err != nil {
		return err
	}
	for n := 0; !c.finished(); n++ {
		if n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if err := c.step(); err != nil {
			return err
		}
	}
	return nil
}

// Recorder takes what is measured. *replay.Recorder is one.
type Recorder interface {
	// Sample tells of a request that is over. Samples come in order of Done.
	Sample(s *replay.Sample)
	// Gap tells of the time between two tokens of a request, n times.
	Gap(between time.Duration, n int)
}
