package router

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"penstock/core/disagg"
	"penstock/core/health"
	"penstock/core/kvfeed"
	"penstock/core/poolindex"
	"penstock/core/prefix"
	"penstock/core/route"
	"penstock/core/route/queue"
)

// Config is the policy and the bounds of a router.
type Config struct {
	// Namespace is the namespace of the workers to route to, and of their topics.
	Namespace string
	// Component is the component of the workers to route to, and of their event stream.
	Component string
	// Route configures decisions. Index, Feed and Residency bound the index, the feeds and the index of
	// shared pools. Health says when a worker counts as not answering.
	Route route.Config
	// Split is what decode workers are asked for about where prompts are computed; what is unset is theirs.
	Split disagg.SplitSettings
	// Queue configures the queue of waiting requests; Route.QueueThreshold says when requests wait.
	Queue     queue.Config
	Index     prefix.Config
	Feed      kvfeed.Config
	Residency poolindex.Config
	Health    health.Config
	// NoKVEvents turns cache events off: the router predicts what is cached from what it sent, for two
	// minutes, corrected by the cached tokens that workers report.
	NoKVEvents bool
	// PredictedTTL is how long a router that follows events predicts the cache contents of a request it
	// sent, until until events confirm or refute them. Default 2 s; 0 predicts nothing.
	PredictedTTL *time.Duration
	// BlockSize, if not 0, is the block size that every worker must have; a worker with another one
	// gets no requests. 0 takes it from the model cards.
	BlockSize int
	// ReservationTTL is how long a request counts as active without [Router.RenewReservation].
	ReservationTTL time.Duration
	// Sync makes the routers of the component tell each other which requests they have sent to its
	// workers, so that each counts the requests of all.
	Sync bool
	// TrackOutput counts the blocks of answers as they are generated.
	TrackOutput bool
	// Grace is how long the entries of a worker are kept that discovery does not list; its events may
	// arrive before its registration.
	Grace time.Duration
	// Decisions is the number of requests whose decisions are kept.
	Decisions int
	// Snapshots says when the cache state is written to the archive.
	Snapshots SnapshotPolicy
	// MaxBodyBytes bounds the body of an API call. MaxCalls bounds the calls with a body in progress;
	// one more is refused as Overloaded.
	MaxBodyBytes int64
	MaxCalls     int
}

// SnapshotPolicy says when a router writes snapshots, and what it does with existing ones.
type SnapshotPolicy struct {
	// Threshold is the number of messages of the event stream after which a snapshot is due; 0 writes
	// none and only restores the snapshots of other routers.
	Threshold uint64
	// Interval is the time after which a snapshot is due if any message has arrived.
	Interval time.Duration
	// Look is how often the router checks whether a snapshot is due.
	Look time.Duration
	// Reset says what happens to the states of earlier routers at the start.
	Reset ResetMode
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	c.Namespace = cmp.Or(c.Namespace, "penstock")
	c.Component = cmp.Or(c.Component, "backend")
	c.Route.EnsureDefaults()
	c.Queue.EnsureDefaults()
	c.Index.EnsureDefaults()
	c.Feed.EnsureDefaults()
	c.Residency.EnsureDefaults()
	c.Health.EnsureDefaults()
	c.PredictedTTL = cmp.Or(c.PredictedTTL, new(2*time.Second))
	c.ReservationTTL = cmp.Or(c.ReservationTTL, 10*time.Minute)
	c.Grace = cmp.Or(c.Grace, 30*time.Second)
	c.Decisions = cmp.Or(c.Decisions, 1024)
	c.Snapshots.Interval = cmp.Or(c.Snapshots.Interval, 3*time.Minute)
	c.Snapshots.Look = cmp.Or(c.Snapshots.Look, 5*time.Second)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 32<<20)
	c.MaxCalls = cmp.Or(c.MaxCalls, 256)
}

// Validate reports every problem of c. Call EnsureDefaults first.
func (c *Config) Validate() error {
	errs := []error{c.Route.Validate(), c.Queue.Validate(), c.Index.Validate(), c.Feed.Validate(), c.Residency.Validate(), c.Health.Validate()}
	if c.BlockSize != 0 && (c.BlockSize < 2 || c.BlockSize > 65536) {
		errs = append(errs, fmt.Errorf("router: the block size must be between 2 and 65536 tokens, not %d", c.BlockSize))
	}
	if c.ReservationTTL < 0 || c.Grace < 0 {
		errs = append(errs, errors.New("router: reservation ttl and grace must be positive"))
	}
	if ttl := *c.PredictedTTL; ttl != 0 && ttl < time.Millisecond {
		errs = append(errs, fmt.Errorf("router: what is predicted must hold for at least 1ms, not %v", ttl))
	}
	if c.Decisions < 1 {
		errs = append(errs, fmt.Errorf("router: at least 1 decision must be remembered, not %d", c.Decisions))
	}
	if c.Snapshots.Interval < 0 || c.Snapshots.Look < 0 {
		errs = append(errs, errors.New("router: the times between snapshots and between looks must be positive"))
	}
	if r := c.Snapshots.Reset; r != ResetNever && r != ResetIfAlone && r != ResetForce {
		errs = append(errs, fmt.Errorf("router: states cannot be reset in the way %.20q", r))
	}
	if c.MaxBodyBytes < 1 {
		errs = append(errs, fmt.Errorf("router: max body bytes must be positive, not %d", c.MaxBodyBytes))
	}
	if c.MaxCalls < 1 {
		errs = append(errs, fmt.Errorf("router: at least 1 call must be possible, not %d", c.MaxCalls))
	}
	return errors.Join(errs...)
}
