package family

import (
	"math"

	"penstock/core/kv"
	"penstock/core/media"
)

// pixtral computes the tokens of Pixtral and of the Mistral models since Mistral-Small-3.1: an image is
// shrunk so that its longer side fits. Each row of patches ends with a break token, the last one with an
// end token.
type pixtral struct {
	longest, unit   int64 // pixels: of the longer side, and of one token
	pad, turn, stop kv.Token
}

// openPixtral creates the family of Pixtral. Checkpoints in transformers' form are complete. Those in
// Mistral's own form (params.json) are another family, which rounds.
func openPixtral(s *source) *Family {
	s.is(s.image, "do_resize", true)
	p := &pixtral{longest: s.needed(s.object(s.image, "size"), "longest_edge", 1)}
	vision := s.object(s.config, "vision_config")
	patch, merge := s.either(vision, "patch_size", s.processor, "patch_size"), int64(1)
	if s.text(s.config, "model_type", "") == "mistral3" || s.config.has("spatial_merge_size") {
		merge = s.needed(s.config, "spatial_merge_size", 1)
	}
	if s.processor.has("patch_size") && s.number(s.processor, "patch_size", 1, 1) != patch {
		s.fail(s.processor, "patch_size", "is another one than that of config.json")
	}
	if s.processor.has("spatial_merge_size") && s.number(s.processor, "spatial_merge_size", 1, 1) != merge {
		s.fail(s.processor, "spatial_merge_size", "is another one than that of config.json")
	}
	if max(p.longest, patch, merge) > maxSide || p.longest/patch > 1<<12 {
		s.fail(s.image, "size", "or patch_size is beyond what is counted")
	}
	p.unit = patch * merge
	p.pad = s.token("[IMG]", "image_token_id", "image_token_index")
	p.turn, p.stop = s.token("[IMG_BREAK]"), s.token("[IMG_END]")
	return only(media.Image, &medium{placeholder: p.pad, pad: p.pad, turned: true, layout: p.layout})
}

func (p *pixtral) layout(s size) (media.Layout, *SizeError) {
	w, h := s.w, s.h
	if ratio := max(float64(h)/float64(p.longest), float64(w)/float64(p.longest)); ratio > 1 {
		h, w = int64(math.Floor(float64(h)/ratio)), int64(math.Floor(float64(w)/ratio))
	}
	rows, columns := ceil(h, p.unit), ceil(w, p.unit)
	if rows == 0 || columns == 0 {
		return media.Layout{}, refuse("the picture is so thin that shrinking it would leave nothing of the shorter side")
	}
	if rows*columns > maxTokens {
		return media.Layout{}, tooMany()
	}
	l := media.Layout{Runs: make([]media.Run, 0, 2*rows), Pads: int(rows * columns), Grid: patches([3]int64{1, rows, columns})}
	for range rows {
		l.Runs = append(l.Runs, times(p.pad, columns), times(p.turn, 1))
	}
	l.Runs[len(l.Runs)-1].Token = p.stop
	return l, nil
}
