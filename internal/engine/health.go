package engine

import (
	"context"
	"time"
)

// HealthSource is an engine that reports its own health. The requests of its callers are no evidence: a
// request that starts or finishes does not by itself change the report.
type HealthSource interface {
	HealthReport() HealthReport
}

// HealthWatcher is a HealthSource that reports changes of HealthReport.Live.
type HealthWatcher interface {
	HealthSource
	// WatchHealth calls changed after each change of HealthReport().Live, until ctx ends. changed must not
	// block.
	WatchHealth(ctx context.Context, changed func())
}

// Liveness says whether an engine can be reached.
type Liveness uint8

// The values of Liveness.
const (
	Up      Liveness = iota
	Suspect          // an answer broke off, and the engine has not been probed since
	Down             // it does not answer
)

// HealthReport is an engine's account of its health.
type HealthReport struct {
	Live Liveness
	// Progress changes whenever the engine itself reports progress: it computed something, or its queue
	// moved.
	Progress uint64
	// Remote says that the engine is another process, reached over a network. Then LastHeard is when anything
	// was last received from it, and ProbedSince since when a probe that it should answer at once is
	// unanswered, zero if none is out.
	Remote                 bool
	LastHeard, ProbedSince time.Time
	// HasCounts says that the engine reports how many requests are Running and Waiting, and how many it
	// Preempted so far. CountsPartial says that a request whose prompt is computed may be in neither.
	HasCounts, CountsPartial bool
	Running, Waiting         int
	Preempted                uint64
}
