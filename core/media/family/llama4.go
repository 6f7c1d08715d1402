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
func openLlama4(s *source) *Family {
	size, vision := s.object(s.image, "size"), s.object(s.config, "vision_config")
	tiles := s.needed(s.image, "max_patches", 1)
	patch := s.number(s.processor, "patch_size", 1, s.number(vision, "patch_size", 1, 14))
	l := &llama4{
		side:  s.needed(size, "height", 1),
		start: s.token("<|image_start|>", "boi_token_index"), end: s.token("<|image_end|>", "eoi_token_index"), whole: s.token("<|image|>"),
		pad: s.token("<|patch|>", "image_token_id", "image_token_index"), across: s.token("<|tile_x_separator|>"), down: s.token("<|tile_y_separator|>"),
	}
	s.is(s.image, "do_resize", true)
	s.is(s.image, "resize_to_max_canvas", false)
	if s.needed(size, "width", 1) != l.side {
		s.fail(size, "width", "is another one than the height")
	}
	if vision.has("image_size") && s.number(vision, "image_size", 1, 1) != l.side {
		s.fail(size, "height", "is another one than image_size of config.json")
	}
	for _, o := range []object{s.processor, vision} {
		if s.real(o, "pixel_shuffle_ratio", 0.5) != 0.5 {
			s.fail(o, "pixel_shuffle_ratio", "is another one than 0.5, which is not modelled")
		}
	}
	if tiles > 1<<8 || l.side > maxSide || patch > l.side {
		s.fail(s.image, "max_patches, size or patch_size", "is beyond what is counted")
		return &Family{}
	}
	l.canvases = llama4Canvases(tiles)
	l.each = (l.side / patch) * (l.side / patch) / 4
	return only(media.Image, &medium{placeholder: l.whole, pad: l.pad, turned: true, layout: l.layout})
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
func (l *llama4) best(w, h int64) canvas {
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

func (l *llama4) layout(s size) (media.Layout, *SizeError) {
	c := l.best(s.w, s.h)
	tiles := c.w * c.h
	if (tiles+1)*l.each > maxTokens {
		return media.Layout{}, tooMany()
	}
	one, shown := func(t kv.Token) media.Run { return times(t, 1) }, times(l.pad, l.each)
	if tiles == 1 {
		return media.Layout{Runs: []media.Run{one(l.start), one(l.whole), shown, one(l.end)}, Pads: int(l.each), Grid: [3]int{1, 1, 1}}, nil
	}
	out := media.Layout{Runs: make([]media.Run, 0, 2*tiles+4), Pads: int((tiles + 1) * l.each), Grid: patches([3]int64{1, c.h, c.w})}
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
