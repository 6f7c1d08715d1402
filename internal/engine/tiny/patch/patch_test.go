package patch

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"penstock/core/splitmix"
)

// noise returns n bytes that depend on seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(splitmix.Mix(seed + uint64(i)*splitmix.Step))
	}
	return b
}

var same = Colours{Deviation: [3]float64{1. / 255, 1. / 255, 1. / 255}} // leaves bytes unchanged

// TestOrder stores every element in the order of Qwen2-VL's processors: a reshape to [T, temporal, C, H/m, m,
// p, W/m, m, p] and a transposition.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		frames int
		grid   [3]int
		s      Shape
	}{
		{1, [3]int{1, 4, 6}, Shape{Size: 3, Merge: 2, Temporal: 2}},
		{5, [3]int{3, 2, 4}, Shape{Size: 2, Merge: 2, Temporal: 2}},
		{4, [3]int{2, 3, 6}, Shape{Size: 2, Merge: 3, Temporal: 3}},
		{2, [3]int{2, 1, 2}, Shape{Size: 5, Merge: 1, Temporal: 1}},
	} {
		h, w := c.grid[1]*c.s.Size, c.grid[2]*c.s.Size
		rgb := noise(uint64(c.frames), c.frames*h*w*3)
		got, err := CutPatches(rgb, [4]int{c.frames, h, w, 3}, c.grid, c.s, same)
		if err != nil {
			t.Fatal(err)
		}
		var want []float32
		m, p := c.s.Merge, c.s.Size
		for time := range c.grid[0] {
			for bh := range c.grid[1] / m {
				for bw := range c.grid[2] / m {
					for mh := range m {
						for mw := range m {
							for colour := range 3 {
								for f := range c.s.Temporal {
									for y := range p {
										for x := range p {
											frame := min(time*c.s.Temporal+f, c.frames-1)
											row, col := (bh*m+mh)*p+y, (bw*m+mw)*p+x
											want = append(want, float32(rgb[((frame*h+row)*w+col)*3+colour]))
										}
									}
								}
							}
						}
					}
				}
			}
		}
		for i := range got {
			got[i] = float32(math.Round(float64(got[i])))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: another order", c)
		}
	}
}

// naiveResize is the definition: each element is the mean of its neighbours, weighted by the kernel, in
// float64, first along rows and then along columns.
func naiveResize(rgb []byte, h, w, height, width int) []byte {
	along := func(at func(i int) float64, size, n, i int) byte {
		grown := max(1, float64(size)/float64(n))
		center := (float64(i) + 0.5) * float64(size) / float64(n)
		var sum, weights float64
		for j := range size {
			weight := cubicKernel((float64(j) + 0.5 - center) / grown)
			sum, weights = sum+weight*at(j), weights+weight
		}
		return byte(max(0, min(255, math.Floor(sum/weights+0.5))))
	}
	rows := make([]byte, h*width*3)
	for i := range rows {
		y, x, c := i/3/width, i/3%width, i%3
		rows[i] = along(func(j int) float64 { return float64(rgb[(y*w+j)*3+c]) }, w, width, x)
	}
	out := make([]byte, height*width*3)
	for i := range out {
		y, x, c := i/3/width, i/3%width, i%3
		out[i] = along(func(j int) float64 { return float64(rows[(j*width+x)*3+c]) }, h, height, y)
	}
	return out
}

func TestResize(t *testing.T) {
	for _, c := range [][4]int{{5, 7, 10, 14}, {40, 60, 28, 28}, {100, 3, 28, 28}, {1, 1, 28, 56}, {28, 300, 28, 28}, {30, 28, 28, 28}, {28, 28, 28, 28}} {
		rgb := noise(uint64(c[0]), c[0]*c[1]*3)
		got, want := resizeImage(rgb, c[0], c[1], c[2], c[3]), naiveResize(rgb, c[0], c[1], c[2], c[3])
		off := 0
		for i := range want {
			switch d := int(got[i]) - int(want[i]); {
			case d > 1 || d < -1:
				t.Fatalf("%v: element %d is %d, want %d", c, i, got[i], want[i])
			case d != 0:
				off++
			}
		}
		if len(got) != len(want) || off > len(want)/100 {
			t.Errorf("%v: %d of %d elements are off by 1", c, off, len(want))
		}
	}
	flat := bytes.Repeat([]byte{200}, 31*17*3)
	if got := resizeImage(flat, 31, 17, 56, 28); bytes.Count(got, []byte{200}) != len(got) {
		t.Error("a flat picture is not flat any more")
	}
}

func TestColours(t *testing.T) {
	c := Colours{Mean: [3]float64{0.5, 0, 0.25}, Deviation: [3]float64{0.5, 1, 2}}
	got, err := CutPatches([]byte{0, 51, 255}, [4]int{1, 1, 1, 3}, [3]int{1, 1, 1}, Shape{Size: 1, Merge: 1, Temporal: 1}, c)
	if want := []float32{-1, 0.2, 0.375}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
}

func TestCutRefuses(t *testing.T) {
	good := Shape{Size: 2, Merge: 2, Temporal: 2}
	for name, c := range map[string]struct {
		n     int
		shape [4]int
		grid  [3]int
		s     Shape
	}{
		"bytes":    {11, [4]int{1, 2, 2, 3}, [3]int{1, 2, 2}, good},
		"channels": {16, [4]int{1, 2, 2, 4}, [3]int{1, 2, 2}, good},
		"nothing":  {0, [4]int{1, 0, 2, 3}, [3]int{1, 2, 2}, good},
		"odd grid": {12, [4]int{1, 2, 2, 3}, [3]int{1, 3, 2}, good},
		"time":     {12, [4]int{1, 2, 2, 3}, [3]int{2, 2, 2}, good},
		"no grid":  {12, [4]int{1, 2, 2, 3}, [3]int{1, 0, 2}, good},
		"shape":    {12, [4]int{1, 2, 2, 3}, [3]int{1, 2, 2}, Shape{}},
	} {
		if _, err := CutPatches(make([]byte, c.n), c.shape, c.grid, c.s, same); err == nil {
			t.Errorf("%s: cut", name)
		}
	}
}

func BenchmarkCut(b *testing.B) {
	rgb := noise(1, 1080*1920*3)
	s := Shape{Size: 14, Merge: 2, Temporal: 2}
	b.Run("1920x1080 to 252x448", func(b *testing.B) {
		for b.Loop() {
			if _, err := CutPatches(rgb, [4]int{1, 1080, 1920, 3}, [3]int{1, 18, 32}, s, same); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("224x224 as it is", func(b *testing.B) {
		for b.Loop() {
			if _, err := CutPatches(rgb[:224*224*3], [4]int{1, 224, 224, 3}, [3]int{1, 16, 16}, s, same); err != nil {
				b.Fatal(err)
			}
		}
	})
}
