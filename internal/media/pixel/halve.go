package pixel

import "penstock/core/media"

// HalveObject makes a decoded object smaller, in the memory of its tensor, and reports whether it could. Of a video with
// more than two frames it keeps every second one, from the first: models see frames in pairs. Otherwise it halves both
// sides of the pictures, rounded down: a pixel becomes the mean of four. It changes no sound.
func HalveObject(kind media.Kind, t *media.Tensor, size *media.Size) bool {
	if kind == media.Audio || Check(kind, t) != nil || t.Data == nil {
		return false
	}
	shape := append([]int(nil), t.Shape...)
	if kind == media.Video && shape[0] > 2 {
		frame := len(t.Data) / shape[0]
		shape[0] = (shape[0] + 1) / 2
		for i := range shape[0] {
			copy(t.Data[i*frame:(i+1)*frame], t.Data[2*i*frame:])
		}
		t.Shape, t.Data = shape, t.Data[:shape[0]*frame]
		size.Frames, size.Rate = shape[0], size.Rate/2
		return true
	}
	frames := 1
	if kind == media.Video {
		frames = shape[0]
	}
	height, width := shape[len(shape)-3], shape[len(shape)-2]
	if height < 2 || width < 2 {
		return false
	}
	h, w, at := height/2, width/2, 0
	for i := range frames {
		from := t.Data[i*height*width*3:]
		for y := range h {
			upper := from[2*y*width*3:]
			lower := upper[width*3:]
			for x := range 3 * w { // what is written is never read again: it is before all four
				c := x/3*6 + x%3
				t.Data[at] = byte((int(upper[c]) + int(upper[c+3]) + int(lower[c]) + int(lower[c+3]) + 2) / 4)
				at++
			}
		}
	}
	shape[len(shape)-3], shape[len(shape)-2] = h, w
	t.Shape, t.Data = shape, t.Data[:at]
	size.Width, size.Height = w, h
	return true
}
