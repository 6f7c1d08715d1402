package family

import (
	"penstock/core/kv"
	"penstock/core/media"
)

// llama4 computes the tokens of Llama 4: an image is shown in tiles with separators, and once more as a
// whole.
type llama4 struct {
	canvases []canvas // in tiles, in the order in which the library tries them
	side     int64    // pixels of a tile
	each     int64    // tokens of a tile

	start, end, whole, pad, across, down kv.Token
}

// openLlama4 creates the family of Llama 4.
func openLlama4(s *configSource) *Family {
	size, vision := s.getObject(s.image, "size"), s.getObject(s.config, "vision_config")
	tiles := s.requireNumber(s.image, "max_patches", 1)
	patch := s.getNumber(s.processor, "patch_size", 1, s.getNumber(vision, "patch_size", 1, 14))
	l := &llama4{
		side:  s.requireNumber(size, "height", 1),
		start: s.findToken("<|image_start|>", "boi_token_index"), end: s.findToken("<|image_end|>", "eoi_token_index"), whole: s.findToken("<|image|>"),
		pad: s.findToken("<|patch|>", "image_token_id", "image_token_index"), across: s.findToken("<|tile_x_separator|>"), down: s.findToken("<|tile_y_separator|>"),
	}
	s.requireFlag(s.image, "do_resize", true)
	s.requireFlag(s.image, "resize_to_max_canvas", false)
	if s.requireNumber(size, "width", 1) != l.side {
		s.failKey(size, "width", "differs from the height")
	}
	if vision.has("image_size") && s.getNumber(vision, "image_size", 1, 1) != l.side {
		s.failKey(size, "height", "differs from image_size of config.json")
	}
	for _, o := range []jsonObject{s.processor, vision} {
		if s.getReal(o, "pixel_shuffle_ratio", 0.5) != 0.5 {
			s.failKey(o, "pixel_shuffle_ratio", "differs from 0.5, which is not modelled")
		}
	}
	if tiles > 1<<8 || l.side > maxSide || patch > l.side {
		s.failKey(s.image, "max_patches, size or patch_size", "is beyond what is counted")
		return &Family{}
	}
	l.canvases = llama4Canvases(tiles)
	l.each = (l.side / patch) * (l.side / patch) / 4
	return newSingleFamily(media.Image, &mediaRules{placeholder: l.whole, pad: l.pad, needsOrientation: true, layout: l.imageLayout})
}

// llama4Canvases returns all grids of up to `tiles` tiles, grouped by aspect ratio. The ratios are in order
// of first occurrence from the most tiles down.
func llama4Canvases(tiles int64) []canvas {
	var shapes []float64
	of := [][]canvas{}
	for n := tiles; n > 0; n-- {
		for h := int64(1); h <= n; h++ {
			if n%h != 0 {
				continue
			}
			c := canvas{h: h, w: n / h}
			shape, at := float64(c.h)/float64(c.w), 0
			for at < len(shapes) && shapes[at] != shape {
				at++
			}
			if at == len(shapes) {
				shapes, of = append(shapes, shape), append(of, nil)
			}
			of[at] = append(of[at], c)
		}
	}
	var all []canvas
	for _, group := range of {
		all = append(all, group...)
	}
	return all
}

// bestCanvas returns the canvas for an image: among the canvases which need no shrinking the one with the
// least enlargement, otherwise the one with the least shrinking; the smallest of equal ones. The quotients
// are float32, as the library's tensors are, so that canvases can be equal which differ in exact
// arithmetic.
func (l *llama4) bestCanvas(w, h int64) canvas {
	var best canvas
	var chosen float32
	for _, c := range l.canvases {
		scale := min(float32(c.w*l.side)/float32(w), float32(c.h*l.side)/float32(h))
		switch {
		case best.w == 0,
			scale >= 1 && (chosen < 1 || scale < chosen),
			scale < 1 && chosen < 1 && scale > chosen,
			scale == chosen && c.w*c.h < best.w*best.h:
			best, chosen = c, scale
		}
	}
	return best
}

func (l *llama4) imageLayout(s mediaSize) (media.Layout, *SizeError) {
	c := l.bestCanvas(s.w, s.h)
	tiles := c.w * c.h
	if (tiles+1)*l.each > maxTokens {
		return media.Layout{}, refuseTooMany()
	}
	one, shown := func(t kv.Token) media.TokenRun { return newRun(t, 1) }, newRun(l.pad, l.each)
	if tiles == 1 {
		return media.Layout{Runs: []media.TokenRun{one(l.start), one(l.whole), shown, one(l.end)}, PadCount: int(l.each), Grid: [3]int{1, 1, 1}}, nil
	}
	out := media.Layout{Runs: make([]media.TokenRun, 0, 2*tiles+4), PadCount: int((tiles + 1) * l.each), Grid: toGrid([3]int64{1, c.h, c.w})}
	out.Runs = append(out.Runs, one(l.start))
	for range c.h {
		for x := range c.w {
			if x > 0 {
				out.Runs = append(out.Runs, one(l.across))
			}
			out.Runs = append(out.Runs, shown)
		}
		out.Runs = append(out.Runs, one(l.down))
	}
	out.Runs = append(out.Runs, one(l.whole), shown, one(l.end))
	return out, nil
}
