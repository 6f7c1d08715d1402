//go:build !linux

package sim

import "context"

// newPreciseSleeper returns nil: the timers of the runtime are the best available.
func newPreciseSleeper(context.Context) sleeper { return nil }
