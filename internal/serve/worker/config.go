package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"penstock/core/kv"

	"penstock/internal/engine"
)

// Config is one worker's identity and limits.
type Config struct {
	// ID and Epoch are this worker's and this life's: the caller draws them, and
	// a worker that restarts under the same ID has a higher Epoch.
	ID    kv.WorkerID
	Epoch uint64
	// Namespace, Component and Endpoint place the worker in discovery, and the
	// namespace its topics on the bus.
	Namespace, Component, Endpoint string
	// ToolParser and ReasoningParser are put on the model's card; "" is not said.
	ToolParser, ReasoningParser string
	// Aliases are put there in place of the engine's; nil is what the engine says.
	Aliases []string
	// MediaDecoder is put there too, of models that see; nil is what the engine says.
	MediaDecoder *engine.MediaDecoder
	// KeepFeatures has the engine neither hand over what its processor makes of media nor take what others made.
	KeepFeatures bool
	// Experts are put there too; nil is what the engine says.
	Experts []engine.HostedExperts
	// Addr is where to serve on the request plane; "" lets the plane choose.
	Addr string
	// Host and PID are shown to operators.
	Host string
	PID  int
	// Name is what people call the worker; "" is Host.
	Name string
	// MaxCalls bounds the calls served at once; one more is refused as
	// Overloaded.
	MaxCalls int
	// DrainTimeout is how long running calls may go on once Run's context has
	// ended; then they end as Draining, so that another worker takes over.
	// Negative means not at all.
	DrainTimeout time.Duration
	// Linger is how long a worker without calls stays after it has left discovery:
	// those who have not heard of it yet are told Draining, instead of finding
	// nobody. 0 is not at all.
	Linger time.Duration
	// CanaryInterval is how long an idle engine may be silent before it is asked
	// for a token, to see whether it works. Negative means that it never is.
	CanaryInterval time.Duration
	// StallAfter is how long an engine with calls in progress, which is not known to be out of reach, may produce
	// nothing and show no work before it counts as one that does not answer. It must exceed the longest step
	// of a busy engine.
	StallAfter time.Duration
	// StallTimeout is how long a stream may have no token while the engine produces others; 0 learns it, and
	// negative watches neither streams nor engine, for an engine which does that itself.
	StallTimeout time.Duration
	// Check, if not nil, is asked once the engine runs, before the worker registers. An
	// error of its ends the worker: the engine is not what it should be.
	Check func(ctx context.Context) error
	// ReadyLevel is the level at which the log says that the worker is ready; the
	// default is Info. Of many in one process none is news.
	ReadyLevel slog.Level
	// LoadInterval is how often the load is looked at and published if it
	// changed, LoadRefresh how often it is published anyway.
	LoadInterval, LoadRefresh time.Duration
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.Namespace == "" {
		c.Namespace = "penstock"
	}
	if c.Component == "" {
		c.Component = "backend"
	}
	if c.Endpoint == "" {
		c.Endpoint = "generate"
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 1024
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 30 * time.Second
	}
	if c.CanaryInterval == 0 {
		c.CanaryInterval = 10 * time.Second
	}
	if c.StallAfter == 0 {
		c.StallAfter = time.Minute
	}
	if c.LoadInterval == 0 {
		c.LoadInterval = 250 * time.Millisecond
	}
	if c.LoadRefresh == 0 {
		c.LoadRefresh = 5 * time.Second
	}
}

// Validate reports every problem of c.
func (c *Config) Validate() error {
	var errs []error
	if c.ID == 0 || c.ID > kv.MaxWorkerID {
		errs = append(errs, fmt.Errorf("worker: the id must be between 1 and %d, not %d", kv.MaxWorkerID, c.ID))
	}
	if c.Epoch == 0 {
		errs = append(errs, errors.New("worker: the epoch must not be 0"))
	}
	if c.MaxCalls < 1 {
		errs = append(errs, fmt.Errorf("worker: max calls must be at least 1, not %d", c.MaxCalls))
	}
	if c.LoadInterval < 0 || c.LoadRefresh < 0 {
		errs = append(errs, errors.New("worker: the load intervals must be positive"))
	}
	if c.Linger < 0 || c.StallAfter < 0 {
		errs = append(errs, errors.New("worker: Linger and StallAfter must not be negative"))
	}
	return errors.Join(errs...)
}
