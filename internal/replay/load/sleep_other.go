//go:build !linux

package load

import "time"

// sharpen has nothing to do.
func sharpen() {}

func sleep(d time.Duration) { time.Sleep(d) } // until a request is due; Linux has a finer way
