package chat

import "penstock/internal/edge/prep"

// builtin is the template of the built-in vocabulary: a token for each role
// opens a turn and <|end|> closes it, with no other character in between, so
// that an assistant's turn is exactly what the model generated.
func builtin() prep.Template {
	return &turns{
		begin: textBegin,
		open: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, prep.Segment{Text: "<|" + role + "|>", Special: true})
		},
		close: []prep.Segment{{Text: turnEnd, Special: true}},
	}
}

// builtinTokens are the special tokens that the template needs.
func builtinTokens() []string {
	return []string{textBegin, turnEnd, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"}
}

const (
	textBegin = "<|begin|>"
	turnEnd   = "<|end|>"

	chatMLStart = "<|im_start|>"
	chatMLEnd   = "<|im_end|>"
)

// chatML is the plain form of the template that Qwen and many others build on.
func chatML() prep.Template {
	return &turns{
		open: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, prep.Segment{Text: chatMLStart, Special: true}, prep.Segment{Text: role + "\n"})
		},
		close: []prep.Segment{{Text: chatMLEnd, Special: true}, {Text: "\n"}},
	}
}
