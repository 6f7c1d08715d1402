//go:build !(goexperiment.simd && amd64)

package model

// kernels lists those that this machine can run.
func kernels() []kernel { return []kernel{portable{}} }
