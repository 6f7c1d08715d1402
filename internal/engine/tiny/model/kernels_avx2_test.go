//go:build goexperiment.simd && amd64

package model

import "simd/archsimd"

// kernels lists the kernels that this machine can run.
func kernels() []kernel {
	if archsimd.X86.AVX2() && archsimd.X86.FMA() {
		return []kernel{portableKernel{}, avx2Kernel{}}
	}
	return []kernel{portableKernel{}}
}
