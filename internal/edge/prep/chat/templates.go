package chat

import "penstock/internal/edge/prep"

// builtinTemplate is the template of the built-in vocabulary: a token for each role opens a turn and <|end|>
// closes it, without other characters in between, so that an assistant's turn is exactly what the model
// generated.
func builtinTemplate() prep.Template {
	mark := func(name string) []prep.Segment { return []prep.Segment{{Text: "<|" + name + "|>", Special: true}} }
	return &turnTemplate{
		mediaMarkup: map[string][]prep.Segment{"image": mark("image"), "video": mark("video"), "audio": mark("audio")},
		beginText:   textBegin,
		openTurn: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, prep.Segment{Text: "<|" + role + "|>", Special: true})
		},
		turnClosing: []prep.Segment{{Text: turnEnd, Special: true}},
	}
}

// builtinTokens are the special tokens which the template needs.
func builtinTokens() []string {
	return []string{textBegin, turnEnd, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"}
}

const (
	textBegin = "<|begin|>"
	turnEnd   = "<|end|>"

	chatMLStart = "<|im_start|>"
	chatMLEnd   = "<|im_end|>"
)

// chatMLTemplate is the plain form of the template which Qwen and many others build on. Images and videos are
// shown as in Qwen's vision models.
func chatMLTemplate() prep.Template {
	vision := func(pad string) []prep.Segment {
		return []prep.Segment{{Text: "<|vision_start|>" + pad + "<|vision_end|>", Special: true}}
	}
	return &turnTemplate{
		mediaMarkup: map[string][]prep.Segment{"image": vision("<|image_pad|>"), "video": vision("<|video_pad|>")},
		openTurn: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, prep.Segment{Text: chatMLStart, Special: true}, prep.Segment{Text: role + "\n"})
		},
		turnClosing: []prep.Segment{{Text: chatMLEnd, Special: true}, {Text: "\n"}},
	}
}
