package family

import (
	"math"

	"penstock/core/kv"
	"penstock/core/media"
)

// qwenVision is how the Qwen models since Qwen2-VL cut pictures: resized to whole
// multiples of merge patches each way, within bounds for the number of pixels, and each
// merge by merge square of patches one token.
type qwenVision struct {
	patch, merge, temporal int // pixels, patches, frames
	least, most            int // pixels of a picture, or of a frame
}

// maxRatio is what the sides of a picture may differ by.
const maxRatio = 200

// grid returns the patches across the height and the width of a picture.
//
// The arithmetic is that of smart_resize in transformers' image_processing_qwen2_vl.py,
// operation by operation: it divides whole numbers into float64 correctly rounded, and
// so does this.
func (q *qwenVision) grid(w, h int) (gh, gw int, refused *SizeError) {
	if !ratioWithin(w, h, maxRatio) {
		return 0, 0, thin(w, h, maxRatio)
	}
	factor := q.patch * q.merge
	hBar, wBar := nearest(h, factor), nearest(w, factor)
	switch {
	case hBar*wBar > q.most:
		beta := math.Sqrt(float64(h*w) / float64(q.most))
		hBar, wBar = shrunk(h, beta, factor), shrunk(w, beta, factor)
	case hBar*wBar < q.least:
		beta := math.Sqrt(float64(q.least) / float64(h*w))
		hBar, wBar = grown(h, beta, factor), grown(w, beta, factor)
	}
	if hBar == 0 || wBar == 0 {
		return 0, 0, &SizeError{Reason: media.SizeRefused, Detail: "nothing would be left of the picture"}
	}
	return hBar / q.patch, wBar / q.patch, nil
}

// nearest rounds side to a multiple of factor, halves to even ones.
func nearest(side, factor int) int {
	return int(math.RoundToEven(float64(side)/float64(factor))) * factor
}

func shrunk(side int, beta float64, factor int) int {
	return max(factor, int(math.Floor(float64(side)/beta/float64(factor)))*factor)
}

func grown(side int, beta float64, factor int) int {
	return int(math.Ceil(float64(side)*beta/float64(factor))) * factor
}

// ratioWithin reports whether neither side is more than ratio times the other.
func ratioWithin(w, h, ratio int) bool { return max(w, h) <= ratio*min(w, h) }

// image returns the layout of pictures.
func (q qwenVision) image(pad kv.Token) func(media.Size) (media.Layout, *SizeError) {
	return func(s media.Size) (media.Layout, *SizeError) {
		gh, gw, refused := q.grid(s.Width, s.Height)
		if refused != nil {
			return media.Layout{}, refused
		}
		return alone(pad, gh*gw/(q.merge*q.merge), [3]int{1, gh, gw}), nil
	}
}

// frames returns the layout of videos of which each frame is a picture, and as many
// frames as the encoder takes at a time share their tokens; the last is repeated to fill
// them up.
func (q qwenVision) frames(pad kv.Token) func(media.Size) (media.Layout, *SizeError) {
	return func(s media.Size) (media.Layout, *SizeError) {
		gh, gw, refused := q.grid(s.Width, s.Height)
		if refused != nil {
			return media.Layout{}, refused
		}
		gt := ceil(s.Frames, q.temporal)
		return alone(pad, gt*gh*gw/(q.merge*q.merge), [3]int{gt, gh, gw}), nil
	}
}

// ceil returns a/b rounded up, for a >= 0.
func ceil(a, b int) int { return (a + b - 1) / b }

// openQwen2 makes the family of Qwen2-VL.
func openQwen2(s *source) *Family {
	eyes := s.qwenVision(s.image, 14)
	image := s.token("<|image_pad|>", "image_token_id")
	f := &Family{}
	f.mediums[media.Image] = &medium{placeholder: image, pad: image, layout: eyes.image(image)}
	return f
}

// qwenVision reads how a processor cuts pictures: bounds for the pixels are min_pixels
// and max_pixels, or else shortest_edge and longest_edge of size, which are numbers of
// pixels in spite of their names.
func (s *source) qwenVision(o object, patch int) qwenVision {
	s.is(o, "do_resize", true)
	q := qwenVision{
		patch: s.number(o, "patch_size", 1, patch), merge: s.number(o, "merge_size", 1, 2), temporal: s.number(o, "temporal_patch_size", 1, 2),
	}
	size := s.object(o, "size")
	q.least, q.most = s.either(o, "min_pixels", size, "shortest_edge"), s.either(o, "max_pixels", size, "longest_edge")
	return q
}

// either returns a whole number of one object, or else of another.
func (s *source) either(o object, key string, or object, other string) int {
	if o.has(key) {
		return s.needed(o, key, 1)
	}
	return s.needed(or, other, 1)
}
