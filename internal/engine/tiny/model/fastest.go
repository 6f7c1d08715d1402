//go:build !(goexperiment.simd && amd64)

package model

// fastestKernel returns the kernel that New uses on this machine.
func fastestKernel() kernel { return portableKernel{} }
