package engine

import (
	"context"
	"time"
)

// SignSource is an engine that shows by itself whether it works. What its users do to it is no sign: a request that
// comes or goes changes nothing of what it says here.
type SignSource interface {
	Signs() Signs
}

// SignWatcher is a SignSource that can tell when Signs.Live changes.
type SignWatcher interface {
	SignSource
	// WatchSigns calls changed after each change of Signs().Live, until ctx ends. changed must not block.
	WatchSigns(ctx context.Context, changed func())
}

// Liveness is what is known of whether an engine can be reached.
type Liveness uint8

// What is known.
const (
	Up    Liveness = iota
	Doubt          // an answer broke off, and the engine has not been asked since
	Down           // it does not answer
)

// Signs is what an engine shows.
type Signs struct {
	Live Liveness
	// Work changes whenever the engine's own account does: it computed something, or its queue moved.
	Work uint64
	// Remote says that the engine is another process, asked over a network; then Heard is when anything was last heard of
	// it, and Asked since when a question to it that is answered at once has had no answer, zero if none is out.
	Remote       bool
	Heard, Asked time.Time
	// Tells says that the engine tells how many requests it has Running and Waiting, and how many it Preempted so far.
	// Partial says that a request whose prompt is computed may be in neither.
	Tells, Partial   bool
	Running, Waiting int
	Preempted        uint64
}
