package family

import (
	"math"

	"penstock/core/kv"
	"penstock/core/media"
)

// gemma3 is how Gemma 3 shows pictures: as so many tokens, whatever their size, between
// two of its own and empty lines. With pan and scan, long pictures are shown in crops
// too.
type gemma3 struct {
	whole media.Layout

	panAndScan  bool
	crop, crops int64 // pixels, number
	ratio       float64
}

// openGemma3 makes the family of Gemma 3. Its vocabulary has one token for each number
// of line breaks in a row, so that those of a picture join the ones beside it.
func openGemma3(s *source) *Family {
	n := s.number(s.processor, "image_seq_length", 1, s.needed(s.config, "mm_tokens_per_image", 1))
	if n != s.needed(s.config, "mm_tokens_per_image", 1) {
		s.fail(s.processor, "image_seq_length", "is another one than mm_tokens_per_image of config.json")
	}
	start, pad, end := s.token("<start_of_image>", "boi_token_index"), s.token("<image_soft_token>", "image_token_id", "image_token_index"), s.token("<end_of_image>", "eoi_token_index")
	if n > maxTokens {
		s.fail(s.config, "mm_tokens_per_image", "is above %d", maxTokens)
		return &Family{}
	}
	breaks := s.breaks()
	if len(breaks) < 2 {
		if s.err == nil {
			s.err = unsupported("the vocabulary has no token of two line breaks")
		}
		return &Family{}
	}
	line := media.Run{Token: breaks[1], Count: 1}
	g := &gemma3{
		whole:      media.Layout{Runs: []media.Run{line, {Token: start, Count: 1}, times(pad, n), {Token: end, Count: 1}, line}, Pads: int(n), Breaks: breaks},
		panAndScan: s.flag(s.image, "do_pan_and_scan", false),
		crop:       s.number(s.image, "pan_and_scan_min_crop_size", 1, 256), crops: s.number(s.image, "pan_and_scan_max_num_crops", 1, 4),
		ratio: s.real(s.image, "pan_and_scan_min_ratio_to_activate", 1.2),
	}
	return only(media.Image, &medium{placeholder: start, pad: pad, layout: g.layout})
}

// breaks returns the tokens of one line break, of two and so on, as far as there are.
func (s *source) breaks() []kv.Token {
	const most = 64
	var text []byte
	var of []kv.Token
	for s.vocabulary != nil && len(of) < most {
		text = append(text, '\n')
		t, ok := s.vocabulary.ID(string(text))
		if !ok {
			break
		}
		of = append(of, t)
	}
	return of
}

func (g *gemma3) layout(s size) (media.Layout, *SizeError) {
	if g.panAndScan && g.cuts(s.w, s.h) > 0 {
		return media.Layout{}, &SizeError{Reason: media.UnsupportedModel, Detail: "the model shows long pictures in crops within a sentence, which is not modelled"}
	}
	l := g.whole
	l.Runs = append([]media.Run(nil), l.Runs...)
	return l, nil
}

// cuts returns how many crops a picture is shown in besides the whole.
func (g *gemma3) cuts(w, h int64) int64 {
	long, short := max(w, h), min(w, h)
	if float64(long)/float64(short) < g.ratio {
		return 0
	}
	n := min(max(2, min(int64(math.Floor(float64(long)/float64(short)+0.5)), long/g.crop)), g.crops)
	if min(ceil(long, n), short) < g.crop {
		return 0
	}
	return n
}
