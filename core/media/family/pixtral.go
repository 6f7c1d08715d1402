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
func openPixtral(s *configSource) *Family {
	s.requireFlag(s.image, "do_resize", true)
	p := &pixtral{longest: s.requireNumber(s.getObject(s.image, "size"), "longest_edge", 1)}
	vision := s.getObject(s.config, "vision_config")
	patch, merge := s.requireEither(vision, "patch_size", s.processor, "patch_size"), int64(1)
	if s.getText(s.config, "model_type", "") == "mistral3" || s.config.has("spatial_merge_size") {
		merge = s.requireNumber(s.config, "spatial_merge_size", 1)
	}
	if s.processor.has("patch_size") && s.getNumber(s.processor, "patch_size", 1, 1) != patch {
		s.failKey(s.processor, "patch_size", "differs from that of config.json")
	}
	if s.processor.has("spatial_merge_size") && s.getNumber(s.processor, "spatial_merge_size", 1, 1) != merge {
		s.failKey(s.processor, "spatial_merge_size", "differs from that of config.json")
	}
	if max(p.longest, patch, merge) > maxSide || p.longest/patch > 1<<12 {
		s.failKey(s.image, "size", "or patch_size is beyond what is counted")
	}
	p.unit = patch * merge
	p.pad = s.findToken("[IMG]", "image_token_id", "image_token_index")
	p.turn, p.stop = s.findToken("[IMG_BREAK]"), s.findToken("[IMG_END]")
	return newSingleFamily(media.Image, &mediaRules{placeholder: p.pad, pad: p.pad, needsOrientation: true, layout: p.imageLayout})
}

func (p *pixtral) imageLayout(s mediaSize) (media.Layout, *SizeError) {
	w, h := s.w, s.h
	if ratio := max(float64(h)/float64(p.longest), float64(w)/float64(p.longest)); ratio > 1 {
		h, w = int64(math.Floor(float64(h)/ratio)), int64(math.Floor(float64(w)/ratio))
	}
	rows, columns := ceilDiv(h, p.unit), ceilDiv(w, p.unit)
	if rows == 0 || columns == 0 {
		return media.Layout{}, refuseSize("the picture is so thin that shrinking it would leave nothing of the shorter side")
	}
	if rows*columns > maxTokens {
		return media.Layout{}, refuseTooMany()
	}
	l := media.Layout{Runs: make([]media.TokenRun, 0, 2*rows), PadCount: int(rows * columns), Grid: toGrid([3]int64{1, rows, columns})}
	for range rows {
		l.Runs = append(l.Runs, newRun(p.pad, columns), newRun(p.turn, 1))
	}
	l.Runs[len(l.Runs)-1].Token = p.stop
	return l, nil
}
