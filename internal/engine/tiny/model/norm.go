package model

import "math"

// rmsNorm writes x · weight / rms(x) into dst, where rms is the root of the mean
// square plus eps. The squares are summed in order, as float64.
func rmsNorm(dst, x, weight []float32, eps float64) {
	var sum float64
	for _, v := range x {
		sum += float64(float64(v) * float64(v))
	}
	scale := float32(1 / math.Sqrt(sum/float64(len(x))+eps))
	dst, weight = dst[:len(x)], weight[:len(x)]
	for i, v := range x {
		dst[i] = weight[i] * float32(v*scale)
	}
}
