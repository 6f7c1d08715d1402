//go:build !linux

package xfer

// yieldProcessor does nothing on this system, which has no transport that polls.
func yieldProcessor() {}
