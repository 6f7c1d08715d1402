package chat

import "penstock/internal/edge/prep"

// builtin is the template of the built-in vocabulary: a token for each role
// opens a turn and <|end|> closes it, with no other character in between, so
// that an assistant's turn is exactly what the model generated.
func builtin() prep.Template {
	open := map[string]prep.Segment{}
	for _, role := range [...]string{"system", "user", "assistant", "tool"} {
		open[role] = prep.Segment{Text: "<|" + role + "|>", Special: true}
	}
	return &turns{
		begin: "<|begin|>",
		open: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, open[role])
		},
		close: []prep.Segment{{Text: turnEnd, Special: true}},
	}
}

// The tokens that end a turn in the two templates.
const (
	turnEnd   = "<|end|>"
	chatMLEnd = "<|im_end|>"
)

const chatMLStart = "<|im_start|>"

// chatML is the plain form of the template that Qwen and many others build on.
func chatML() prep.Template {
	return &turns{
		open: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, prep.Segment{Text: chatMLStart, Special: true}, prep.Segment{Text: role + "\n"})
		},
		close: []prep.Segment{{Text: chatMLEnd, Special: true}, {Text: "\n"}},
	}
}
