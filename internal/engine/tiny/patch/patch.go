// Package patch converts pictures to the input of a picture encoder: resized, scaled, and cut into patches in
// the order of Qwen2-VL's processors.
//
// The same pictures give the same patches on every machine: resizing uses whole numbers, and the computation
// of their weights is rounded step by step.
package patch

import "fmt"

// Shape is how pictures are cut: patches of Size × Size pixels of Temporal frames, with Merge × Merge
// neighbours in sequence.
type Shape struct{ Size, Merge, Temporal int }

// Colours is how red, green and blue are scaled: (c/255 - Mean) / Deviation.
type Colours struct{ Mean, Deviation [3]float64 }

// CutPatches returns the patches of frames of RGB, [F, H, W, 3]: resized to grid's height and width, in
// patches. grid[0] is the number of patches in time; the last frame is repeated to fill it up, as a single
// picture is. They are [product of grid, 3·Temporal·Size·Size]: frame by frame, within a frame by squares of
// Merge × Merge patches row by row, and each patch by colour, frame, row, column.
func CutPatches(rgb []byte, shape [4]int, grid [3]int, s Shape, c Colours) ([]float32, error) {
	frames, h, w := shape[0], shape[1], shape[2]
	switch {
	case frames < 1 || h < 1 || w < 1 || shape[3] != 3 || len(rgb) != frames*h*w*3:
		return nil, fmt.Errorf("patch cut: %d bytes of the shape %v", len(rgb), shape)
	case s.Size < 1 || s.Merge < 1 || s.Temporal < 1:
		return nil, fmt.Errorf("patch cut: into %+v", s)
	case grid[0] != (frames+s.Temporal-1)/s.Temporal || grid[1] < 1 || grid[2] < 1 || grid[1]%s.Merge != 0 || grid[2]%s.Merge != 0:
		return nil, fmt.Errorf("patch cut: %d frames into a grid of %v, merged by %d", frames, grid, s.Merge)
	}
	scale := c.scaleTable()
	height, width := grid[1]*s.Size, grid[2]*s.Size
	elements := 3 * s.Temporal * s.Size * s.Size
	out := make([]float32, grid[0]*grid[1]*grid[2]*elements)
	for f := range grid[0] * s.Temporal {
		if f >= frames { // same as the frame before, whose patches exist
			copyFrame(out, f, grid, &s)
			continue
		}
		frame := resizeImage(rgb[f*h*w*3:][:h*w*3], h, w, height, width)
		cutFrame(out, frame, f, grid, &s, &scale)
	}
	return out, nil
}

// cutFrame stores one frame in its patches.
func cutFrame(out []float32, frame []byte, f int, grid [3]int, s *Shape, scale *[3][256]float32) {
	plane := s.Size * s.Size
	elements := 3 * s.Temporal * plane
	width := grid[2] * s.Size
	first := f / s.Temporal * grid[1] * grid[2]
	across := grid[2] / s.Merge
	for i := range grid[1] * grid[2] {
		block, within := i/(s.Merge*s.Merge), i%(s.Merge*s.Merge)
		row, col := block/across*s.Merge+within/s.Merge, block%across*s.Merge+within%s.Merge
		patch := out[(first+i)*elements:][:elements]
		for y := range s.Size {
			from := frame[3*((row*s.Size+y)*width+col*s.Size):][:3*s.Size]
			for c := range 3 {
				to := patch[(c*s.Temporal+f%s.Temporal)*plane+y*s.Size:][:s.Size]
				for x := range to {
					to[x] = scale[c][from[3*x+c]]
				}
			}
		}
	}
}

// copyFrame repeats the frame before f in the patches of the same time.
func copyFrame(out []float32, f int, grid [3]int, s *Shape) {
	plane := s.Size * s.Size
	first, n := f/s.Temporal*grid[1]*grid[2], grid[1]*grid[2]
	for i := first; i < first+n; i++ {
		for c := range 3 {
			at := ((i*3+c)*s.Temporal + f%s.Temporal) * plane
			copy(out[at:][:plane], out[at-plane:])
		}
	}
}

// scaleTable returns the scaled value of each byte of each colour.
func (c *Colours) scaleTable() (t [3][256]float32) {
	for i := range t {
		for v := range t[i] {
			t[i][v] = float32((float64(v)/255 - c.Mean[i]) / c.Deviation[i])
		}
	}
	return t
}
