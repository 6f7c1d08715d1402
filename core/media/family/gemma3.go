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
func openGemma3(s *configSource) *Family {
	n := s.getNumber(s.processor, "image_seq_length", 1, s.requireNumber(s.config, "mm_tokens_per_image", 1))
	if n != s.requireNumber(s.config, "mm_tokens_per_image", 1) {
		s.failKey(s.processor, "image_seq_length", "differs from mm_tokens_per_image of config.json")
	}
	start, pad, end := s.findToken("<start_of_image>", "boi_token_index"), s.findToken("<image_soft_token>", "image_token_id", "image_token_index"), s.findToken("<end_of_image>", "eoi_token_index")
	if n > maxTokens {
		s.failKey(s.config, "mm_tokens_per_image", "is above %d", maxTokens)
		return &Family{}
	}
	breaks := s.lineBreaks()
	if len(breaks) < 2 {
		if s.err == nil {
			s.err = newUnsupported("the vocabulary has no token of two line breaks")
		}
		return &Family{}
	}
	line := media.TokenRun{Token: breaks[1], Count: 1}
	whole := media.Layout{Runs: []media.TokenRun{line, {Token: start, Count: 1}, newRun(pad, n), {Token: end, Count: 1}, line}, PadCount: int(n), Breaks: breaks}
	return newSingleFamily(media.Image, &mediaRules{placeholder: start, pad: pad, layout: func(mediaSize) (media.Layout, *SizeError) {
		l := whole
		l.Runs = slices.Clone(whole.Runs)
		return l, nil
	}})
}

// lineBreaks returns the tokens of one line break, of two and so on, as far as the vocabulary has them.
func (s *configSource) lineBreaks() []kv.Token {
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
