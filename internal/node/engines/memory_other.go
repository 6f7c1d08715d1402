//go:build !linux && !darwin

package engines

// MemoryLimit is unknown on this system: an allocation that is too large ends the process.
func MemoryLimit() uint64 { return 0 }
