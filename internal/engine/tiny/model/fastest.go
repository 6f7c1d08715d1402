//go:build !(goexperiment.simd && amd64)

package model

// fastest returns the kernel that New uses on this machine.
func fastest() kernel { return portable{} }
