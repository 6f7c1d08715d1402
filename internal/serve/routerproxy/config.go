package routerproxy

import (
	"errors"
	"fmt"
	"time"
)

// Config says for which workers a proxy stands, and its limits for a request. Zero fields take the
// defaults of EnsureDefaults.
type Config struct {
	// Namespace and Component select the workers.
	Namespace, Component string
	// MigrationLimit is how many workers may fail under a request beyond the first. Workers which drain
	// do not count. Default 3; negative allows none.
	MigrationLimit int
	// MigrationWait is how long a request that lost its worker waits for another one while there is
	// none. Default 8 s: less than callers wait for a worker, so that the request is not lost twice.
	MigrationWait time.Duration
	// FirstWait is how long a request that had no worker yet waits when no worker answers. The proxy
	// serves a model only while workers are registered, so this is short, or lasts until discovery
	// removes dead workers. Default 1 s.
	FirstWait time.Duration
	// StallTimeout is how long a worker may send nothing before the request moves to another. Default 4
	// minutes: less than callers wait for this proxy.
	StallTimeout time.Duration
	// PreprocessTimeout is how long a worker may take to make a prompt before another is asked. Default
	// 10 s.
	PreprocessTimeout time.Duration
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.Namespace == "" {
		c.Namespace = "penstock"
	}
	if c.Component == "" {
		c.Component = "backend"
	}
	if c.MigrationLimit == 0 {
		c.MigrationLimit = 3
	}
	if c.MigrationWait == 0 {
		c.MigrationWait = 8 * time.Second
	}
	if c.FirstWait == 0 {
		c.FirstWait = time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 4 * time.Minute
	}
	if c.PreprocessTimeout == 0 {
		c.PreprocessTimeout = 10 * time.Second
	}
}

// Validate reports every problem of c.
func (c *Config) Validate() error {
	var errs []error
	for _, f := range [...]struct {
		name string
		v    time.Duration
	}{{"MigrationWait", c.MigrationWait}, {"FirstWait", c.FirstWait}, {"StallTimeout", c.StallTimeout}, {"PreprocessTimeout", c.PreprocessTimeout}} {
		if f.v <= 0 {
			errs = append(errs, fmt.Errorf("relay config: %s must be positive, not %v", f.name, f.v))
		}
	}
	return errors.Join(errs...)
}
