package pixel

import "penstock/core/media/probe"

// upright returns the picture as EXIF's orientation says it is to be seen: 2 to 4 are
// mirrored or turned half, 5 to 8 have their sides exchanged. p is used up.
func (p picture) upright(orientation int) picture {
	if orientation < 2 || orientation > 8 {
		return p
	}
	w, h := p.width, p.height
	if orientation >= 5 {
		w, h = h, w
	}
	q := newPicture(w, h)
	for y := range h {
		for x := range w {
			fx, fy := x, y // of the pixel to take
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

// orientation returns how a picture is to be turned, 1 to 8; 0 if the file does not say. It is
// the probe that knows, so that the size of what is decoded is the one that was counted.
func orientation(file []byte) int {
	info, err := probe.Header(file)
	if err != nil {
		return 0
	}
	return info.Orientation
}
