package token

import (
	"encoding/json"

	"penstock/core/kv"
)

// newStages reads the pre-tokenizers: any number which cut, then ByteLevel.
func newStages(raw json.RawMessage) ([]stage, error) {
	list, err := parseComponents(raw)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[len(list)-1].Type != "ByteLevel" {
		return nil, unsupported("a pre_tokenizer that does not end in ByteLevel is not supported")
	}
	stages := make([]stage, len(list))
	for i, s := range list {
		switch {
		case s.Type == "Split":
			stages[i], err = splitStage(&s)
		case s.Type == "Digits":
			stages[i] = digitsStage(&s)
		case s.Type == "Punctuation":
			stages[i], err = punctuationStage(&s)
		case s.Type == "ByteLevel" && i == len(list)-1:
			stages[i], err = byteLevelStage(&s)
		default:
			err = unsupported("pre_tokenizer %.100s in place %d of %d is not supported", s.Type, i+1, len(list))
		}
		if err != nil {
			return nil, err
		}
	}
	// After a stage which cuts, a ByteLevel which neither cuts nor prepends a space does nothing.
	if last := len(stages) - 1; last > 0 && stages[last].idle {
		stages = stages[:last]
	}
	return stages, nil
}

// splitStage reads a Split. Removing what does not match, with a pattern which matches everything, equals
// isolating each match.
func splitStage(s *componentConfig) (stage, error) {
	if next, ok := Splitter(s.Pattern.Regex); ok && (isIsolated(s) || s.Behavior == "Removed" && s.Invert) {
		return stage{next: next, findFast: asciiWordFinder(s.Pattern.Regex)}, nil
	}
	if !isIsolated(s) {
		return stage{}, unsupported("pre_tokenizer Split with behavior %.100q and invert %t is not supported; only Isolated without invert is", s.Behavior, s.Invert)
	}
	next, ok := sparseSplitter(s.Pattern.Regex)
	if !ok {
		return stage{}, unsupported("pre_tokenizer Split with the pattern %.100q is not supported", s.Pattern.Regex+s.Pattern.String)
	}
	return stage{next: next}, nil
}

func isIsolated(s *componentConfig) bool { return s.Behavior == "Isolated" && !s.Invert }

func digitsStage(s *componentConfig) stage {
	c := newClasses()
	c.markRanges(numbers17(), number)
	if s.IndividualDigits {
		return stage{next: c.nextDigit}
	}
	return stage{next: c.nextNumber}
}

// punctuationStage reads a Punctuation; a file without a behavior is from before there was a choice.
func punctuationStage(s *componentConfig) (stage, error) {
	c := newPunctuation()
	switch s.Behavior {
	case "Isolated", "":
		return stage{next: c.nextSign}, nil
	case "Contiguous":
		return stage{next: c.nextSigns}, nil
	}
	return stage{}, unsupported("pre_tokenizer Punctuation with behavior %q is not supported; only Isolated and Contiguous are", s.Behavior)
}

func byteLevelStage(s *componentConfig) (stage, error) {
	if s.AddPrefixSpace == nil {
		return stage{}, malformed("pre_tokenizer ByteLevel has no add_prefix_space")
	}
	if s.UseRegex == nil || *s.UseRegex {
		return stage{prefix: *s.AddPrefixSpace, next: newClasses().nextGPT2, findFast: asciiWord}, nil
	}
	return stage{prefix: *s.AddPrefixSpace, next: nextWhole, idle: !*s.AddPrefixSpace}, nil
}

func checkDecoder(raw json.RawMessage) error {
	list, err := parseComponents(raw)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return unsupported("a tokenizer without a decoder is not supported; byte-level vocabularies need ByteLevel")
	}
	for _, s := range list {
		if s.Type != "ByteLevel" {
			return unsupported("decoder %.100s is not supported", s.Type)
		}
	}
	if len(list) > 1 {
		return unsupported("more than one decoder is not supported")
	}
	return nil
}

// setPostProcessor reads the tokens around a text when special tokens are added. A ByteLevel post-processor
// only moves offsets, which are not used here.
func (t *Tokenizer) setPostProcessor(raw json.RawMessage) error {
	list, err := parseComponents(raw)
	if err != nil {
		return err
	}
	templates := 0
	for _, s := range list {
		switch s.Type {
		case "ByteLevel":
		case "TemplateProcessing":
			templates++
			err = t.setTemplate(&s)
		case "BertProcessing", "RobertaProcessing":
			templates++
			err = t.setSurrounds(&s)
		default:
			err = unsupported("post_processor %.100s is not supported", s.Type)
		}
		if err != nil {
			return err
		}
	}
	if templates > 1 {
		return unsupported("more than one post_processor that adds tokens is not supported")
	}
	return nil
}

// setSurrounds reads the older ways to add one token before and one after.
func (t *Tokenizer) setSurrounds(s *componentConfig) error {
	for _, p := range []*templatePair{s.Cls, s.Sep} {
		if p == nil {
			return malformed("post_processor %s has not both cls and sep", s.Type)
		}
		if !t.isKnown(p.id) {
			return malformed("post_processor %s uses the id %d, which is not in the vocabulary", s.Type, p.id)
		}
	}
	t.begin, t.end = append(t.begin, s.Cls.id), append(t.end, s.Sep.id)
	return nil
}

func (t *Tokenizer) setTemplate(s *componentConfig) error {
	sequences := 0
	for _, p := range s.Single {
		if p.SpecialToken == nil {
			sequences++
			continue
		}
		ids, err := t.templateIDs(s, p.SpecialToken.ID)
		if err != nil {
			return err
		}
		if sequences == 0 {
			t.begin = append(t.begin, ids...)
		} else {
			t.end = append(t.end, ids...)
		}
	}
	if sequences != 1 {
		return malformed("post_processor TemplateProcessing has %d sequences in its template for one text", sequences)
	}
	return nil
}

func (t *Tokenizer) templateIDs(s *componentConfig, name string) ([]kv.Token, error) {
	special, ok := s.SpecialTokens[name]
	if !ok {
		return nil, malformed("post_processor TemplateProcessing names the token %.100q but does not define it", name)
	}
	for _, id := range special.IDs {
		if !t.isKnown(id) {
			return nil, malformed("post_processor TemplateProcessing uses the id %d, which is not in the vocabulary", id)
		}
	}
	return special.IDs, nil
}
