package family

import (
	"math"

	"penstock/core/media"
)

// openPhi3 creates the family of Phi-3-vision and Phi-3.5-vision. Each image has a numbered text (<|image_1|>), which
// is not a token of the vocabulary: the model's processor splits the prompt there, encodes the texts between one by
// one, and puts the pad token in its place as often as the image has tokens. vLLM does the same.
func openPhi3(s *configSource) *Family {
	crops, pad := s.requireNumber(s.image, "num_crops", 1), s.findToken("<|image|>", "image_token_id")
	if s.getNumber(s.image, "num_img_tokens", 1, 144) != 144 {
		s.failKey(s.image, "num_img_tokens", "is another number than 144, which is not modelled")
	}
	if crops > 1<<10 {
		s.failKey(s.image, "num_crops", "is above %d", 1<<10)
	}
	return newSingleFamily(media.Image, &mediaRules{placeholder: pad, numbered: NumberedText{"<|image_", "|>"}, pad: pad, needsOrientation: true, layout: func(s mediaSize) (media.Layout, *SizeError) {
		rows, columns := phi3Tiles(s.w, s.h, crops)
		if rows == 0 || columns == 0 {
			return media.Layout{}, refuseSize("the picture is so thin that nothing would be left of its shorter side")
		}
		// 12 by 12 tokens for each tile and for the whole image, one after each row of 12 in both, and one
		// between them.
		return singleRunLayout(pad, (rows*columns+1)*144+1+(rows+1)*12, [3]int64{1, rows, columns})
	}})
}

// phi3Tiles returns the numbers of 336-pixel tiles along the height and the width of an image, at most
// crops together: as many along the longer side as possible.
func phi3Tiles(w, h, crops int64) (rows, columns int64) {
	long, short := max(w, h), min(w, h)
	ratio := float64(long) / float64(short)
	scale := int64(1)
	for scale <= crops && scale*int64(math.Ceil(float64(scale)/ratio)) <= crops {
		scale++
	}
	scale--
	rows, columns = ceilDiv(int64(float64(336*scale)/ratio), 336), scale
	if w < h {
		return columns, rows
	}
	return rows, columns
}
