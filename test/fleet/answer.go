package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Answer is the part of a response which must be the same however a request was served: everything but ids,
// times, and the serving worker.
type Answer struct {
	Choices        []Choice
	Prompt, Output int // tokens, from usage
}

// Choice is one of an answer's.
type Choice struct {
	Text, Finish string
	Logprobs     []string // the JSON of each token's, as received
}

// streamChunk is an event of a stream.
type streamChunk struct {
	Choices []struct {
		Index        int     `json:"index"`
		FinishReason *string `json:"finish_reason"`
		Text         string  `json:"text"`
		Delta        struct {
			Content string `json:"content"`
		} `json:"delta"`
		Logprobs *struct {
			Content []json.RawMessage `json:"content"`
		} `json:"logprobs"`
	} `json:"choices"`
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
		Of     struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Ext *struct {
		Workers []struct {
			ID uint64 `json:"worker_id"`
		} `json:"workers"`
	} `json:"nvext"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// maxChoices bounds the index from a broken server.
const maxChoices = 128

// addEvent adds an event to the answer, and reports whether it had text.
func (a *Answer) addEvent(c *streamChunk) (text bool, err error) {
	for _, in := range c.Choices {
		if in.Index < 0 || in.Index >= maxChoices {
			return text, fmt.Errorf("an event of choice %d", in.Index)
		}
		for len(a.Choices) <= in.Index {
			a.Choices = append(a.Choices, Choice{})
		}
		out := &a.Choices[in.Index]
		piece := in.Text + in.Delta.Content
		if out.Finish != "" && (piece != "" || in.FinishReason != nil) {
			return text, fmt.Errorf("choice %d goes on after its end", in.Index)
		}
		out.Text += piece
		text = text || piece != ""
		if in.Logprobs != nil {
			for _, l := range in.Logprobs.Content {
				out.Logprobs = append(out.Logprobs, string(l))
			}
		}
		if in.FinishReason != nil {
			out.Finish = *in.FinishReason
		}
	}
	if c.Usage != nil {
		a.Prompt, a.Output = c.Usage.Prompt, c.Usage.Output
	}
	return text, nil
}

// AnswerFlaw is the kind of a wrong answer.
type AnswerFlaw string

// The flaws; an answer has its worst.
const (
	NoFlaw     AnswerFlaw = ""
	Duplicated AnswerFlaw = "duplicated" // some text is duplicated, or too much
	Missing    AnswerFlaw = "missing"    // some text is missing
	Altered    AnswerFlaw = "altered"    // it is another answer
)

// Difference is the difference of an answer from the expected one.
type Difference struct {
	Flaw   AnswerFlaw
	Tokens int    // duplicated or missing; for an altered answer the tokens after the change
	Detail string // for people
}

// Diff compares an answer with the expected one, byte for byte.
func (a *Answer) Diff(want *Answer) Difference {
	if len(a.Choices) != len(want.Choices) {
		return Difference{Altered, want.Output, fmt.Sprintf("%d choices, want %d", len(a.Choices), len(want.Choices))}
	}
	for i := range want.Choices {
		got, want := &a.Choices[i], &want.Choices[i]
		detail := fmt.Sprintf("choice %d is %s\nwant %s", i, excerptDifference(got.Text, want.Text), excerptDifference(want.Text, got.Text))
		switch flaw := compareSlices([]byte(got.Text), []byte(want.Text)); {
		case flaw != NoFlaw:
			return Difference{flaw, a.countTokensOff(got, want), detail}
		case !slices.Equal(got.Logprobs, want.Logprobs):
			flaw := compareSlices(got.Logprobs, want.Logprobs)
			return Difference{flaw, max(1, abs(len(got.Logprobs)-len(want.Logprobs))), fmt.Sprintf("choice %d has the text wanted and %d other log-probabilities (%s)", i, len(got.Logprobs), flaw)}
		case got.Finish != want.Finish:
			return Difference{Altered, 1, fmt.Sprintf("choice %d finished for %q, want %q", i, got.Finish, want.Finish)}
		}
	}
	if a.Prompt != want.Prompt || a.Output != want.Output {
		return Difference{Altered, max(1, abs(a.Output-want.Output)), fmt.Sprintf("usage is %d and %d tokens, want %d and %d", a.Prompt, a.Output, want.Prompt, want.Output)}
	}
	return Difference{}
}

// countTokensOff estimates how many tokens a choice is off by: exactly where each token has a
// log-probability, else by the share of the text.
func (a *Answer) countTokensOff(got, want *Choice) int {
	if len(want.Logprobs) > 0 {
		return max(1, abs(len(got.Logprobs)-len(want.Logprobs)))
	}
	perToken := max(1, len(want.Text)/max(1, a.Output/max(1, len(a.Choices))))
	return max(1, abs(len(got.Text)-len(want.Text))/perToken)
}

// compareSlices tells apart duplication, omission and change: the first two leave all of the shorter one in
// place.
func compareSlices[T comparable](got, want []T) AnswerFlaw {
	if slices.Equal(got, want) {
		return NoFlaw
	}
	head, shorter := 0, min(len(got), len(want))
	for head < shorter && got[head] == want[head] {
		head++
	}
	tail := 0
	for tail < shorter-head && got[len(got)-1-tail] == want[len(want)-1-tail] {
		tail++
	}
	switch {
	case head+tail < shorter || len(got) == len(want):
		return Altered
	case len(got) > len(want):
		return Duplicated
	}
	return Missing
}

// excerptDifference is the part of s from shortly before it differs from other.
func excerptDifference(s, other string) string {
	at := 0
	for at < min(len(s), len(other)) && s[at] == other[at] {
		at++
	}
	from := max(0, at-20)
	return fmt.Sprintf("(%d bytes, from %d) %.80q", len(s), from, s[from:])
}

func abs(n int) int { return max(n, -n) }
