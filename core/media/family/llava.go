package family

import (
	"math"

	"penstock/core/kv"
	"penstock/core/media"
)

// tower is a vision encoder that takes square pictures of one size.
type tower struct {
	side  int64 // pixels of a picture
	patch int64 // pixels of a patch
	extra int64 // tokens that are left besides those of patches: the class's, or none
}

// across returns the patches of a side.
func (t *tower) across() int64 { return t.side / t.patch }

// tower reads the encoder of a LLaVA model from config.json, and refuses a processor
// that counts otherwise: engines take the one or the other.
func (s *source) tower() tower {
	vision := s.object(s.config, "vision_config")
	t := tower{side: s.needed(vision, "image_size", 1), patch: s.needed(vision, "patch_size", 1)}
	if t.side > 1<<13 || t.patch > t.side {
		s.fail(vision, "image_size", "or patch_size is beyond what is counted")
		t.side, t.patch = 1, 1
	}
	class := int64(0)
	if s.text(vision, "model_type", "") == "clip_vision_model" {
		class = 1
	}
	switch strategy := s.text(s.config, "vision_feature_select_strategy", "default"); strategy {
	case "default":
		t.extra = class - 1
	case "full":
		t.extra = class
	default:
		s.fail(s.config, "vision_feature_select_strategy", "is %q, which is not known here", strategy)
	}
	if t.extra < 0 {
		s.fail(s.config, "vision_feature_select_strategy", "drops the class's token of an encoder that has none")
	}
	s.processorAgrees(t)
	return t
}

// processorAgrees holds processor_config.json, if it says how to count, against t.
func (s *source) processorAgrees(t tower) {
	if s.processor.has("patch_size") && s.number(s.processor, "patch_size", 1, 1) != t.patch {
		s.fail(s.processor, "patch_size", "is another one than that of config.json")
	}
	if !s.processor.has("num_additional_image_tokens") || !s.processor.has("vision_feature_select_strategy") {
		return // of before transformers 4.47, which left the counting to the model
	}
	extra := s.number(s.processor, "num_additional_image_tokens", 0, 0)
	if s.text(s.processor, "vision_feature_select_strategy", "") == "default" {
		extra--
	}
	if extra != t.extra {
		s.fail(s.processor, "num_additional_image_tokens", "makes other tokens than config.json")
	}
}

// square refuses an image processor whose pictures are not of the size that t takes.
func (s *source) square(t tower, key string) {
	size := s.object(s.image, key)
	for _, side := range []string{"height", "width", "shortest_edge"} {
		if size.has(side) && s.number(size, side, 1, 1) != t.side {
			s.fail(size, side, "is another one than image_size of config.json")
		}
	}
}

// openLlava makes the family of LLaVA-1.5: whatever its size, a picture is cropped to
// what the encoder takes.
func openLlava(s *source) *Family {
	t := s.tower()
	s.is(s.image, "do_center_crop", true)
	s.square(t, "crop_size")
	image, n := s.token("<image>", "image_token_id", "image_token_index"), t.across()*t.across()+t.extra
	return only(media.Image, &medium{placeholder: image, pad: image, layout: func(size) (media.Layout, *SizeError) {
		return alone(image, n, [3]int64{})
	}})
}

// only returns the family of models that take one kind of media.
func only(k media.Kind, m *medium) *Family {
	f := &Family{}
	f.mediums[k] = m
	return f
}

// llavaNext is how LLaVA-NeXT (1.6) shows pictures: once as a whole, and once, larger, in
// as many tiles as suit its shape, of which the rows of patches that only pad are cut
// off. Each row of patches ends with a token of its own, which engines report as a pad.
type llavaNext struct {
	tower
	canvases []canvas
	pad      kv.Token
}

// canvas is a size that a picture is fitted into, in pixels.
type canvas struct{ w, h int64 }

// maxCanvases bounds how many sizes a configuration may list.
const maxCanvases = 1 << 10

// openLlavaNext makes the family of LLaVA-NeXT.
func openLlavaNext(s *source) *Family {
	l := &llavaNext{tower: s.tower(), canvases: s.canvases(s.image), pad: s.token("<image>", "image_token_id", "image_token_index")}
	s.square(l.tower, "crop_size")
	if s.config.has("image_grid_pinpoints") {
		of := s.canvases(s.config)
		for i := range max(len(of), len(l.canvases)) {
			if i >= min(len(of), len(l.canvases)) || of[i] != l.canvases[i] {
				s.fail(s.image, "image_grid_pinpoints", "is another list than that of config.json")
			}
		}
	}
	for _, c := range l.canvases {
		if c.w%l.side != 0 || c.h%l.side != 0 || max(c.w, c.h) > l.side<<6 {
			s.fail(s.image, "image_grid_pinpoints", "has sizes that are not made of whole tiles, up to 64 each way")
		}
	}
	return only(media.Image, &medium{placeholder: l.pad, pad: l.pad, turned: true, layout: l.layout})
}

// canvases reads a list of heights and widths.
func (s *source) canvases(o object) []canvas {
	const key = "image_grid_pinpoints"
	pairs := s.pairs(o, key)
	if len(pairs) == 0 {
		s.fail(o, key, "is missing or empty")
	}
	list := make([]canvas, 0, min(len(pairs), maxCanvases))
	for _, p := range pairs {
		if len(p) != 2 || min(p[0], p[1]) < 1 || max(p[0], p[1]) > maxSide || len(list) == maxCanvases {
			s.fail(o, key, "is no list of up to %d heights and widths", maxCanvases)
			break
		}
		list = append(list, canvas{h: p[0], w: p[1]})
	}
	return list
}

func (l *llavaNext) layout(s size) (media.Layout, *SizeError) {
	best, ok := fit(l.canvases, s.w, s.h)
	if !ok {
		return media.Layout{}, refuse("nothing would be left of the picture")
	}
	n := l.across()
	rows, columns := n*(best.h/l.side), n*(best.w/l.side)
	// What pads is cut off evenly, so that one row or column of it may stay. Whole numbers do
	// what the library does in float64, rounded to 7 places before its fraction goes.
	if s.w*rows > columns*s.h {
		rows -= 2 * ((rows - s.h*columns/s.w) / 2)
	} else {
		columns -= 2 * ((columns - s.w*rows/s.h) / 2)
	}
	return alone(l.pad, rows*columns+rows+n*n+l.extra, [3]int64{})
}

// fit returns the canvas in which most of a picture's pixels find place, and of several
// the one that wastes least; of equal ones the first. Nothing is found if a side of the
// picture would have less than a pixel in each.
func fit(of []canvas, w, h int64) (best canvas, found bool) {
	used, wasted := int64(0), int64(math.MaxInt64)
	for _, c := range of {
		scale := min(float64(c.w)/float64(w), float64(c.h)/float64(h))
		u := min(int64(float64(w)*scale)*int64(float64(h)*scale), w*h)
		if waste := c.w*c.h - u; u > used || u == used && waste < wasted {
			best, used, wasted, found = c, u, waste, true
		}
	}
	return best, found
}
