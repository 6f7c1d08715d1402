package router

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/feed"
	"penstock/core/health"
	"penstock/core/prefix"
	"penstock/core/residency"
	"penstock/core/route"
	"penstock/core/route/queue"
)

// Config is the policy and the bounds of a router.
type Config struct {
	// Namespace is that of the workers to route to, and of their topics.
	Namespace string
	// Component is that of the workers to route to, and of the stream of their events.
	Component string
	// Route decides, Index, Feed and Residency bound what is known of caches and of pools
	// of memory that workers share, Health says when a worker counts as not answering.
	Route route.Config
	// Queue is about the requests that wait for a worker, as Route.QueueThreshold says.
	Queue     queue.Config
	Index     prefix.Config
	Feed      feed.Config
	Residency residency.Config
	Health    health.Config
	// NoKVEvents has the router follow no cache events: it predicts what is cached from
	// what it sent, for two minutes, corrected by what workers report.
	NoKVEvents bool
	// PredictedTTL is for how long a router that follows events predicts so too, until
	// they say what became of it; negative is not at all.
	PredictedTTL time.Duration
	// BlockSize, if not 0, is the block size that every worker must have; a
	// worker with another one gets no requests. 0 takes it from the model cards.
	BlockSize int
	// ReservationTTL is how long a request counts as active without [Router.Renew].
	ReservationTTL time.Duration
	// Sync says that the routers of the component tell each other what they have sent to
	// its workers, so that each counts the requests of all.
	Sync bool
	// TrackOutput says that the blocks of answers count as they are generated.
	TrackOutput bool
	// Grace is how long entries of a worker are kept that discovery does not
	// know (yet: its events may come first).
	Grace time.Duration
	// Decisions is how many requests' decisions are remembered.
	Decisions int
	// Snapshots says when what is known of caches is written to the archive.
	Snapshots Snapshots
	// MaxBodyBytes bounds the body of an API call, MaxCalls how many of those with a
	// body are in progress; one more is refused as Overloaded.
	MaxBodyBytes int64
	MaxCalls     int
}

// Snapshots is the policy of what a router leaves in the archive.
type Snapshots struct {
	// Threshold is after how many messages of the event stream a snapshot is due;
	// 0 writes none, and restores those that others have written.
	Threshold uint64
	// Interval is after what time one is due when any message has come.
	Interval time.Duration
	// Look is how often it is asked whether a snapshot is due.
	Look time.Duration
	// Reset says what becomes of what earlier routers have left.
	Reset Reset
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.Namespace == "" {
		c.Namespace = "penstock"
	}
	if c.Component == "" {
		c.Component = "backend"
	}
	c.Route.EnsureDefaults()
	c.Queue.EnsureDefaults()
	c.Index.EnsureDefaults()
	c.Feed.EnsureDefaults()
	c.Residency.EnsureDefaults()
	c.Health.EnsureDefaults()
	if c.PredictedTTL == 0 {
		c.PredictedTTL = 2 * time.Second
	}
	if c.ReservationTTL == 0 {
		c.ReservationTTL = 10 * time.Minute
	}
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.Decisions == 0 {
		c.Decisions = 1024
	}
	if c.Snapshots.Interval == 0 {
		c.Snapshots.Interval = 3 * time.Minute
	}
	if c.Snapshots.Look == 0 {
		c.Snapshots.Look = 5 * time.Second
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 32 << 20
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 256
	}
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
	if c.PredictedTTL > 0 && c.PredictedTTL < time.Millisecond {
		errs = append(errs, fmt.Errorf("router: what is predicted must hold for at least 1ms, not %v", c.PredictedTTL))
	}
	if c.Decisions < 1 {
		errs = append(errs, fmt.Errorf("router: at least 1 decision must be remembered, not %d", c.Decisions))
	}
	if c.Snapshots.Interval < 0 || c.Snapshots.Look < 0 {
		errs = append(errs, errors.New("router: the times between snapshots and between looks must be positive"))
	}
	if r := c.Snapshots.Reset; r != Keep && r != Alone && r != Force {
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
