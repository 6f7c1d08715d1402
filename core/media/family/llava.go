package family

import (
	"math"

	"penstock/core/kv"
	"penstock/core/media"
)

// visionEncoder is an encoder which takes square images of one size.
type visionEncoder struct {
	side  int64 // pixels of an image
	patch int64 // pixels of a patch
	extra int64 // tokens in addition to patch tokens: the class token, or none
}

// patchesPerSide returns the patches of a side.
func (t *visionEncoder) patchesPerSide() int64 { return t.side / t.patch }

// readVisionEncoder reads the encoder of a LLaVA model from config.json. It refuses a processor with
// another count, because engines use either of them.
func (s *configSource) readVisionEncoder() visionEncoder {
	vision := s.getObject(s.config, "vision_config")
	t := visionEncoder{side: s.requireNumber(vision, "image_size", 1), patch: s.requireNumber(vision, "patch_size", 1)}
	if t.side > 1<<13 || t.patch > t.side {
		s.failKey(vision, "image_size", "or patch_size is beyond what is counted")
		t.side, t.patch = 1, 1
	}
	class := int64(0)
	if s.getText(vision, "model_type", "") == "clip_vision_model" {
		class = 1
	}
	switch strategy := s.getText(s.config, "vision_feature_select_strategy", "default"); strategy {
	case "default":
		t.extra = class - 1
	case "full":
		t.extra = class
	default:
		s.failKey(s.config, "vision_feature_select_strategy", "is %q, which is not known here", strategy)
	}
	if t.extra < 0 {
		s.failKey(s.config, "vision_feature_select_strategy", "drops the class's token of an encoder that has none")
	}
	s.checkProcessorAgrees(t)
	return t
}

// checkProcessorAgrees compares processor_config.json, if it has counts, with t.
func (s *configSource) checkProcessorAgrees(t visionEncoder) {
	if s.processor.has("patch_size") && s.getNumber(s.processor, "patch_size", 1, 1) != t.patch {
		s.failKey(s.processor, "patch_size", "differs from that of config.json")
	}
	if !s.processor.has("num_additional_image_tokens") || !s.processor.has("vision_feature_select_strategy") {
		return // before transformers 4.47, which left the counting to the model
	}
	extra := s.getNumber(s.processor, "num_additional_image_tokens", 0, 0)
	if s.getText(s.processor, "vision_feature_select_strategy", "") == "default" {
		extra--
	}
	if extra != t.extra {
		s.failKey(s.processor, "num_additional_image_tokens", "makes other tokens than config.json")
	}
}

// checkSquare refuses an image processor whose images do not have the size of the encoder.
func (s *configSource) checkSquare(t visionEncoder, key string) {
	size := s.getObject(s.image, key)
	for _, side := range []string{"height", "width", "shortest_edge"} {
		if size.has(side) && s.getNumber(size, side, 1, 1) != t.side {
			s.failKey(size, side, "differs from image_size of config.json")
		}
	}
}

// openLlava creates the family of LLaVA-1.5: an image of any size is cropped to the size of the encoder.
func openLlava(s *configSource) *Family {
	t := s.readVisionEncoder()
	s.requireFlag(s.image, "do_center_crop", true)
	s.checkSquare(t, "crop_size")
	image, n := s.findToken("<image>", "image_token_id", "image_token_index"), t.patchesPerSide()*t.patchesPerSide()+t.extra
	return newSingleFamily(media.Image, &mediaRules{placeholder: image, pad: image, layout: func(mediaSize) (media.Layout, *SizeError) {
		return singleRunLayout(image, n, [3]int64{})
	}})
}

// newSingleFamily returns the family of models which take one kind of media.
func newSingleFamily(k media.Kind, m *mediaRules) *Family {
	f := &Family{}
	f.rules[k] = m
	return f
}

// llavaNext computes the tokens of LLaVA-NeXT (1.6): an image is shown once as a whole, and once, enlarged,
// in as many tiles as suit its shape. Rows of patches which are only padding are cut off. Each row of
// patches ends with a separate token, which engines report as a pad.
type llavaNext struct {
	visionEncoder
	canvases []canvas
	pad      kv.Token
}

// canvas is a size into which an image is fitted, in pixels.
type canvas struct{ w, h int64 }

// maxCanvases bounds the number of sizes in a configuration.
const maxCanvases = 1 << 10

// openLlavaNext creates the family of LLaVA-NeXT.
func openLlavaNext(s *configSource) *Family {
	l := &llavaNext{visionEncoder: s.readVisionEncoder(), canvases: s.readCanvases(s.image), pad: s.findToken("<image>", "image_token_id", "image_token_index")}
	s.checkSquare(l.visionEncoder, "crop_size")
	if s.config.has("image_grid_pinpoints") {
		of := s.readCanvases(s.config)
		for i := range max(len(of), len(l.canvases)) {
			if i >= min(len(of), len(l.canvases)) || of[i] != l.canvases[i] {
				s.failKey(s.image, "image_grid_pinpoints", "is another list than that of config.json")
			}
		}
	}
	for _, c := range l.canvases {
		if c.w%l.side != 0 || c.h%l.side != 0 || max(c.w, c.h) > l.side<<6 {
			s.failKey(s.image, "image_grid_pinpoints", "has sizes that are not made of whole tiles, up to 64 each way")
		}
	}
	return newSingleFamily(media.Image, &mediaRules{placeholder: l.pad, pad: l.pad, needsOrientation: true, layout: l.imageLayout})
}

// readCanvases reads a list of heights and widths.
func (s *configSource) readCanvases(o jsonObject) []canvas {
	const key = "image_grid_pinpoints"
	pairs := s.getPairs(o, key)
	if len(pairs) == 0 {
		s.failKey(o, key, "is missing or empty")
	}
	list := make([]canvas, 0, min(len(pairs), maxCanvases))
	for _, p := range pairs {
		if len(p) != 2 || min(p[0], p[1]) < 1 || max(p[0], p[1]) > maxSide || len(list) == maxCanvases {
			s.failKey(o, key, "is no list of up to %d heights and widths", maxCanvases)
			break
		}
		list = append(list, canvas{h: p[0], w: p[1]})
	}
	return list
}

func (l *llavaNext) imageLayout(s mediaSize) (media.Layout, *SizeError) {
	best, ok := fitCanvas(l.canvases, s.w, s.h)
	if !ok {
		return media.Layout{}, refuseSize("nothing would be left of the picture")
	}
	n := l.patchesPerSide()
	rows, columns := n*(best.h/l.side), n*(best.w/l.side)
	// Padding is cut off evenly, so one row or column of it may remain. Integers give the same result as
	// the library's float64, which it rounds to 7 places before it drops the fraction.
	if s.w*rows > columns*s.h {
		rows -= 2 * ((rows - s.h*columns/s.w) / 2)
	} else {
		columns -= 2 * ((columns - s.w*rows/s.h) / 2)
	}
	return singleRunLayout(l.pad, rows*columns+rows+n*n+l.extra, [3]int64{})
}

// fitCanvas returns the canvas which keeps most of an image's pixels, and among equal ones the one which
// wastes least, then the first. It finds none if a side of the image would shrink below one pixel in each
// canvas.
func fitCanvas(of []canvas, w, h int64) (best canvas, found bool) {
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
