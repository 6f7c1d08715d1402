//go:build !linux

package load

import "time"

// sharpenSleep does nothing.
func sharpenSleep() {}

func sleepPrecisely(d time.Duration) { time.Sleep(d) } // until a request is due; Linux has a more precise one
