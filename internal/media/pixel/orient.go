package pixel

import "penstock/internal/media/probe"

// orient returns the picture oriented according to EXIF: 2 to 4 are mirrored or rotated by 180
// degrees, 5 to 8 have width and height exchanged. p must not be used afterwards.
func (p rgbImage) orient(orientation int) rgbImage {
	if orientation < 2 || orientation > 8 {
		return p
	}
	w, h := p.width, p.height
	if orientation >= 5 {
		w, h = h, w
	}
	q := newRGBImage(w, h)
	for y := range h {
		for x := range w {
			fx, fy := x, y // source pixel
			switch orientation {
			case 2:
				fx = w - 1 - x
			case 3:
				fx, fy = w-1-x, h-1-y
			case 4:
				fy = h - 1 - y
			case 5:
				fx, fy = y, x
			case 6:
				fx, fy = y, w-1-x
			case 7:
				fx, fy = h-1-y, w-1-x
			case 8:
				fx, fy = h-1-y, x
			}
			copy(q.rgb[3*(y*w+x):][:3], p.rgb[3*(fy*p.width+fx):])
		}
	}
	return q
}

// readOrientation returns the EXIF orientation of a picture, 1 to 8; 0 if unknown. It uses the
// probe, so that the decoded size equals the size that was counted.
func readOrientation(file []byte) int {
	info, err := probe.ReadHeader(file)
	if err != nil {
		return 0
	}
	return info.Orientation
}
