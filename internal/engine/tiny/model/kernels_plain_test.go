//go:build !(goexperiment.simd && amd64)

package model

// kernels lists the kernels that this machine can run.
func kernels() []kernel { return []kernel{portableKernel{}} }
