//go:build !(goexperiment.simd && amd64)

package node

// simd says whether the CPU engine was built with vector kernels.
const simd = false
