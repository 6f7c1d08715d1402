//go:build !linux

package load

import "time"

// sharpen has nothing to do.
func sharpen() {}

func sleep(d time.Duration) { time.Sleep(d) }
