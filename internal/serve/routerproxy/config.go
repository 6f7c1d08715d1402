package routerproxy

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Config has the limits of a proxy for a request. Zero fields take the
// defaults of EnsureDefaults.
type Config struct {
	// MigrationLimit is how many workers may fail under a request beyond the first. Workers which drain
	// do not count. Default 3.
	MigrationLimit *int
	// MigrationWait is how long a request that lost its worker waits for another one while there is
	// none. Default 8 s: less than callers wait for a worker, so that the request is not lost twice.
	MigrationWait *time.Duration
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
	c.MigrationLimit = cmp.Or(c.MigrationLimit, new(3))
	c.MigrationWait = cmp.Or(c.MigrationWait, new(8*time.Second))
	c.FirstWait = cmp.Or(c.FirstWait, time.Second)
	c.StallTimeout = cmp.Or(c.StallTimeout, 4*time.Minute)
	c.PreprocessTimeout = cmp.Or(c.PreprocessTimeout, 10*time.Second)
}

// Validate reports every problem of c.
func (c *Config) Validate() error {
	var errs []error
	for _, f := range [...]struct {
		name string
		v    time.Duration
	}{{"FirstWait", c.FirstWait}, {"StallTimeout", c.StallTimeout}, {"PreprocessTimeout", c.PreprocessTimeout}} {
		if f.v <= 0 {
			errs = append(errs, fmt.Errorf("router proxy config: %s must be positive, not %v", f.name, f.v))
		}
	}
	return errors.Join(errs...)
}
