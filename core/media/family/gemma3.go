package family

import (
	"slices"

	"penstock/core/kv"
	"penstock/core/media"
)

// openGemma3 creates the family of Gemma 3. An image of any size is a fixed number of tokens between a
// start and an end token and empty lines. The vocabulary has one token for each number of consecutive line
// breaks, so an image's line breaks join adjacent ones.
//
// With pan and scan, long images are shown in crops too, in a sentence. The processor takes that as a call
// argument only: do_pan_and_scan of the checkpoint has no effect.
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
	whole := media.Layout{Runs: []media.Run{line, {Token: start, Count: 1}, times(pad, n), {Token: end, Count: 1}, line}, Pads: int(n), Breaks: breaks}
	return only(media.Image, &medium{placeholder: start, pad: pad, layout: func(size) (media.Layout, *SizeError) {
		l := whole
		l.Runs = slices.Clone(whole.Runs)
		return l, nil
	}})
}

// lineBreaks returns the tokens of one line break, of two and so on, as far as the vocabulary has them.
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
