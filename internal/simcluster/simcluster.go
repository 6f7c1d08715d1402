// Package simcluster is a whole cluster in one goroutine on virtual time: the
// machines of production (feed, prefix, slots, route, paged), the simulated
// engine's model of time, and planes that delay, lose and repeat by a seed.
package simcluster

import (
	"context"
	"time"

	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// Config is a cluster and how it is run.
type Config struct {
	Workers int
	// BlockSize is in tokens; Blocks are those of one worker.
	BlockSize, Blocks int
	MaxSeqs           int
	TokenBudget       int
	MaxWaiting        int
	Timing            sim.Timing
	Route             route.Config
	// EventDelay is how long a cache event takes from worker to router.
	EventDelay time.Duration
	Seed       uint64
}

// Run serves all requests of source and tells record of each one that is over and
// of each pause between two tokens. The same configuration and source give the
// same calls in the same order on every machine. It ends early with ctx's error.
func Run(ctx context.Context, cfg Config, source replay.Source, record Recorder) error {
	panic("not built yet")
}

// Recorder takes what is measured. *replay.Recorder is one.
type Recorder interface {
	// Sample tells of a request that is over. Samples come in order of Done.
	Sample(s *replay.Sample)
	// Gap tells of the time between two tokens of a request, n times.
	Gap(between time.Duration, n int)
}
