//go:build !linux && !darwin

package node

// memoryLimit is unknown on this system: an allocation that is too large ends the process.
func memoryLimit() uint64 { return 0 }
