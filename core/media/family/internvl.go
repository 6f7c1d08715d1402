package family

import (
	"cmp"
	"math"
	"slices"

	"penstock/core/media"
)

// internvl computes the tiles of InternVL: an image is cut into the tile grid with the nearest aspect
// ratio, and shown once more as a whole if there are several tiles.
type internvl struct {
	tiles         []canvas // in tiles, ascending by their number
	width, height int64    // pixels of a tile
}

// openInternVL creates the family of InternVL as in transformers (model_type internvl). Checkpoints in
// OpenGVLab's own form (internvl_chat) write <image> into the prompt, which is not a token of theirs.
func openInternVL(s *configSource) *Family {
	tile := s.getObject(s.image, "size")
	v := &internvl{width: s.requireNumber(tile, "width", 1), height: s.requireNumber(tile, "height", 1)}
	least, most := s.requireNumber(s.image, "min_patches", 1), s.requireNumber(s.image, "max_patches", 1)
	each := s.getNumber(s.processor, "image_seq_length", 1, s.requireNumber(s.config, "image_seq_length", 1))
	if each != s.getNumber(s.config, "image_seq_length", 1, each) {
		s.failKey(s.processor, "image_seq_length", "differs from that of config.json")
	}
	if most > 1<<8 || max(v.width, v.height) > maxSide {
		s.failKey(s.image, "max_patches or size", "is beyond what is counted")
		return &Family{}
	}
	v.tiles = tileGrids(least, most) // crop_to_patches is irrelevant: the processor sets it
	start, pad, end := s.findToken("<img>"), s.findToken("<IMG_CONTEXT>", "image_token_id"), s.findToken("</img>")
	return newSingleFamily(media.Image, &mediaRules{placeholder: pad, pad: pad, needsOrientation: true, layout: func(s mediaSize) (media.Layout, *SizeError) {
		c := v.nearestGrid(s.w, s.h)
		n := c.w * c.h
		if n > 1 {
			n++
		}
		if n*each > maxTokens {
			return media.Layout{}, refuseTooMany()
		}
		return media.Layout{Runs: []media.TokenRun{newRun(start, 1), newRun(pad, n*each), newRun(end, 1)}, PadCount: int(n * each), Grid: toGrid([3]int64{1, c.h, c.w})}, nil
	}})
}

// tileGrids returns every grid with least ≤ columns*rows ≤ most, ascending by the number of tiles.
func tileGrids(least, most int64) []canvas {
	var of []canvas
	for w := int64(1); w <= most; w++ {
		for h := int64(1); h <= most/w; h++ {
			if w*h >= least {
				of = append(of, canvas{w: w, h: h})
			}
		}
	}
	slices.SortStableFunc(of, func(a, b canvas) int { return cmp.Compare(a.w*a.h, b.w*b.h) })
	return of
}

// nearestGrid returns the grid whose aspect ratio is nearest to an image's. Among equal ones it returns the
// largest for which the image has more than half of the pixels.
func (v *internvl) nearestGrid(w, h int64) canvas {
	best, distance := canvas{1, 1}, math.Inf(1)
	ratio, area := float64(w)/float64(h), float64(w*h)
	for _, c := range v.tiles {
		d := math.Abs(ratio - float64(c.w)/float64(c.h))
		switch {
		case d < distance:
			best, distance = c, d
		case d == distance && area > 0.5*float64(v.height)*float64(v.width)*float64(c.w)*float64(c.h):
			best = c
		}
	}
	return best
}
