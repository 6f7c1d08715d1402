//go:build !linux

package sim

import "context"

// precise returns nil: there is nothing better than the timers of the runtime.
func precise(context.Context) sleeper { return nil }
