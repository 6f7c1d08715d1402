package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"

	"penstock/internal/engine"
	"penstock/internal/zmtp"
)

// Config is one worker's identity and limits.
type Config struct {
	// ID and Epoch are the worker's id and the epoch of this run: the caller chooses them, and a worker
	// that restarts under the same ID has a higher Epoch.
	ID    kv.WorkerID
	Epoch uint64
	// Namespace, Component and Endpoint place the worker in discovery. Namespace also selects its
	// topics on the bus.
	Namespace, Component, Endpoint string
	// Role is set on the model's card. A worker of a role that takes no requests refuses them as Unimplemented.
	Role engine.Role
	// ToolParser and ReasoningParser are set on the model's card; "" sets nothing.
	ToolParser, ReasoningParser string
	// Aliases replace the engine's on the card; nil keeps the engine's.
	Aliases []string
	// MediaDecoder replaces the engine's on the cards of models with media; nil keeps the engine's.
	MediaDecoder *engine.MediaDecoder
	// KeepFeatures prevents the engine from sending the media features that its processor made, and
	// from taking features of others.
	KeepFeatures bool
	// Experts replace the engine's on the card; nil keeps the engine's.
	Experts []engine.HostedExperts
	// Embeddings is the engine's embedding cache, whose events are published; nil if it has none.
	Embeddings engine.EmbeddingSource
	// Region is set on the model's card as that of Embeddings; "" is none.
	Region string
	// Holder gives other workers rows of media which the engine's embedding cache has, unless the engine encodes for
	// them; nil gives none.
	Holder engine.RowHolder
	// EmbeddingEvents is the endpoint at which they are published over ZeroMQ too, for subscribers inside engines; the
	// port after it repeats them. The zero endpoint is none.
	EmbeddingEvents zmtp.Endpoint
	// EventsOnDemand publishes KV events only while a router may want them. All routers of the event
	// plane must be in discovery, also if of earlier builds.
	EventsOnDemand bool
	// Addr is where to serve on the request plane; "" lets the plane choose.
	Addr string
	// Host and PID are shown to operators.
	Host string
	PID  int
	// Name is the worker's name for operators; "" is Host.
	Name string
	// MaxCalls bounds the calls served at once; one more is refused as Overloaded.
	MaxCalls int
	// DrainTimeout is how long running calls may continue after Run's context has ended; then they end
	// as Draining, so that another worker continues them. Negative is no time.
	DrainTimeout time.Duration
	// Linger is how long a worker without calls still runs after it has left discovery: callers which
	// have not seen that yet get Draining instead of a connection error. 0 is no time.
	Linger time.Duration
	// CanaryInterval is how long an idle engine may be silent before it is asked for a token, to check
	// that it works. Default 10 s; 0 turns this off.
	CanaryInterval *time.Duration
	// StallAfter is how long an engine with calls in progress, which is not known to be unreachable,
	// may produce nothing and show no work before it counts as not answering. It must exceed the
	// longest step of a busy engine.
	StallAfter time.Duration
	// StallTimeout is how long a stream may have no token while the engine produces others. 0 learns it
	// from the traffic. Negative monitors neither streams nor the engine, for an engine which does that
	// itself.
	StallTimeout time.Duration
	// OpenExchange, if not nil, opens the exchange of KV blocks with other workers, once the worker serves at addr and
	// before it registers. A nil Exchange is none.
	OpenExchange func(ctx context.Context, addr string, o ExchangeObserver) (*Exchange, error)
	// Check, if not nil, is called once the engine runs, before the worker registers. Its error ends
	// the worker: the engine is not the expected one.
	Check func(ctx context.Context) error
	// ReadyLevel is the log level of the worker's ready message; the default is Info. With many workers
	// in one process a lower one avoids noise.
	ReadyLevel slog.Level
	// LoadInterval is how often the load is read, and published if it changed. LoadRefresh is how often
	// it is published anyway.
	LoadInterval, LoadRefresh time.Duration
	// PositionInterval is how often the number of the next event is published at EmbeddingEvents.
	PositionInterval time.Duration
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	c.Namespace = cmp.Or(c.Namespace, "penstock")
	c.Component = cmp.Or(c.Component, "backend")
	c.Endpoint = cmp.Or(c.Endpoint, "generate")
	c.MaxCalls = cmp.Or(c.MaxCalls, 1024)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.CanaryInterval = cmp.Or(c.CanaryInterval, new(10*time.Second))
	c.StallAfter = cmp.Or(c.StallAfter, time.Minute)
	c.LoadInterval = cmp.Or(c.LoadInterval, 250*time.Millisecond)
	c.LoadRefresh = cmp.Or(c.LoadRefresh, 5*time.Second)
	c.PositionInterval = cmp.Or(c.PositionInterval, 5*time.Second)
}

// Validate reports every problem of c.
func (c *Config) Validate() error {
	var errs []error
	if c.ID == 0 || c.ID > kv.MaxWorkerID {
		errs = append(errs, fault.New(fault.Invalid, "worker: the id must be between 1 and %d, not %d", kv.MaxWorkerID, c.ID))
	}
	if c.Epoch == 0 {
		errs = append(errs, fault.New(fault.Invalid, "worker: the epoch must not be 0"))
	}
	if c.MaxCalls < 1 {
		errs = append(errs, fault.New(fault.Invalid, "worker: max calls must be at least 1, not %d", c.MaxCalls))
	}
	if c.LoadInterval < 0 || c.LoadRefresh < 0 || c.PositionInterval < 0 {
		errs = append(errs, fault.New(fault.Invalid, "worker: the intervals of the load and of the position must be positive"))
	}
	if c.Linger < 0 || c.StallAfter < 0 {
		errs = append(errs, fault.New(fault.Invalid, "worker: Linger and StallAfter must not be negative"))
	}
	return errors.Join(errs...)
}
