package pixel

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"penstock/core/media"
)

// halvedNaive is HalveObject in memory of its own.
func halvedNaive(kind media.Kind, t media.Tensor) (out media.Tensor) {
	frames, h, w := 1, t.Shape[len(t.Shape)-3], t.Shape[len(t.Shape)-2]
	if kind == media.Video {
		frames = t.Shape[0]
	}
	at := func(f, y, x, c int) int { return int(t.Data[((f*h+y)*w+x)*3+c]) }
	if frames > 2 {
		for f := 0; f < frames; f += 2 {
			out.Data = append(out.Data, t.Data[f*h*w*3:(f+1)*h*w*3]...)
		}
		return media.Tensor{Shape: []int{(frames + 1) / 2, h, w, 3}, Data: out.Data}
	}
	for f := range frames {
		for y := range h / 2 {
			for x := range w / 2 {
				for c := range 3 {
					sum := at(f, 2*y, 2*x, c) + at(f, 2*y, 2*x+1, c) + at(f, 2*y+1, 2*x, c) + at(f, 2*y+1, 2*x+1, c)
					out.Data = append(out.Data, byte((sum+2)/4))
				}
			}
		}
	}
	out.Shape = []int{h / 2, w / 2, 3}
	if kind == media.Video {
		out.Shape = append([]int{frames}, out.Shape...)
	}
	return out
}

// TestHalveObject compares halved objects with the naive ones, until they cannot be halved.
func TestHalveObject(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		kind  media.Kind
		shape []int
		times int
	}{
		{media.Image, []int{1, 1, 3}, 0},
		{media.Image, []int{1, 9, 3}, 0},
		{media.Image, []int{9, 1, 3}, 0},
		{media.Image, []int{2, 2, 3}, 1},
		{media.Image, []int{13, 31, 3}, 3},
		{media.Image, []int{64, 48, 3}, 5},
		{media.Video, []int{1, 4, 4, 3}, 2},
		{media.Video, []int{2, 5, 8, 3}, 2},
		{media.Video, []int{3, 4, 4, 3}, 3}, // 2 frames, then 2 by 2, then 1 by 1
		{media.Video, []int{9, 6, 6, 3}, 5}, // 5, 3 and 2 frames, then 3 by 3, then 1 by 1
	} {
		n := 1
		for _, s := range tt.shape {
			n *= s
		}
		now := media.Tensor{Shape: tt.shape, Data: make([]byte, n)}
		for i := range now.Data {
			now.Data[i] = byte(rng.Uint32())
		}
		size := media.Size{Width: tt.shape[len(tt.shape)-2], Height: tt.shape[len(tt.shape)-3]}
		if tt.kind == media.Video {
			size.Frames, size.Rate = tt.shape[0], 8
		}
		for i := 0; ; i++ {
			before := media.Tensor{Shape: now.Shape, Data: bytes.Clone(now.Data)}
			if !HalveObject(tt.kind, &now, &size) {
				if i != tt.times || !bytes.Equal(now.Data, before.Data) {
					t.Errorf("%v %v is halved %d times, want %d", tt.kind, tt.shape, i, tt.times)
				}
				break
			}
			want := halvedNaive(tt.kind, before)
			if Check(tt.kind, &now) != nil || ContentKey(tt.kind, &now) != ContentKey(tt.kind, &want) {
				t.Fatalf("%v of %v becomes %v, want %v", tt.kind, before.Shape, now.Shape, want.Shape)
			}
			if size.Width != now.Shape[len(now.Shape)-2] || size.Height != now.Shape[len(now.Shape)-3] || tt.kind == media.Video && size.Frames != now.Shape[0] {
				t.Errorf("%v has the size %+v", now.Shape, size)
			}
		}
	}
	sound := media.Tensor{Shape: []int{4}, Data: make([]byte, 16)}
	if HalveObject(media.Audio, &sound, &media.Size{}) {
		t.Error("a sound was halved")
	}
}
