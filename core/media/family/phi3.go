package family

import (
	"math"

	"penstock/core/media"
)

// openPhi3 makes the family of Phi-3-vision and Phi-3.5-vision. Its pictures are counted
// exactly, but their places cannot be found in a prompt: each is written as a number of
// its own (<|image_1|>), which is no token of the vocabulary. So it has no placeholder.
func openPhi3(s *source) *Family {
	crops, pad := s.needed(s.image, "num_crops", 1), s.token("<|image|>", "image_token_id")
	if s.number(s.image, "num_img_tokens", 1, 144) != 144 {
		s.fail(s.image, "num_img_tokens", "is another number than 144, which is not modelled")
	}
	if crops > 1<<10 {
		s.fail(s.image, "num_crops", "is above %d", 1<<10)
	}
	return only(media.Image, &medium{unmarked: true, pad: pad, turned: true, layout: func(s size) (media.Layout, *SizeError) {
		rows, columns := phi3Tiles(s.w, s.h, crops)
		if rows == 0 || columns == 0 {
			return media.Layout{}, refuse("the picture is so thin that nothing would be left of its shorter side")
		}
		// 12 by 12 tokens for each tile and for the whole picture, one after each row of 12 of
		// the two, and one between them.
		return alone(pad, (rows*columns+1)*144+1+(rows+1)*12, [3]int64{1, rows, columns})
	}})
}

// phi3Tiles returns how many tiles of 336 pixels each way a picture is made of, crops at
// most: as many along its longer side as there can be.
func phi3Tiles(w, h, crops int64) (rows, columns int64) {
	long, short := max(w, h), min(w, h)
	ratio := float64(long) / float64(short)
	scale := int64(1)
	for scale <= crops && scale*int64(math.Ceil(float64(scale)/ratio)) <= crops {
		scale++
	}
	scale--
	rows, columns = ceil(int64(float64(336*scale)/ratio), 336), scale
	if w < h {
		return columns, rows
	}
	return rows, columns
}
