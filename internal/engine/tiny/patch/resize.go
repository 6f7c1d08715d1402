package patch

import "math"

// resizeImage returns an RGB picture in another size: bicubic with the kernel's width scaled by the
// reduction, first along rows, then along columns, in fixed point and rounded to bytes after each, as PIL
// does.
func resizeImage(rgb []byte, h, w, height, width int) []byte {
	if w != width {
		t := resizeTaps(w, width)
		out := make([]byte, h*width*3)
		for y := range h {
			row, to := rgb[y*w*3:][:w*3], out[y*width*3:][:width*3]
			for x := range t {
				k := &t[x]
				var sum [3]int
				from := row[3*k.first:]
				for i, weight := range k.weights {
					for c := range sum {
						sum[c] += int(from[3*i+c]) * weight
					}
				}
				for c := range sum {
					to[3*x+c] = roundFixed(sum[c])
				}
			}
		}
		rgb, w = out, width
	}
	if h == height {
		return rgb
	}
	out := make([]byte, height*w*3)
	sums := make([]int, w*3)
	for y, k := range resizeTaps(h, height) {
		clear(sums)
		for i, weight := range k.weights {
			for x, v := range rgb[(k.first+i)*w*3:][:w*3] {
				sums[x] += int(v) * weight
			}
		}
		for x, sum := range sums {
			out[y*w*3+x] = roundFixed(sum)
		}
	}
	return out
}

// precision is how many fractional bits a weight has.
const precision = 22

func roundFixed(sum int) byte {
	return byte(max(0, min(255, (sum+1<<(precision-1))>>precision)))
}

// resizeTap is the weighted inputs of one output element.
type resizeTap struct {
	first   int
	weights []int
}

// resizeTaps returns the inputs of each of n elements, out of size.
func resizeTaps(size, n int) []resizeTap {
	const support = 2 // of the kernel, in each direction
	scale := float64(size) / float64(n)
	grown := max(scale, 1)
	reach := float64(support * grown)
	all := make([]resizeTap, n)
	var weights []float64
	for i := range all {
		center := float64((float64(i) + 0.5) * scale)
		first := max(0, int(center-reach+0.5))
		end := min(size, int(center+reach+0.5))
		weights = weights[:0]
		var sum float64
		for j := first; j < end; j++ {
			weight := cubicKernel((float64(j) - center + 0.5) / grown)
			weights = append(weights, weight)
			sum += weight
		}
		all[i] = resizeTap{first: first, weights: make([]int, len(weights))}
		for j, weight := range weights {
			all[i].weights[j] = int(math.Round(weight / sum * (1 << precision)))
		}
	}
	return all
}

// cubicKernel is the kernel of Keys with a = -1/2.
func cubicKernel(x float64) float64 {
	const a = -0.5
	x = math.Abs(x)
	switch {
	case x < 1:
		p := float64((a+2)*x) - (a + 3)
		return float64(float64(p*x)*x) + 1
	case x < 2:
		p := float64((x-5)*x) + 8
		return (float64(p*x) - 4) * a
	}
	return 0
}
